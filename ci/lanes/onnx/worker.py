"""The process in which ONNX Runtime works, so that a crash of the provider or of QNN harms nothing else."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ci.engine.workers.child import Answer, Meter, blame, serve, threads
from provisioning.base.commands import session
from provisioning.base.errors import INTERNAL, ToolkitError
from provisioning.base.settings import ROOT

EXPORTING = ("torch.onnx", "onnxscript", "onnxruntime.quantization", "ci.pipeline.models.factory")


def start() -> Answer:
    importlib.import_module("ci.lanes.onnx.steps")
    return answer


def start_exporting() -> Answer:
    """Before the first fork, import what every model needs and export a small model."""
    importlib.import_module("ci.lanes.onnx.steps")
    for name in EXPORTING:
        importlib.import_module(name)
    import torch

    from ci.pipeline import qnn_provider

    # A fork can have threads of its own only if this process never had any.
    torch.set_num_threads(1)
    _warm_up()
    qnn_provider.load()
    return answer_in_fork


def answer_in_fork(order: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(threads())
    return answer(order)


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """The result of a step of ci/lanes/onnx/steps.py, or what went wrong as `error`. Raises InTrouble."""
    from ci.lanes.onnx import steps
    from ci.lanes.onnx.provider import NotOnProvider

    # The user's code, which prepares a model, is at home in its suite; relative paths in options begin where
    # the user is.
    os.chdir(order["working_folder"] if order["do"] == "prepare" else order["cwd"])
    meter = Meter()
    try:
        reply = steps.ORDERS[order["do"]](order)
    except ToolkitError as error:
        traceback.print_exc()
        blame(error, order)
        details: dict[str, Any] = {
            "kind": type(error).__name__,
            "exit_code": error.exit_code,
            "message": error.message,
            "fix": error.fix,
        }
        if isinstance(error, steps.NotCompilable):
            details["problems"] = [asdict(problem) for problem in error.problems]
        if isinstance(error, NotOnProvider):
            details["audit"] = asdict(error.audit)
        return {"error": details}
    except Exception as error:
        traceback.print_exc()
        blame(error, order)
        text = " ".join(str(error).split())[:1000]
        return {
            "error": {
                "kind": "Unforeseen",
                "exit_code": INTERNAL,
                "message": f"{order['do']}: {type(error).__name__}: {text}",
                "fix": f"the traceback is in {order['log']}; {session('diagnose', order['log'])} explains"
                " what is known of it",
            }
        }
    return {**reply, **meter.read()}


def _warm_up() -> None:
    """Export a small model, so that libraries are loaded. If it fails, each model fails the same way."""
    from ci.lanes.onnx import provider, steps

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ToolkitError):
        provider.export(
            "ci.pipeline.models.shipped.operators:convolution", {}, ROOT, Path(folder), steps.OPSET
        )


if __name__ == "__main__":
    serve(int(sys.argv[-1]), start_exporting if "--export" in sys.argv else start, forks="--fork" in sys.argv)
