"""The stage `test_device` judges what a device gave for programs, beside what the emulator gave."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ci.hub.service import run_of_plan
from ci.lanes.executorch.findings import costs_of, program_file
from ci.lanes.executorch.judged import samples_of
from ci.lanes.executorch.orders import compiled_in, ran
from ci.lanes.executorch.steps import COMPILED, ON_DEVICE, RAN, ExecutorchPlan
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.suite.context_jobs import sdk_library
from ci.suite.device_stage import (
    DEVICE,
    HostedDevices,
    ReadyProgram,
    device_results,
    measured_on_device,
    repeat_on_device,
    verdict_on_device,
)
from ci.suite.stage import MeasuredValues, Results, Verdict
from ci.work import Result


def results_of_device(plan: ExecutorchPlan, results: Results) -> Mapping[str, Result]:
    ready = partial(_ready_program, plan, results)
    hosted = HostedDevices(run_of_plan(plan, plan.device), sdk_library(plan.sdk))
    return device_results(plan.programs, ready, plan.device, plan.logs, hosted)


def _ready_program(plan: ExecutorchPlan, results: Results, program: ExecutorchProgram) -> ReadyProgram | None:
    run = results[RAN].get(program.name)
    if run is None or not ran(run) or run.folder is None:
        return None
    compiled = results[COMPILED][program.name]
    assert compiled.folder is not None
    samples = samples_of(program, compiled_in(compiled), compiled.folder, run.folder, plan.build_id)
    return ReadyProgram(samples, [program_file(compiled)])


def verdict_of_device(
    plan: ExecutorchPlan, program: ExecutorchProgram, results: Mapping[str, Result]
) -> Verdict | None:
    columns = {"backend": program.backend, "scheme": program.run.precision}
    again = repeat_on_device(SUITES, program, ON_DEVICE, plan.device)
    return verdict_on_device(program, results.get(DEVICE), again, columns)


def measured_of_device(plan: ExecutorchPlan, results: Results) -> MeasuredValues:
    return measured_on_device(
        results[DEVICE], lambda name: {"build_id": plan.build_id, **costs_of(results[COMPILED][name])}
    )
