"""This is the lane of language models."""

from __future__ import annotations

from ci.explain.lane import ModelLane
from ci.lanes.llm import HEAD, product
from ci.lanes.llm.commands import run_model
from ci.lanes.llm.stage import (
    MODELS,
    STAGE,
    VERDICTS,
    jobs_of,
    judged_results,
    plan_of_suite,
    remarks_of,
    trained_results,
    verdict_of,
)
from ci.lanes.llm.suite import SUITES
from ci.suite.lane import LaneStep, StageJudgement

LANE = ModelLane(
    head=HEAD,
    suites=SUITES,
    jobs=jobs_of,
    plan=plan_of_suite,
    steps=(LaneStep(MODELS, trained_results), LaneStep(VERDICTS, judged_results)),
    judgements=(
        StageJudgement(
            stage=STAGE,
            rule="llm-not-run",
            last_step=VERDICTS,
            verdict=verdict_of,
            remarks=remarks_of,
        ),
    ),
    programs=product.programs_of,
    model_plan=product.plan_to_compile,
    model_steps=(LaneStep(product.COMPILED, product.compiled_results),),
    product=product.product_of,
    continue_text=run_model,
)
