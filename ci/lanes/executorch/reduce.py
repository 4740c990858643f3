"""`reduce` of a PyTorch model: each piece is lowered and run by workers, and remembered."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from ci.engine.closed import closed
from ci.engine.memo import Memo
from ci.engine.work import Result
from ci.lanes.executorch.compile import ExecutorchPlan, Lower, alone
from ci.lanes.executorch.divergence import chosen_program
from ci.lanes.executorch.emulate import RunOnEmulator
from ci.lanes.executorch.pieces import BASE, OBSERVED, TorchPieces, kind_of, tensors_of
from ci.lanes.executorch.product import outcome_of
from ci.lanes.executorch.reproducer import reproducer
from ci.lanes.executorch.suite import ExecutorchCase, ExecutorchProgram
from ci.lanes.executorch.user_program import plan_of_model, stack_of
from ci.pipeline.forecast import ONNX_ALONE, TO_ONNX
from ci.pipeline.models.arrays import Sample
from ci.pipeline.models.pieces import NotAPiece
from ci.pipeline.options import Choice, OneModel
from ci.pipeline.reduce import Condition, Subgraph
from ci.pipeline.reduction import PIECE, SAMPLES, Reduction, outcome_facts
from ci.pipeline.reproducer import Reproducer
from ci.pipeline.runner import ready_runner
from ci.pipeline.steps import Ask, asking, run_step
from ci.pipeline.trial import Outcome
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Metric

PARTS = ("cpu_nodes", "cpu_operators", "unquantized_nodes", "modules", "annotations")
WITHOUT: Mapping[str, Any] = {**dict.fromkeys(PARTS, ()), "nodes": {}}
"""They name parts of the whole model."""


@dataclass(frozen=True)
class TryLowering(Lower):
    """A piece lowered. That it dies is a result too."""

    kind = "lowering-reduce"

    def key(self, program: ExecutorchProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        return {**super().key(program, memo, environ), "piece": program.case_name}

    def work(self, program: ExecutorchProgram, ask: Ask) -> Mapping[str, Any]:
        lowered = partial(super().work, program, ask)
        return outcome_facts(lowered, ask, lambda gone: gone.sentence(ask.log))

    def accepts(self, program: ExecutorchProgram, result: Result) -> bool:
        return True


@dataclass(frozen=True)
class TryRun(RunOnEmulator):
    kind = "emulator-reduce"

    def accepts(self, program: ExecutorchProgram, result: Result) -> bool:
        return True


def outcome_of_piece(lowered: Result, ran: Result | None) -> Outcome | None:
    """None where the piece is no program."""
    facts = lowered.facts
    if lowered.failure or facts.get("failed") in ("factory", "load", "run on CPU", "export"):
        return None
    if "failed" in facts:
        return Outcome(error=f"{facts['failed']}: {facts['message']}")
    return outcome_of(lowered, None if ran is None or ran.failure else ran)


class TorchReduction(Reduction[GraphModule]):
    suffix = ".pt2"
    program: ExecutorchProgram
    plan: ExecutorchPlan

    def __init__(self, model: OneModel, program: ExecutorchProgram, place: Path) -> None:
        self.model, self.program = model, program
        self.plan = replace(plan_of_model(model, "reduce", [program]), logs=place / "logs")
        for refused in self.plan.refused.values():
            raise CheckFailed(refused.message, fix=refused.fix)
        self.runner = ready_runner(os.environ, model.selection.reports)
        torch.set_grad_enabled(False)
        exported, samples = observed(program, self.plan, place)
        super().__init__(program.name, TorchPieces(exported, samples), place, model.work.jobs)

    def save(self, model: GraphModule, sample: Sample, path: Path) -> None:
        try:
            exported = torch.export.export(model, tensors_of(sample))
        except Exception as error:
            raise NotAPiece(str(error)) from error
        torch.export.save(exported, path)

    @property
    def case(self) -> ExecutorchCase:
        return ExecutorchCase(
            factory=f"{PIECE}{self.suffix}",
            samples=SAMPLES,
            non_finite=self.program.case.non_finite,
            run=(self.program.run.model_copy(update=WITHOUT),),
        )

    def outcomes_in(self, plan: ExecutorchPlan) -> list[Outcome | None]:
        lowered = run_step(TryLowering(plan), plan.programs)
        runnable = [program for program in plan.programs if "expected" in lowered[program.name].facts]
        ran = run_step(TryRun(plan, self.runner, lowered), runnable)
        return [outcome_of_piece(lowered[program.name], ran.get(program.name)) for program in plan.programs]

    def reproducer(self, name: str, title: str, piece: Subgraph, condition: Condition) -> Reproducer:
        module, _ = self.pieces.built(piece)
        run, soc = self.program.run, self.program.soc
        needs = ", ".join(f"{package} {version}" for package, version in stack_of().items())
        needs += f", QNN {self.plan.basis.build_id} on LD_LIBRARY_PATH"
        return reproducer(name, title, needs, module, self.pieces.sources(piece), run, soc)

    def operators_of(self, piece: Subgraph) -> list[str]:
        assert isinstance(self.pieces, TorchPieces)
        return [kind_of(self.pieces.nodes[name][0]) for name in piece.operators]

    @property
    def versions(self) -> Mapping[str, str]:
        return stack_of(self.plan.basis.build_id)

    @property
    def environment(self) -> Mapping[str, str]:
        return self.plan.environment


def observed(
    program: ExecutorchProgram, plan: ExecutorchPlan, place: Path
) -> tuple[GraphModule, list[tuple[torch.Tensor, ...]]]:
    """The model as torch.export has it, and inputs: the user's code runs in a process of its own."""
    environ, log = closed(plan.environment) | program.needs.environment(os.environ), place / "export.log"
    setup = alone(environ, log, plan.work.timeout, session("reduce"))
    with asking(setup, log) as ask:
        ask(**program.order, observed=True, into=str(place))
    module: GraphModule = torch.export.load(place / BASE).module()
    return module, torch.load(place / OBSERVED, weights_only=True)


def reduction(model: OneModel, choice: Choice, place: Path, *, estimated: bool) -> TorchReduction:
    if estimated:
        raise UsageError(ONNX_ALONE, fix=f"--when 'ddr>1MB', or {TO_ONNX}")
    program = chosen_program(model, choice)
    return TorchReduction(model, program, place)
