"""A lane is one way from a model to the NPU, described by one record. This module runs the programs of a
suite through it.

`ci/lanes/registry.py` names all lanes. Whatever shows, keeps or checks programs asks that registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ci.suite.accepting import accept_values
from ci.suite.lane_head import LaneHead
from ci.suite.options import Choice, StageOptions
from ci.suite.programs import P, Suites
from ci.suite.stage import (
    MeasuredValues,
    Plan,
    Results,
    Verdict,
    choose,
    finish,
    report,
    results_of_program,
    show_list,
)
from ci.suite.suite_file import LaneForm
from ci.work import Job, Result
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
    """How one stage judges a pass over a suite. Several stages may judge one pass: each has a report of its
    own. The report of a stage that runs alone has the findings of the judgements before it, too."""

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
    plan: Callable[[Sequence[P], StageOptions, tuple[str, ...]], L]
    """Receives the names of the stages that judge the pass. It raises the error that prevents the lane from
    working here."""
    steps: tuple[LaneStep[L], ...]
    judgements: tuple[StageJudgement[P, L], ...]
    """In the order of the steps that they need."""

    def chosen(self, choice: Choice, selection: Selection) -> list[P]:
        return choose(self.suites, choice, selection, self.jobs)

    def chosen_jobs(self, choice: Choice, selection: Selection) -> list[Job]:
        jobs = self.jobs(self.chosen(choice, selection))
        return list({job.name: job for job in jobs.values()}.values())

    def judgements_by_report(self, stages: Sequence[str]) -> Iterator[tuple[StageJudgement[P, L], ...]]:
        """Yield the judgements in the report of each of these stages: its own is the last, after those that
        no report before it has."""
        judgements = list[StageJudgement[P, L]]()
        for judgement in self.judgements:
            judgements.append(judgement)
            if judgement.stage in stages:
                yield tuple(judgements)
                judgements.clear()

    def work(self, plan: L, results: dict[str, Mapping[str, Result]], last_step: str) -> None:
        """Do the steps up to the one named `last_step` that have no results yet, and add theirs."""
        for step in self.steps:
            if step.name not in results:
                results[step.name] = step.results(plan, results)
            if step.name == last_step:
                return

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


@dataclass(slots=True)
class _StageReport(Generic[P, L]):
    """The report of a stage, and what it will say."""

    run: StageRun
    judgements: tuple[StageJudgement[P, L], ...]

    @property
    def own(self) -> StageJudgement[P, L]:
        return self.judgements[-1]


def run_suite(lane: Lane[P, L], stage_name: str, options: StageOptions) -> int:
    """Run a suite in a stage, or in all stages that `options` names, in one pass: every stage that runs
    suites calls this. Returns the worst exit code."""
    selection, stages = options.selection, options.stages or (stage_name,)
    if options.list_only:
        return show_list(lane.chosen(options.choice, selection))
    waiting = [
        _StageReport(StageRun(judgements[-1].stage, selection.profile, DEFAULT_TARGET), judgements)
        for judgements in lane.judgements_by_report(stages)
    ]
    codes = list[int]()
    results: dict[str, Mapping[str, Result]] = {}
    with _report_errors(waiting, selection):
        plan = lane.plan(lane.chosen(options.choice, selection), options, stages)
        while waiting:
            stage, own = waiting[0].run, waiting[0].own
            if codes:
                stage.begin()
            lane.work(plan, results, own.last_step)
            plan = accept_values(options.accept, lane.suites, plan, own.measured(plan, results), stage)
            _judge(lane, plan, results, waiting[0])
            del waiting[0]
            codes.append(finish(stage, selection, lacking=own.lacking(stage.findings)))
    return max(codes)


@contextmanager
def _report_errors(waiting: Sequence[_StageReport[P, L]], selection: Selection) -> Iterator[None]:
    """Write an error into the reports of all stages that still wait for their verdict."""
    try:
        yield
    except BaseException:
        with ExitStack() as reports:
            for report in waiting:
                reports.enter_context(report.run.reported(selection.reports, report.own.rule))
            raise


def _judge(lane: Lane[P, L], plan: L, results: Results, stage_report: _StageReport[P, L]) -> None:
    """Put the verdict on each program into the report, and what its stage remarks."""
    stage, judgements = stage_report.run, stage_report.judgements
    verdicts: dict[str, Verdict] = {}
    for program in lane.suites.own(plan.programs):
        own_results = results_of_program(program, results)
        by_judgement = [judgement.verdict(plan, program, own_results) for judgement in judgements]
        if verdict := _join_verdicts(by_judgement):
            verdicts[program.name] = verdict
    report(stage, lane.suites, plan, verdicts, results)
    for judgement in judgements:
        remarks = judgement.remarks(plan, results, stage.findings)
        stage.findings += remarks.findings
        stage.metrics |= remarks.metrics


def _join_verdicts(verdicts: Sequence[Verdict | None]) -> Verdict | None:
    """Return the last verdict, with the findings of all. What two of them say is said as the later one says
    it."""
    if verdicts[-1] is None:
        return None
    findings = {
        (finding.rule, finding.message): finding
        for verdict in verdicts
        if verdict is not None
        for finding in verdict.findings
    }
    return Verdict(findings.values(), verdicts[-1].row)
