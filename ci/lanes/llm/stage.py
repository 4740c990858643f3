"""What the stage `test_llm` thinks of compiled language models, and the order of its work: train a float
model, then compile it for each program and measure it.

The functions here are parts of the lane's record (`lane.py`); the work itself is in `steps`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ci.lanes.llm.orders import (
    EXECUTORCH,
    GENIE,
)
from ci.lanes.llm.steps import LlmPlan, measuring, require_installed, training
from ci.lanes.llm.suite import LlmProgram
from ci.lanes.llm.verdicts import findings_of, model_findings, report_row
from ci.suite.lane import Remarks
from ci.suite.options import StageOptions
from ci.suite.running import run_cached_step
from ci.suite.stage import Results, Verdict
from ci.work import (
    Job,
    Result,
)
from provisioning.base.findings import Finding

STAGE, MODELS, VERDICTS = "test_llm", "models", "verdicts"


def plan_of_suite(programs: Sequence[LlmProgram], options: StageOptions, stages: tuple[str, ...]) -> LlmPlan:
    require_installed()
    return LlmPlan.of(programs, options.selection, options.work)


def jobs_of(programs: Sequence[LlmProgram]) -> dict[str, Job]:
    return {program.name: Job(program.name) for program in programs}


def trained_results(plan: LlmPlan, results: Results) -> Mapping[str, Result]:
    """Train one model for all programs."""
    first, *_ = plan.programs
    model = run_cached_step(training(plan), [first])[first.name]
    return {program.name: model for program in plan.programs}


def judged_results(plan: LlmPlan, results: Results) -> Mapping[str, Result]:
    """Compile and measure the programs whose model was trained."""
    models, judged = results[MODELS], dict[str, Result]()
    for through in (GENIE, EXECUTORCH):
        trained = [
            program
            for program in plan.programs
            if program.run.through == through and (model := models[program.name]).folder and not model.failure
        ]
        if trained:
            judged |= run_cached_step(measuring(plan, models, through), trained)
    return judged


def verdict_of(plan: LlmPlan, program: LlmProgram, results: Mapping[str, Result]) -> Verdict | None:
    """Return the verdict. If a program's model was not trained, the finding about the model reports that
    instead."""
    if (result := results.get(VERDICTS)) is None:
        return None
    return Verdict(findings_of(program, result), report_row(program, result))


def remarks_of(plan: LlmPlan, results: Results, findings: Sequence[Finding]) -> Remarks:
    """Report on the model of each case."""
    by_case = {program.case_name: program for program in plan.programs}
    about: list[Finding] = []
    for name, program in by_case.items():
        about += model_findings(name, program.case.perplexity, results[MODELS][program.name])
    return Remarks(about)
