"""What the processes that lower do: one imports torch and executorch, and its forks export and compile."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

from ci.child import WARM, Answer, hidden, reporting
from provisioning.base.settings import ROOT

IMPORTED_LATE = (
    "executorch.backends.qualcomm._passes.backends.htp.qnn_htp_pass_manager",
    "executorch.backends.qualcomm.quantizer.annotators.htp_rules",
    "torch._export.serde.serialize",
    "torch.export._trace",
)
"""What torch and executorch import while they lower, which each fork would do again. Releases differ in
them."""


MODULES = (
    "ci.models.exported",
    "ci.lanes.executorch.lower",
    "ci.lanes.executorch.wrap_context",
    "ci.lanes.executorch.graphs",
)
"""What the work of all homes imports."""


def prepare() -> None:
    import torch

    # A fork can have threads of its own only if this process never had any; and by one number of them a
    # model's outputs are the same everywhere.
    torch.set_num_threads(1)
    for name in MODULES:
        importlib.import_module(name)
    _choose_kernels()
    for name in IMPORTED_LATE:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    if hidden.get(WARM):
        _warm_up()


def _choose_kernels() -> None:
    """ExecuTorch turns some of torch's kernels off when it lowers: what runs before it would have other last
    bits than what runs after."""
    from executorch.backends.qualcomm.utils import utils

    if choose := getattr(utils, "disable_mkldnn_on_amd", None):
        choose()


def _compiled(order: dict[str, Any]) -> dict[str, Any]:
    """Of a program that is lowered, or only quantized."""
    from ci.lanes.executorch.export import exported_case
    from ci.lanes.executorch.lower import lower
    from ci.lanes.executorch.suite import parse_request
    from ci.plain import as_json

    case, run, soc, place = parse_request(order)
    keep_going, quantize_only = order.get("keep_going", False), order.get("quantize_only", False)
    folders = Path(order["into"]), Path(order["log"])
    exported = exported_case(case, place)
    how = {"keep_going": keep_going, "quantize_only": quantize_only}
    return as_json(lower(exported, case, run, soc, place, *folders, **how))


def _scored(order: dict[str, Any]) -> dict[str, Any]:
    from ci.lanes.executorch.export import exported_case
    from ci.lanes.executorch.lower import scored
    from ci.lanes.executorch.suite import parse_request

    case, run, soc, place = parse_request(order)
    return scored(exported_case(case, place), case, run, soc, place, order["exact"], order["seconds"])


def _diverged(order: dict[str, Any]) -> dict[str, Any]:
    from ci.lanes.executorch.graphs import diverge

    return diverge(order)


def _script(order: dict[str, Any]) -> dict[str, Any]:
    from ci.lanes.executorch.graphs import script

    return script(order)


def _rewritten(order: dict[str, Any]) -> dict[str, Any]:
    from ci.lanes.executorch.graphs import rewritten

    return rewritten(order)


def _wrapped(order: dict[str, Any]) -> dict[str, Any]:
    from ci.lanes.executorch.wrap_context import write_program

    write_program(order["context"], order["soc"], Path(order["path"]))
    return {}


def error_of(error: Exception, order: dict[str, Any]) -> dict[str, Any]:
    from ci.lanes.executorch.lower import Failed
    from ci.models.user_model import BadFactory

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
        _compiled({**order, "into": folder, "log": str(log)})


def _at_home(work: Answer) -> Answer:
    """Relative paths of the user's code begin in its suite's folder."""

    def done(order: dict[str, Any]) -> dict[str, Any]:
        os.chdir(order["working_folder"])
        return work(order)

    return reporting(done, error_of)


compiled, scored, diverged, script, rewritten, wrapped = map(
    _at_home, (_compiled, _scored, _diverged, _script, _rewritten, _wrapped)
)
