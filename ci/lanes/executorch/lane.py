"""The lane of PyTorch models makes one pass over a suite, which three stages judge."""

from __future__ import annotations

from ci.explain.lane import ModelLane
from ci.lanes.executorch import HEAD, explain
from ci.lanes.executorch.findings import only_library_missing
from ci.lanes.executorch.on_device import measured_of_device, results_of_device, verdict_of_device
from ci.lanes.executorch.product import product_of, quantize_model
from ci.lanes.executorch.run_program import run_program
from ci.lanes.executorch.stage import (
    compiled_results,
    jobs_of,
    measured_of_emulation,
    measured_of_lowering,
    remarks_of_emulation,
    remarks_of_lowering,
    run_results,
    verdict_of_emulation,
    verdict_of_lowering,
)
from ci.lanes.executorch.steps import COMPILED, EMULATION, LOWERING, ON_DEVICE, RAN, plan_of_suite
from ci.lanes.executorch.suite import SUITES
from ci.lanes.executorch.typed_program import plan_to_compile, programs_of
from ci.suite.device_stage import DEVICE
from ci.suite.lane import LaneStep, StageJudgement

STEPS = (LaneStep(COMPILED, compiled_results), LaneStep(RAN, run_results))

LANE = ModelLane(
    head=HEAD,
    suites=SUITES,
    jobs=jobs_of,
    plan=plan_of_suite,
    steps=(*STEPS, LaneStep(DEVICE, results_of_device)),
    judgements=(
        StageJudgement(
            stage=LOWERING,
            rule="lowering-not-run",
            last_step=COMPILED,
            verdict=verdict_of_lowering,
            measured=measured_of_lowering,
            remarks=remarks_of_lowering,
            lacking=only_library_missing,
        ),
        StageJudgement(
            stage=EMULATION,
            rule="emulator-not-run",
            last_step=RAN,
            verdict=verdict_of_emulation,
            measured=measured_of_emulation,
            remarks=remarks_of_emulation,
            lacking=only_library_missing,
        ),
        StageJudgement(
            stage=ON_DEVICE,
            rule="device-not-run",
            last_step=DEVICE,
            verdict=verdict_of_device,
            measured=measured_of_device,
            remarks=remarks_of_emulation,
        ),
    ),
    programs=programs_of,
    model_plan=plan_to_compile,
    model_steps=STEPS,
    product=product_of,
    run_program=run_program,
    quantized=quantize_model,
    searches=explain,
)
