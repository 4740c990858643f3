"""The lane of language models."""

from __future__ import annotations

from ci.lanes.llm import HEAD
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
from ci.suite.lane import Lane, LaneStep, StageJudgement

LANE = Lane(
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
)
