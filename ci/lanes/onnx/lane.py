"""The lane of ONNX models."""

from __future__ import annotations

from ci.lanes.onnx import HEAD
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
from ci.suite.lane import Lane, LaneStep, StageJudgement

LANE = Lane(
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
)
