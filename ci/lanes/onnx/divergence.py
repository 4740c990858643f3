"""`divergence` of an .onnx: the search is one order to a worker, remembered as any other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from ci.engine.memo import Memo
from ci.engine.work import Result
from ci.lanes.onnx.compile import plan_of
from ci.lanes.onnx.stage import OnnxLane
from ci.lanes.onnx.suite import OnnxProgram
from ci.lanes.onnx.user_program import OneModelStep, prepared, program_of, warn_of
from ci.operators.onnx_page import inexact_onnx
from ci.pipeline.divergence import FOREVER, known_fault
from ci.pipeline.lane import chosen_programs
from ci.pipeline.options import Choice, OneModel
from ci.pipeline.reduction import only
from ci.pipeline.steps import Ask, require_done, run_step
from provisioning.base.files import empty_folder
from provisioning.base.findings import Metric
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

    def key(self, program: OnnxProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        return {**super().key(program, memo, environ), "least": self.least}

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        began = time.monotonic()
        common, facts = prepared(program, ask, ask.scratch / program.name, drawn=True)
        cuts = empty_folder(ask.scratch / program.name / "cuts")
        limits = {
            "least": self.least,
            "seconds": self.seconds - (time.monotonic() - began),
            "whole": self.whole,
        }
        reply = ask(do="diverge", **{**common, "into": str(cuts)}, **limits)
        return {**reply["result"], "constant": facts["constant"]}

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        """What the time ended goes on the next time."""
        return not result.facts.get("between")


def cuts_of(
    model: OneModel, program: OnnxProgram, least: float, seconds: float = FOREVER, whole: float | None = None
) -> dict[str, Any]:
    plan = plan_of([program], model.selection, model.work)
    step = SearchOnnxCuts(plan, least=least, seconds=seconds, whole=whole)
    result = dict(require_done(run_step(step, [program])[program.name]).facts)
    warn_of(result)
    if result["first"]:
        first = result["first"] = dict(result["first"])
        faults = faults_of("onnxruntime-qnn", version("onnxruntime-qnn"))
        first["known"] = [known_fault(fault) for fault in faults if first["operator"] in fault.operators]
        known = inexact_onnx([first["operator"]], program.run.kind, program.soc)
        first["known"] += [row._asdict() for row in known if row.compiles]
    return result


def chosen_program(model: OneModel, choice: Choice, _kept: tuple[str, ...] = ()) -> OnnxProgram:
    """MODEL's, or one of a suite."""
    return program_of(model) if model.typed else only(chosen_programs(OnnxLane(), choice, model.selection))
