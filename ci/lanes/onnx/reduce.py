"""`reduce` of an ONNX model: each piece is compiled and run by a worker, and remembered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ci.engine.memo import Memo
from ci.engine.work import Result
from ci.engine.workers.parent import Refused
from ci.lanes.onnx import provider
from ci.lanes.onnx.compile import (
    OnnxPlan,
    cwd,
    environment,
    explained_end,
    plan_of,
    require_installed,
    setup_of,
)
from ci.lanes.onnx.divergence import chosen_program
from ci.lanes.onnx.forecast import forecast_of_chip
from ci.lanes.onnx.graph import make_plain
from ci.lanes.onnx.pieces import OnnxPieces
from ci.lanes.onnx.product import outcome_of
from ci.lanes.onnx.reproducer import HTP, HowCompiled, ids_of, reproducer
from ci.lanes.onnx.suite import OnnxCase, OnnxProgram
from ci.lanes.onnx.user_program import OneModelStep
from ci.pipeline.models.arrays import Sample
from ci.pipeline.options import Choice, OneModel
from ci.pipeline.precision import precision_named
from ci.pipeline.qnn_provider import installed_build
from ci.pipeline.reduce import Condition, Subgraph
from ci.pipeline.reduction import PIECE, SAMPLES, Reduction, outcome_facts
from ci.pipeline.reproducer import Reproducer
from ci.pipeline.steps import Ask, asking, run_step
from ci.pipeline.trial import Outcome
from provisioning.base.files import empty_folder
from provisioning.base.findings import Metric
from provisioning.manifest import soc_named

OPERATOR = re.compile(r" \((\w+)\): ")
"""In the message on nodes that would run on the CPU."""
OBSERVED = "observed"


@dataclass(frozen=True, kw_only=True)
class TryOnnx(OneModelStep):
    """A piece compiled and run. That it dies is a result too."""

    kind = "onnx-reduce"
    keeps_files = False

    estimated: bool = False
    """Whether QNN is asked what it will take."""

    def key(self, program: OnnxProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        more: dict[str, Metric] = {"piece": program.case_name, "estimated": self.estimated}
        return {**super().key(program, memo, environ), **more}

    def asked(self, program: OnnxProgram) -> Mapping[str, Any]:
        return {"forms": ["beside"], "drawn": True}

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        whole = ask.scratch / program.case_name
        folders = {part: str(empty_folder(whole / part)) for part in ("prepared", "quantized")}
        order = {**program.order, "cwd": cwd(), **folders}
        try:
            facts = ask(do="prepare", **order, into=folders["prepared"])
        except Refused as refused:
            ask.touched |= ask.worker.seen
            return {"invalid": refused.message}
        order["source"] = facts["model"]

        def compiled() -> Mapping[str, Any]:
            quantized = ask(do="quantize", **order, model=facts["model"], into=folders["quantized"])
            of_run = {"source": facts["model"], "model": quantized["model"], "cwd": cwd(), **folders}
            reply = self.contexts(program, ask, **of_run)
            return {**reply, "estimate": self.estimate(program, ask, of_run)} if self.estimated else reply

        return outcome_facts(compiled, ask, lambda gone: explained_end(gone, ask.log).message)


def outcome_of_piece(program: OnnxProgram, result: Result) -> Outcome | None:
    """None where the piece is no program."""
    if result.failure:
        return None
    facts = result.facts
    if "invalid" in facts:
        return None
    message = str(facts.get("message", ""))
    if "failed" in facts:
        if facts["failed"] == "cpu-node":
            return Outcome(on_cpu=tuple(OPERATOR.findall(message)))
        if rule := facts.get("unusable", ""):
            return Outcome.not_compared(rule, message)
        return Outcome(error=f"{facts['failed']}: {message}")
    return outcome_of(facts["beside"], forecast_of_chip(program, facts.get("estimate")), 0.0)


def observed(program: OnnxProgram, plan: OnnxPlan, into: Path) -> tuple[Path, list[Mapping[str, Any]]]:
    """The model as it is compiled, and the values of its tensors for some samples."""
    folder = empty_folder(into / OBSERVED)
    exports = bool(program.case.factory)
    setup = setup_of(plan.logs, timeout=plan.work.timeout, exports=exports)
    with asking(setup, plan.logs / "observe.log") as ask:
        order = {**program.order, "cwd": cwd(), "prepared": str(folder), "into": str(folder)}
        facts = ask(do="prepare", **order, drawn=True)
        count = ask(do="observe", **order, model=facts["model"])["samples"]
    return Path(facts["model"]), [np.load(folder / f"{number}.npz") for number in range(count)]


class OnnxReduction(Reduction[onnx.ModelProto]):
    suffix = ".onnx"
    program: OnnxProgram
    plan: OnnxPlan

    def __init__(self, program: OnnxProgram, plan: OnnxPlan, place: Path, *, estimated: bool) -> None:
        path, samples = observed(program, plan, place)
        model = onnx.load(str(path))
        make_plain(model)
        self.nodes = {node.name: node.op_type for node in model.graph.node}
        super().__init__(program.name, OnnxPieces(model, samples), place, plan.work.jobs)
        self.program, self.plan, self.estimated = program, plan, estimated

    def save(self, model: onnx.ModelProto, sample: Sample, path: Path) -> None:
        onnx.save(model, str(path))

    @property
    def case(self) -> OnnxCase:
        return OnnxCase(
            model=f"{PIECE}{self.suffix}",
            samples=SAMPLES,
            non_finite=self.program.case.non_finite,
            run=(self.program.run.model_copy(update={"nodes": {}}),),
        )

    def outcomes_in(self, plan: OnnxPlan) -> list[Outcome | None]:
        results = run_step(TryOnnx(plan, estimated=self.estimated), plan.programs)
        return [outcome_of_piece(program, results[program.name]) for program in plan.programs]

    def reproducer(self, name: str, title: str, piece: Subgraph, condition: Condition) -> Reproducer:
        run, (model, _) = self.program.run, self.pieces.built(piece)
        options = {**run.settings(self.program.soc).provider, **HTP, **ids_of(soc_named(self.program.soc))}
        how = HowCompiled(
            precision_named(run.precision), run.per_channel, options, condition.figure == "size"
        )
        return reproducer(name, title, self.needs, model, self.pieces.sources(piece), how)

    @property
    def needs(self) -> str:
        return ", ".join(f"{name} {self.facts[name]}" for name in provider.PACKAGES)

    @property
    def versions(self) -> Mapping[str, str]:
        return {**provider.packages(), "QNN": installed_build()}

    @property
    def environment(self) -> Mapping[str, str]:
        return environment()

    def operators_of(self, piece: Subgraph) -> list[str]:
        return [self.nodes[name] for name in piece.operators]


def reduction(model: OneModel, choice: Choice, place: Path, *, estimated: bool) -> OnnxReduction:
    require_installed()
    program = chosen_program(model, choice)
    plan = replace(plan_of([program], model.selection, model.work), logs=place / "logs")
    return OnnxReduction(program, plan, place, estimated=estimated)
