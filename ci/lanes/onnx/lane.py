"""This is the lane of ONNX models."""

from __future__ import annotations

from ci.explain.lane import ModelLane
from ci.lanes.onnx import HEAD, explain, product
from ci.lanes.onnx.exporting import export_to_onnx
from ci.lanes.onnx.on_device import measured_of_device, results_of_device, verdict_of_device
from ci.lanes.onnx.stage import (
    COMPILED,
    ON_DEVICE,
    STAGE,
    compiled_results,
    measured_of,
    plan_of_suite,
    remarks_of,
    verdict_of,
)
from ci.lanes.onnx.steps import jobs_of
from ci.lanes.onnx.suite import SUITES
from ci.suite.device_stage import DEVICE
from ci.suite.lane import LaneStep, StageJudgement

LANE = ModelLane(
    head=HEAD,
    suites=SUITES,
    jobs=jobs_of,
    plan=plan_of_suite,
    steps=(LaneStep(COMPILED, compiled_results), LaneStep(DEVICE, results_of_device)),
    judgements=(
        StageJudgement(
            stage=STAGE,
            rule="onnx-not-run",
            last_step=COMPILED,
            verdict=verdict_of,
            measured=measured_of,
            remarks=remarks_of,
        ),
        StageJudgement(
            stage=ON_DEVICE,
            rule="device-not-run",
            last_step=DEVICE,
            verdict=verdict_of_device,
            measured=measured_of_device,
        ),
    ),
    programs=product.programs_of,
    model_plan=product.plan_to_compile,
    model_steps=(LaneStep(COMPILED, product.compiled_model_results),),
    product=product.product_of,
    run_program=product.run_program,
    quantized=product.quantize_model,
    own_form_of=export_to_onnx,
    forecasted=product.forecast_model,
    searches=explain,
)
