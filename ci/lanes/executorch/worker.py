"""The process that lowers: it imports torch and executorch, lowers a small model of ours, and then forks."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from ci.engine.workers.child import WARM, Answer, hidden, reporting, serve, threads
from provisioning.base.settings import ROOT

IMPORTED_LATE = (
    "executorch.backends.qualcomm._passes.backends.htp.qnn_htp_pass_manager",
    "executorch.backends.qualcomm.quantizer.annotators.htp_rules",
    "torch._export.serde.serialize",
    "torch.export._trace",
)
"""What torch and executorch import while they lower, which each fork would do again. Releases differ in
them."""


def start() -> Answer:
    import torch

    # A fork can have threads of its own only if this process never had any.
    torch.set_num_threads(1)
    importlib.import_module("ci.lanes.executorch.lower")
    for name in IMPORTED_LATE:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    if hidden.get(WARM):
        _warm_up()
    return reporting(work, error_of)


def work(order: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(threads())
    os.chdir(order["working_folder"])
    return facts_of(order)


def facts_of(order: dict[str, Any]) -> dict[str, Any]:
    from ci.lanes.executorch.lower import lower
    from ci.lanes.executorch.suite import parse_request

    if "context" in order:
        from ci.lanes.executorch.wrap_context import write_program

        write_program(order["context"], order["soc"], Path(order["path"]))
        return {}
    if "cuts" in order:
        from ci.lanes.executorch.cut_programs import searched

        return searched(order, Path(order["scratch"]))
    if "operator" in order:
        from ci.lanes.executorch.cut_out import order_script

        return order_script(order)
    if "needs" in order:
        from ci.lanes.executorch.repaired_module import rewritten

        case, run, _, place = parse_request(order)
        return rewritten(case, run, place, Path(order["into"]), order["needs"])
    into = Path(order["into"])
    return lower(
        *parse_request(order),
        into,
        Path(order["log"]),
        keep_going=order.get("keep_going", False),
        quantize_only=order.get("quantize_only", False),
        score=order.get("score", ""),
        seconds=order.get("seconds", math.inf),
    )


def error_of(error: Exception, order: dict[str, Any]) -> dict[str, Any]:
    from ci.lanes.executorch.lower import Failed
    from ci.pipeline.models.user_model import BadFactory

    if isinstance(error, BadFactory):
        return {"kind": "factory", "message": str(error), "fix": error.fix}
    if isinstance(error, Failed):
        return {"kind": error.step, "message": str(error), "fix": error.fix, "source": error.source}
    return {"kind": "compile", "message": f"{type(error).__name__}: {error}"[:2000]}


def _warm_up() -> None:
    """Lower a small model, so that libraries are loaded and compilers warm."""
    case, run = {"factory": "ci.lanes.executorch.warm_up:model"}, {"precision": "8a8w", "calibration": 1}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        order = {"case": case, "run": run, "soc": "SM8650", "search_path": str(ROOT)}
        facts_of({**order, "into": folder, "log": str(log)})


if __name__ == "__main__":
    serve(int(sys.argv[1]), start, forks=True)
