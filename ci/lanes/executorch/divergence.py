"""`divergence` of a PyTorch model: one order to the worker that lowers, remembered as any other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.engine.closed import closed
from ci.engine.work import Result
from ci.engine.workers.parent import WorkerDied
from ci.lanes.executorch.compile import WORKER, Lower, home_of
from ci.lanes.executorch.stage import Lowering
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.lanes.executorch.user_program import plan_of_model, program_of, require_done, stack_of
from ci.operators.faults import faults_in, versions_of
from ci.operators.table import better_than, inexact
from ci.pipeline.cached_steps import run_cached_step
from ci.pipeline.divergence import FOREVER, known_fault, only, partial_of
from ci.pipeline.lane import chosen_programs
from ci.pipeline.operator_script import OperatorScript
from ci.pipeline.options import Choice, OneModel
from ci.pipeline.runner import Runner, ready_runner
from ci.results import CachedResults, Key
from ci.work import asking
from provisioning.base.findings import Metric
from provisioning.base.settings import Selection


@dataclass(frozen=True)
class SearchCuts(Lower):
    """The search for the operator that differs, by programs that end at a node."""

    kind = "divergence"
    title = "the operator that differs"
    keeps_files = False
    log_in_folder = ""
    repeats = None

    runner: Runner
    least: float
    seconds: float
    whole: float | None = None
    """The SQNR of all of it, if that is known."""

    @property
    def function(self) -> str:
        return f"{WORKER}:searched"

    def key(self, program: ExecutorchProgram, results: CachedResults) -> Key:
        runner: dict[str, Metric] = {**self.runner.order, "path": results.digest(self.runner.path)}
        return {**super().key(program, results), "least": self.least, "runner": runner}

    def request(self, program: ExecutorchProgram) -> Mapping[str, Any]:
        limits = {"least": self.least, "seconds": self.seconds, "whole": self.whole}
        return {**program.order, "runner": self.runner.order, **limits}

    def left(self, program: ExecutorchProgram, gone: WorkerDied, folder: Path) -> dict[str, Any] | None:
        return partial_of(folder) if gone.kind == "timeout" else None

    def accepts(self, program: ExecutorchProgram, result: Result) -> bool:
        """What the time ended goes on the next time."""
        return not result.facts.get("between")


def cuts_of(
    model: OneModel,
    program: ExecutorchProgram,
    least: float,
    seconds: float = FOREVER,
    whole: float | None = None,
) -> dict[str, Any]:
    """What the search gave, with what is known of the operator."""
    plan = plan_of_model(model, "divergence", [program])
    runner = ready_runner(os.environ, model.selection.reports)
    found = run_cached_step(SearchCuts(plan, runner, least, seconds, whole), [program])
    result = dict(require_done(program, plan, found).facts)
    if result["first"]:
        scheme, soc = program.run.precision, program.soc
        first = result["first"] = dict(result["first"])
        versions = versions_of(plan.basis.build_id)
        met = faults_in(first.pop("traits"), scheme, soc, versions, seen_db=first["sqnr_db"])
        first["known"] = [known_fault(found.fault) for found in met]
        measured = inexact([first["operator"]], scheme, soc)
        first["known"] += [row._asdict() for row in measured if row.compiles]
        first["better"] = better_than(first["operator"], scheme, soc)
    return result


def script_of(
    model: OneModel, program: ExecutorchProgram, operator: Mapping[str, Any], before: int
) -> OperatorScript:
    plan = plan_of_model(model, "divergence", [program])
    environ, log = closed(plan.environment) | program.needs.environment(os.environ), plan.logs / "script.log"
    home = home_of(environ, plan.logs)
    with asking(home, f"{WORKER}:script", log, plan.work.timeout) as ask:
        chosen = {"operator": operator["node"], "sample": operator["sample"]}
        source = ask(**program.order, before=before, **chosen)
    packages = ", ".join(f"{name} {version}" for name, version in stack_of(plan.basis.build_id).items())
    needs = f"{packages}; QNN_SDK_ROOT and LD_LIBRARY_PATH, as `qnn-ci env` prints them"
    return OperatorScript(needs, source["imports"], source["body"], plan.environment)


def chosen_program(model: OneModel, choice: Choice, kept: tuple[str, ...] = ()) -> ExecutorchProgram:
    """MODEL's, or one of a suite; nodes that are `kept` are on the CPU."""
    return program_of(model, cpu_nodes=kept) if model.typed else only(on_htp(choice, model.selection))


def on_htp(choice: Choice, selection: Selection) -> list[ExecutorchProgram]:
    return [program for program in chosen_programs(Lowering(), choice, selection) if program.backend == "htp"]
