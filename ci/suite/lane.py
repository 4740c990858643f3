"""A lane is one way from a model to the NPU, described by one record. This module runs the programs of a
suite through it.

`ci/lanes/registry.py` names all lanes. Whatever shows, keeps or checks programs asks that registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ci.suite.lane_head import LaneHead
from ci.suite.options import Choice, StageOptions
from ci.suite.programs import P, Suites
from ci.suite.stage import (
    MeasuredValues,
    Plan,
    Results,
    Verdict,
    accepted,
    choose,
    finish,
    report,
    results_of_program,
    show_list,
)
from ci.suite.suite_file import LaneForm
from ci.work.jobs import Job
from ci.work.outcome import Result
from provisioning.base.findings import Finding, Metric
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.base.stage_run import StageRun

L = TypeVar("L", bound=Plan)


@dataclass(frozen=True, slots=True)
class LaneStep(Generic[L]):
    """One step of the work on all programs of a plan."""

    name: str
    results: Callable[[L, Results], Mapping[str, Result]]
    """Returns the result of each program that reaches the step, by name. It receives the results of the steps
    before it."""


@dataclass(frozen=True, slots=True)
class Remarks:
    """Findings and metrics about all programs together."""

    findings: Iterable[Finding] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)


def _nothing_measured(plan: Plan, results: Results) -> MeasuredValues:
    return MeasuredValues()


def _no_remarks(plan: Plan, results: Results, findings: Sequence[Finding]) -> Remarks:
    return Remarks()


def _not_lacking(findings: Sequence[Finding]) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageJudgement(Generic[P, L]):
    """How one stage judges a pass over a suite. Several stages may judge one pass."""

    stage: str
    rule: str
    """The rule of the finding that says why the stage reached no verdict."""
    last_step: str
    """The name of the last step that the stage needs."""
    verdict: Callable[[L, P, Mapping[str, Result]], Verdict | None]
    """Receives the program's results by step. It returns None if something that the program needs has failed;
    that has its own finding."""
    measured: Callable[[L, Results], MeasuredValues] = _nothing_measured
    """Returns the values that --accept writes."""
    remarks: Callable[[L, Results, Sequence[Finding]], Remarks] = _no_remarks
    """Receives the findings of all programs."""
    lacking: Callable[[Sequence[Finding]], bool] = _not_lacking
    """Whether these findings say only that the machine lacks something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane(Generic[P, L]):
    """A lane. P is its type of program; L is its plan, which holds what its steps need."""

    head: LaneHead
    suites: Suites[P]
    jobs: Callable[[Sequence[P]], Mapping[str, Job]]
    """Returns the expected work on each program, by name; programs of one job stay in one shard."""
    plan: Callable[[Sequence[P], StageOptions, str], L]
    """Receives the name of the stage that asks. It raises the error that prevents the lane from working
    here."""
    steps: tuple[LaneStep[L], ...]
    judgements: tuple[StageJudgement[P, L], ...]

    def chosen(self, choice: Choice, selection: Selection) -> list[P]:
        return choose(self.suites, choice, selection, self.jobs)

    def chosen_jobs(self, choice: Choice, selection: Selection) -> list[Job]:
        jobs = self.jobs(self.chosen(choice, selection))
        return list({job.name: job for job in jobs.values()}.values())

    def judgement(self, stage: str) -> StageJudgement[P, L]:
        return next(judgement for judgement in self.judgements if judgement.stage == stage)

    def results(self, plan: L, last_step: str = "") -> dict[str, Mapping[str, Result]]:
        """The results of the steps, up to the step named `last_step`."""
        results: dict[str, Mapping[str, Result]] = {}
        for step in self.steps:
            results[step.name] = step.results(plan, results)
            if step.name == last_step:
                break
        return results

    def run_suite(self, stage: str, options: StageOptions) -> int:
        return run_suite(self, stage, options)


class AnyLane(Protocol):
    """The operations that every lane offers, whatever its programs are."""

    @property
    def head(self) -> LaneHead: ...

    @property
    def suites(self) -> LaneForm: ...

    def chosen_jobs(self, choice: Choice, selection: Selection) -> list[Job]:
        """The work on the chosen programs."""

    def run_suite(self, stage: str, options: StageOptions) -> int:
        """Work on the chosen programs and report. Returns the exit code."""


def run_suite(lane: Lane[P, L], stage_name: str, options: StageOptions) -> int:
    """Run a suite in a stage: every stage that runs suites calls this. Returns the exit code."""
    selection, judgement = options.selection, lane.judgement(stage_name)
    if options.list_only:
        return show_list(lane.chosen(options.choice, selection))
    stage = StageRun(stage_name, selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, judgement.rule):
        plan = lane.plan(lane.chosen(options.choice, selection), options, stage_name)
        results = lane.results(plan, judgement.last_step)
        plan = accepted(options.accept, lane.suites, plan, judgement.measured(plan, results), stage)
        verdicts: dict[str, Verdict] = {}
        for program in lane.suites.own(plan.programs):
            verdict = judgement.verdict(plan, program, results_of_program(program, results))
            if verdict is not None:
                verdicts[program.name] = verdict
        report(stage, lane.suites, plan, verdicts, results)
        remarks = judgement.remarks(plan, results, stage.findings)
        stage.findings += remarks.findings
        stage.metrics |= remarks.metrics
    return finish(stage, selection, lacking=judgement.lacking(stage.findings))
