"""`tune` of a PyTorch model: scores by PyTorch, programs by the steps of the suites."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ci.engine.memo import Memo
from ci.engine.work import Result
from ci.lanes.executorch import PROGRAM
from ci.lanes.executorch.compile import ExecutorchPlan, Lower, compile_programs
from ci.lanes.executorch.emulate import RunOnEmulator, ran
from ci.lanes.executorch.judge import costs_of
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.lanes.executorch.user_program import plan_of_model, program_of, require_done
from ci.pipeline.forecast import ONNX_ALONE, TO_ONNX
from ci.pipeline.options import OneModel
from ci.pipeline.precision import scheme_named
from ci.pipeline.runner import ready_runner
from ci.pipeline.steps import Ask, run_step
from ci.pipeline.tuning import Goal, Point, Tuned, TuneSearch, mixed, unit_of
from provisioning.base.errors import ToolkitError, UsageError
from provisioning.base.findings import Metric

PYTHON = '''\
"""{comment}"""

from executorch.backends.qualcomm.quantizer.quantizer import ModuleQConfig, QnnQuantizer, QuantDtype
from torchao.quantization.pt2e import MinMaxObserver

NODES = {nodes}


def set_precision(quantizer: QnnQuantizer) -> None:
    """Call it before prepare_pt2e."""
    how = {{"is_conv_per_channel": True, "is_linear_per_channel": True, "act_observer": MinMaxObserver}}
    quantizer.set_default_quant_config(QuantDtype.use_{precision}, **how)
    quantizer.add_discard_nodes(NODES.get("fp16", ()))
    quantizer.set_submodule_qconfig_list(
        [
            (lambda node, names=names: node.name in names, ModuleQConfig(QuantDtype[f"use_{{name}}"], **how))
            for name, names in NODES.items()
            if name != "fp16"
        ]
    )
'''


@dataclass(frozen=True)
class Score(Lower):
    """What each group of operators loses at the program's precision and at `exact`."""

    kind = "scores"
    keeps_files = False
    log_in_folder = ""

    exact: str
    seconds: float = 1e9

    @property
    def title(self) -> str:
        return "scores"

    def key(self, program: ExecutorchProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        return {**super().key(program, memo, environ), "scored beside": self.exact}

    def work(self, program: ExecutorchProgram, ask: Ask) -> Mapping[str, Any]:
        return ask(**program.order, score=self.exact, seconds=self.seconds)

    def accepts(self, program: ExecutorchProgram, result: Result) -> bool:
        """What the time ended is no score for `tune`."""
        return not result.facts.get("left")


@dataclass(frozen=True)
class RunUnheld(RunOnEmulator):
    """A program that may be as far off as it is."""

    metric: str
    """FILE:FUNCTION of the user's, which gives one more figure."""

    def accepts(self, program: ExecutorchProgram, result: Result) -> bool:
        return ran(result)

    def _request(self, program: ExecutorchProgram) -> dict[str, Metric]:
        common = {**super()._request(program), "worst": True}
        return {**common, "metric": self.metric} if self.metric else common


def tuned(
    model: OneModel, precisions: tuple[str, str], goal: Goal, given: ExecutorchProgram | None = None
) -> Tuned:
    """`given` is a suite's program, in place of MODEL."""
    cheap, exact = map(scheme_named, precisions)
    if given:
        run = given.run.model_copy(update={"precision": cheap, "nodes": {}, "label": ""})
        judged = {"inferences": model.inferences} if model.inferences else {}
        program = replace(given, run=run, case=given.case.model_copy(update=judged))
    else:
        program = program_of(replace(model, precision=cheap))
    if not program.run.quantizes or program.backend != "htp":
        raise UsageError(
            f"{cheap} on {program.backend} quantizes nothing that the emulator runs", fix="--precision 8a8w"
        )
    if "ms" in goal.budget:
        raise UsageError(f"--budget ms=: {ONNX_ALONE}", fix=f"--budget ddr=… or bytes=…; or {TO_ONNX}")
    units = [unit_of(row) for row in scores_of(model, program, exact)["units"]]
    runner = ready_runner(os.environ, model.selection.reports)

    def measured(choices: Sequence[frozenset[int]]) -> list[Point]:
        programs = {choice: mixed(program, units, choice, exact) for choice in choices}
        plan = plan_of_model(model, "tune", list(programs.values()))
        compiled = compile_programs(plan)
        runnable = [one for one in plan.programs if (done := compiled.get(one.name)) and done.folder]
        runs = run_step(RunUnheld(plan, runner, compiled, goal.metric), runnable)
        return [
            _point(choice, mixed, plan, compiled, runs.get(mixed.name)) for choice, mixed in programs.items()
        ]

    return TuneSearch(units, measured, goal, (cheap, exact)).run()


def scores_of(
    model: OneModel, program: ExecutorchProgram, exact: str, seconds: float = Score.seconds
) -> Mapping[str, Any]:
    plan = plan_of_model(model, "tune", [program])
    return require_done(program, plan, run_step(Score(plan, exact, seconds), [program])).facts


def in_python(precision: str, nodes: Mapping[str, Sequence[str]], comment: str) -> str:
    """The same for a script that quantizes by itself."""
    listed = {name: list(members) for name, members in nodes.items()}
    return PYTHON.format(comment=comment, nodes=json.dumps(listed, indent=4), precision=precision)


def _point(
    choice: frozenset[int],
    program: ExecutorchProgram,
    plan: ExecutorchPlan,
    compiled: Mapping[str, Result],
    run: Result | None,
) -> Point:
    try:
        result = require_done(program, plan, compiled)
    except ToolkitError as error:
        if error.exit_code != 1:
            raise
        return Point(choice, failed=error.message.splitlines()[0])
    if run is None or not ran(run):
        failure = run and run.failure
        return Point(
            choice, failed=failure.message if failure else run.facts["message"] if run else "it was not run"
        )
    assert result.folder is not None
    costs = costs_of(result)
    taken = {
        "ddr": costs["ddr_read"] + costs["ddr_written"],
        "bytes": (result.folder / PROGRAM).stat().st_size,
    }
    seconds = result.facts["cpu_seconds"]
    return Point(choice, run.facts["figures"], taken, cpu_seconds=seconds, worst=run.facts["worst"])
