"""This is the lane of ONNX models."""

from __future__ import annotations

from ci.explain.lane import ModelLane
from ci.lanes.onnx import HEAD, explain, product
from ci.lanes.onnx.exporting import export_to_onnx
from ci.lanes.onnx.stage import (
    COMPILED,
    STAGE,
    compiled_results,
    jobs_of,
    measured_of,
    plan_of_suite,
    remarks_of,
    verdict_of,
)
from ci.lanes.onnx.suite import SUITES
from ci.suite.lane import LaneStep, StageJudgement

LANE = ModelLane(
    head=HEAD,
    suites=SUITES,
    jobs=jobs_of,
    plan=plan_of_suite,
    steps=(LaneStep(COMPILED, compiled_results),),
    judgements=(
        StageJudgement(
            stage=STAGE,
            rule="onnx-not-run",
            last_step=COMPILED,
            verdict=verdict_of,
            measured=measured_of,
            remarks=remarks_of,
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
