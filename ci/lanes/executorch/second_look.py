"""Look again at a program that is far from float, before it is called wrong: it may choose otherwise than
float where rounding decides, or one sample may lie outside the ranges that were calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from ci.lanes.executorch import CHOSEN
from ci.lanes.executorch.orders import (
    ChoicesOptions,
    ComparedFiles,
    EmulatorRun,
    JudgedChoices,
    JudgedRange,
    RangeOptions,
    SecondComparison,
    compiled_in,
    ran,
    ran_in,
)
from ci.lanes.executorch.run_worker import OUTPUTS
from ci.lanes.executorch.steps import ExecutorchPlan, compared_files, folder_of, run_step, worker_step
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.suite.figures import lone_sample
from ci.suite.findings import below_usual
from ci.suite.limits import missed_thresholds
from ci.suite.runner import Runner
from ci.work import Folder, Result

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


def look_again(
    plan: ExecutorchPlan, runner: Runner, compiled: Mapping[str, Result], results: Mapping[str, Result]
) -> dict[str, Result]:
    """Return the results, with the figures that a second look gives."""
    looked = {}
    for program in plan.programs:
        result = results[program.name]
        if ran(result):
            look = SecondLook(plan, runner, program, compiled, result)
            result = replace(result, record=look.record())
        looked[program.name] = result
    return looked


@dataclass(frozen=True)
class SecondLook:
    """It looks again at one program."""

    plan: ExecutorchPlan
    runner: Runner
    program: ExecutorchProgram
    compiled: Mapping[str, Result]
    result: Result

    def record(self) -> EmulatorRun:
        record = ran_in(self.result)
        if self._is_far(record) and compiled_in(self.compiled[self.program.name]).chooses_inside:
            record = self._judge_choices(record)
        sample = lone_sample(record.each_db)
        chooses = any(row.flipped for row in record.flips)
        if sample is not None and self.program.run.quantizes and not chooses and self._is_far(record):
            record = self._leave_out(record, sample)
        return record

    def _is_far(self, record: EmulatorRun) -> bool:
        kind, figures = self.program.run.kind, record.figures
        return bool(missed_thresholds(self.program.thresholds, figures, kind) or below_usual(kind, figures))

    def _judge_choices(self, record: EmulatorRun) -> EmulatorRun:
        compiled, compared, outputs = self._files()
        asks = ChoicesOptions(runner=self.runner.order, compiled=compiled, compared=compared, outputs=outputs)
        choices = self._answer("choices", "what the program chooses", asks, JudgedChoices)
        if choices is None:
            return record
        return _use(choices.compared, replace(record, flips=choices.flips))

    def _leave_out(self, record: EmulatorRun, sample: int) -> EmulatorRun:
        compiled, compared, outputs = self._files()
        asks = RangeOptions(sample=sample, compiled=compiled, compared=compared, outputs=outputs)
        judged = self._answer("range", "whether one sample is clipped", asks, JudgedRange)
        if judged is None or judged.outside is None:
            return record
        return _use(judged.compared, replace(record, outside=judged.outside))

    def _files(self) -> tuple[Folder, ComparedFiles, Folder]:
        """Return the folder of the compiled program, its files that are compared, and that of its outputs."""
        assert self.result.folder is not None
        compiled = Folder(str(folder_of(self.compiled, self.program)), (".raw", CHOSEN))
        compared = compared_files(self.program, self.compiled)
        return compiled, compared, Folder(str(self.result.folder / OUTPUTS))

    def _answer(self, kind: str, title: str, asks: DataclassInstance, reply: type[T]) -> T | None:
        """Return the worker's answer; None if its work fails: the figures then stand as they are."""
        plan = replace(self.plan, programs=(self.program,))
        step = worker_step(plan, kind, f"{kind}_judged", asks, title=title, reply=reply)
        result = run_step(step)[self.program.name]
        return None if result.failure else result.read(reply)


def _use(compared: SecondComparison | None, record: EmulatorRun) -> EmulatorRun:
    if compared is None:
        return record
    each_db = compared.each_db or record.each_db
    return replace(record, figures=compared.figures, slices=compared.slices, each_db=each_db)
