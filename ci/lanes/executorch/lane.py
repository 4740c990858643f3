"""The lane of PyTorch models: one pass over a suite, which two stages judge."""

from __future__ import annotations

from ci.lanes.executorch import HEAD
from ci.lanes.executorch.findings import only_library_missing
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
from ci.lanes.executorch.steps import COMPILED, EMULATION, LOWERING, RAN, plan_of_suite
from ci.lanes.executorch.suite import SUITES
from ci.suite.lane import Lane, LaneStep, StageJudgement

LANE = Lane(
    head=HEAD,
    suites=SUITES,
    jobs=jobs_of,
    plan=plan_of_suite,
    steps=(LaneStep(COMPILED, compiled_results), LaneStep(RAN, run_results)),
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
        ),
    ),
)
