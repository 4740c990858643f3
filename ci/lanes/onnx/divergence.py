"""`divergence` of an .onnx: the search is one order to a worker, remembered as any other."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ci.engine.work import Result
from ci.lanes.onnx import provider
from ci.lanes.onnx.compile import PROGRAM, environment, home_of, order_of, plan_of
from ci.lanes.onnx.stage import OnnxLane
from ci.lanes.onnx.suite import OnnxProgram
from ci.lanes.onnx.user_program import OneModelStep, program_of, warn_of
from ci.operators.onnx_page import inexact_onnx
from ci.pipeline.cached_steps import require_done, run_cached_step
from ci.pipeline.divergence import FOREVER, known_fault, only
from ci.pipeline.lane import chosen_programs
from ci.pipeline.operator_script import OperatorScript
from ci.pipeline.options import Choice, OneModel
from ci.results import CachedResults, Key
from ci.work import asking
from provisioning.base.files import empty_folder
from provisioning.known_faults import faults_of


@dataclass(frozen=True, kw_only=True)
class SearchOnnxCuts(OneModelStep):
    """The search for the operator that differs, by programs that end at a node."""

    kind = "onnx-divergence"
    title = "the operator that differs"
    keeps_files = False

    least: float
    seconds: float
    whole: float | None = None
    """The SQNR of all of it, if that is known."""

    function = f"{PROGRAM}:searched"

    def options(self, program: OnnxProgram) -> dict[str, Any]:
        return {"least": self.least, "seconds": self.seconds, "whole": self.whole}

    def key(self, program: OnnxProgram, results: CachedResults) -> Key:
        return {**super().key(program, results), "options": {"least": self.least}}

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        """What the time ended goes on the next time."""
        return not result.facts.get("between")


def cuts_of(
    model: OneModel, program: OnnxProgram, least: float, seconds: float = FOREVER, whole: float | None = None
) -> dict[str, Any]:
    plan = plan_of([program], model.selection, model.work)
    step = SearchOnnxCuts(plan, least=least, seconds=seconds, whole=whole)
    result = dict(require_done(run_cached_step(step, [program])[program.name]).facts)
    warn_of(result)
    if result["first"]:
        first = result["first"] = dict(result["first"])
        faults = faults_of("onnxruntime-qnn", version("onnxruntime-qnn"))
        first["known"] = [known_fault(fault) for fault in faults if first["operator"] in fault.operators]
        known = inexact_onnx([first["operator"]], program.run.kind, program.soc)
        first["known"] += [row._asdict() for row in known if row.compiles]
    return result


def script_of(
    model: OneModel, program: OnnxProgram, operator: Mapping[str, Any], before: int
) -> OperatorScript:
    plan = plan_of([program], model.selection, model.work)
    home = home_of(plan.logs, exports=bool(program.case.factory))
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-script-") as scratch,
        asking(home, f"{PROGRAM}:script", plan.logs / "script.log", plan.work.timeout) as ask,
    ):
        folders = {"shared": scratch, "into": str(empty_folder(Path(scratch) / "cut"))}
        more = {"operator": operator["node"], "sample": operator["sample"], "before": before}
        order = {**order_of(program), "preparing": {"drawn": True}}
        source = ask(**order, **folders, **more)
    packages = ", ".join(f"{name} {version}" for name, version in provider.packages().items())
    return OperatorScript(packages, source["imports"], source["body"], environment())


def chosen_program(model: OneModel, choice: Choice, _kept: tuple[str, ...] = ()) -> OnnxProgram:
    """MODEL's, or one of a suite."""
    return program_of(model) if model.typed else only(chosen_programs(OnnxLane(), choice, model.selection))
