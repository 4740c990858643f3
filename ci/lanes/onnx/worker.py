"""What the processes in which ONNX Runtime works import, and how they do a part of an order."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ci.child import UNFORESEEN, WARM, hidden, reporting
from ci.suite.metric import METRIC, error_of_metric
from provisioning.base.commands import Fix
from provisioning.base.errors import INTERNAL, ToolkitError
from provisioning.base.settings import ROOT

MODULES = (
    "ci.lanes.onnx.program",
    "ci.lanes.onnx.steps",
    "ci.lanes.onnx.graphs",
    "ci.models.samples",
)
EXPORTING = ("torch.onnx", "onnxscript", "onnxruntime.quantization", "ci.models.factory")


def prepare() -> None:
    for name in MODULES:
        importlib.import_module(name)


def prepare_exporting() -> None:
    """Import what every model of a factory needs, and export a small model."""
    prepare()
    for name in EXPORTING:
        importlib.import_module(name)
    import torch

    from ci.suite import qnn_provider

    # A fork can have threads of its own only if this process never had any.
    torch.set_num_threads(1)
    if hidden.get(WARM):
        _warm_up()
    qnn_provider.load()


def work(order: dict[str, Any]) -> dict[str, Any]:
    """The result of a step of ci/lanes/onnx/steps.py. Raises what went wrong."""
    from ci.lanes.onnx import steps

    # The user's code, which prepares a model, is at home in its suite; relative paths in options begin where
    # the user is.
    os.chdir(order["working_folder"] if order["do"] in ("prepare", "rewrite", METRIC) else order["cwd"])
    result: dict[str, Any] = getattr(steps, f"order_{order['do']}")(order)
    return result


KINDS = {"NotOnProvider": "cpu-node", "UsageError": "suite"}
"""The names of findings for errors without a problem of their own."""


def error_of(error: Exception, order: dict[str, Any]) -> dict[str, Any]:
    from ci.lanes.onnx.graph import NotCompilable
    from ci.suite.accuracy import Unusable

    if order["do"] == METRIC:
        return error_of_metric(error, order)
    if not isinstance(error, ToolkitError):
        text, log = " ".join(str(error).split())[:1000], order["log"]
        return {
            "kind": UNFORESEEN,
            "exit_code": INTERNAL,
            "message": f"{order['do']}: {type(error).__name__}: {text}",
            "fix": Fix("the traceback is in {}; {} explains what is known of it", log, ("diagnose", log)),
        }
    found = error.problems if isinstance(error, NotCompilable) else ()
    problems = [asdict(problem) for problem in found]
    rule = str(problems[0].get("rule", "")).removeprefix("onnx-") if problems else ""
    return {
        "kind": rule or KINDS.get(type(error).__name__, "refused"),
        "exit_code": error.exit_code,
        "message": error.message,
        "fix": error.fix,
        "problems": problems,
        "unusable": error.__cause__.rule if isinstance(error.__cause__, Unusable) else "",
    }


answer = reporting(work, error_of)


def _warm_up() -> None:
    """Export a small model, so that libraries are loaded. If it fails, each model fails the same way."""
    from ci.lanes.onnx import provider, steps

    factory = "ci.models.shipped.operators:convolution"
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ToolkitError):
        provider.export(factory, {}, ROOT, Path(folder), steps.OPSET)
