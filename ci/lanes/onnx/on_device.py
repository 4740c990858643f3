"""The stage `test_onnx_device` judges what a device gave for programs, beside what the emulator gave."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ci.hub.service import run_of_plan
from ci.lanes.onnx.findings import build_id_of, costs_of
from ci.lanes.onnx.orders import CONTEXT
from ci.lanes.onnx.stage import COMPILED, ON_DEVICE
from ci.lanes.onnx.steps import OnnxPlan
from ci.lanes.onnx.suite import SUITES, OnnxProgram
from ci.lanes.onnx.task_files import JUDGED
from ci.suite.context_jobs import onnx_library
from ci.suite.device_stage import (
    DEVICE,
    HostedDevices,
    ReadyProgram,
    device_results,
    measured_on_device,
    repeat_on_device,
    verdict_on_device,
)
from ci.suite.judged_samples import read_samples
from ci.suite.stage import MeasuredValues, Results, Verdict
from ci.work import Result


def results_of_device(plan: OnnxPlan, results: Results) -> Mapping[str, Result]:
    assert plan.device is not None
    hosted = HostedDevices(run_of_plan(plan, plan.device), onnx_library())
    return device_results(plan.programs, partial(_ready_program, results), plan.device, plan.logs, hosted)


def _ready_program(results: Results, program: OnnxProgram) -> ReadyProgram | None:
    folder = results[COMPILED][program.name].folder
    if folder is None or not (folder / JUDGED).is_file():
        return None
    return ReadyProgram(read_samples(folder / JUDGED), sorted((folder / CONTEXT).iterdir()))


def verdict_of_device(plan: OnnxPlan, program: OnnxProgram, results: Mapping[str, Result]) -> Verdict | None:
    assert plan.device is not None
    again = repeat_on_device(SUITES, program, ON_DEVICE, plan.device)
    return verdict_on_device(program, results.get(DEVICE), again, {"precision": program.run.kind})


def measured_of_device(plan: OnnxPlan, results: Results) -> MeasuredValues:
    def fields_of(name: str) -> Mapping[str, object]:
        compiled = results[COMPILED][name]
        return {"build_id": build_id_of(compiled), **costs_of(compiled)}

    return measured_on_device(results[DEVICE], fields_of)
