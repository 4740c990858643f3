"""What the stages that run a suite share: choosing programs, accepting what was measured, and the report.

A lane's stage calls these in turn (CONTRIBUTING.md, "Add a lane")."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ci.cached_steps import Step, WorkPlan, run_step
from ci.jobs import Job, Line, failed
from ci.models.own_packages import NO_PACKAGES, OwnPackages, installed
from ci.outcome import Failure, Refused, Result, WorkerDied, failure_of
from ci.plain import read
from ci.suite.accepted import Baseline, load_baseline, load_tolerances, low_figures, thresholds_of
from ci.suite.accuracy import METRIC, MetricFigures, in_words
from ci.suite.findings import not_passed, one_a_cause, verdict
from ci.suite.installed import source_of_executorch
from ci.suite.options import Accept, Choice, shard_named
from ci.suite.programs import Program, Suites, accepted_thresholds
from ci.trouble import MACHINE
from ci.work import ChildTask, Home, Outcome, run
from provisioning.base import rendering
from provisioning.base.commands import Fix
from provisioning.base.findings import Finding, Metric, Report, Severity
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun

L = TypeVar("L", bound="Plan")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Plan(WorkPlan):
    """Of programs of suites. A lane adds what its steps need."""

    programs: tuple[Program, ...]
    baselines: dict[Path, Baseline]

    def baseline(self, program: Program) -> Baseline:
        return self.baselines[program.suite]


Results = Mapping[str, Mapping[str, Result]]
"""By step, and then by program; the last step is the one that a program's verdict is about."""


def of_program(program: Program, results: Results) -> dict[str, Result]:
    """By step, of those that it came to."""
    return {step: result[program.name] for step, result in results.items() if program.name in result}


@dataclass(frozen=True, slots=True)
class MeasuredValues:
    """What --accept writes, by program; of what was not measured nothing."""

    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Its accuracy, which gives thresholds."""
    recorded: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What the baseline has of it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a lane says of a program that it came to a verdict on."""

    findings: Iterable[Finding]
    row: Mapping[str, Metric]
    """What its row of the report has beside what all lanes' rows have."""


def chosen(
    suites: Suites,
    choice: Choice,
    selection: Selection,
    jobs_of: Callable[[Sequence[Any]], Mapping[str, Job]],
) -> list[Any]:
    """The chosen programs. `jobs_of` gives the job of each program, for --shard: programs of one job stay
    together."""
    programs = suites.choose(
        suites.all_programs(choice.suites, selection.named_socs, profile=selection.profile),
        tags=choice.tags,
        words=choice.words,
    )
    if choice.shard:
        jobs = jobs_of(programs)
        part = shard_named(list({job.name: job for job in jobs.values()}.values()), choice.shard)
        programs = [program for program in programs if jobs[program.name] in part]
    return programs


def baselines_of(programs: Iterable[Program], profile: str) -> dict[Path, Baseline]:
    """By suite."""
    suites = {program.suite: program for program in programs}
    return {suite: load_baseline(suite, profile, program.lane) for suite, program in suites.items()}


def show_list(programs: Sequence[Program]) -> int:
    """For --list; returns the exit code."""
    for program in programs:
        sys.stdout.write(f"{program.name}  [{', '.join(program.run.tags)}]\n")
    return 0


def _write_accepted(suites: Suites, plan: Plan, measured: MeasuredValues, stage: str) -> None:
    """Replace what was accepted of these programs: fields of a baseline, and thresholds from figures. Runs
    that their suites have no more are dropped."""

    def again(program: Program) -> Fix:
        return suites.repeat(program, stage, every_chip=True).plus("--accept")

    margin_db = load_tolerances().sqnr_margin_db
    for suite, baseline in list(plan.baselines.items()):
        all_programs = suites.programs_of(suite, profile=plan.selection.profile)
        figures = _of_suite(suite, plan.programs, measured.figures)
        runs = {program.run_name for program in all_programs}
        recorded = _of_suite(suite, plan.programs, measured.recorded)
        thresholds = thresholds_of(all_programs, figures, margin_db, again)
        plan.baselines[suite] = baseline.rewritten(recorded, thresholds, runs)


def _of_suite(suite: Path, programs: Sequence[Program], values: Mapping[str, V]) -> dict[str, V]:
    return {
        program.name: values[program.name]
        for program in programs
        if program.suite == suite and program.name in values
    }


def accepted(accept: Accept, suites: Suites, plan: L, measured: MeasuredValues, stage: StageRun) -> L:
    """Write what was measured if it is accepted; returns the plan with the thresholds of now."""
    if not accept.values:
        return plan
    reasons = dict(_reasons(plan, measured.figures, accept.reason, stage.command))
    recorded = {name: {**fields, **reasons.get(name, {})} for name, fields in measured.recorded.items()}
    _write_accepted(suites, plan, MeasuredValues(measured.figures, recorded), stage.stage)
    profile = plan.selection.profile
    known = {suite: accepted_thresholds(suite, profile, suites.lane) for suite in plan.baselines}
    programs = (
        replace(program, accepted=known[program.suite][program.run_name]) for program in plan.programs
    )
    return replace(plan, programs=tuple(programs))


def _reasons(
    plan: Plan, figures: Mapping[str, Mapping[str, float]], reason: str, command: str
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """By program the field of its reason. Raises CheckFailed if what is accepted needs one and has none."""
    margin_db = load_tolerances().sqnr_margin_db
    low = {
        program.name: low_figures(figures[program.name], margin_db, program.demanded, program.run.kind)
        for program in plan.programs
        if program.name in figures
    }
    for suite, baseline in plan.baselines.items():
        reasons = baseline.reasons(_of_suite(suite, plan.programs, figures), reason, command, low)
        yield from ((name, {"reason": text}) for name, text in reasons.items())


def report(
    stage: StageRun, suites: Suites, plan: Plan, verdicts: Mapping[str, Verdict], results: Results
) -> None:
    """Put the findings and the row of each program into the report. A program without a verdict has none in
    `verdicts`: what it needs has failed."""
    rows: dict[str, Metric] = {}
    failed = 0
    for program in plan.programs:
        if own := verdicts.get(program.name):
            findings = one_a_cause([*own.findings])
            stage.findings += findings
            failed += verdict(findings) == "fail"
            rows[program.name] = {
                "suite": str(program.suite),
                "case": program.case_name,
                "run": program.run.name,
                "soc": program.soc,
                "tags": list(program.run.tags),
                "verdict": verdict(findings),
                "command": suites.repeat(program, stage.stage),
                **own.row,
            }
    for result in results.values():
        stage.findings += not_passed(plan.programs, result)
    *_, last = results.values()
    stage.metrics |= {
        "selected": len(plan.programs),
        "cached": sum(result.cached for result in last.values()),
        "failed": failed,
        "programs": rows,
        **source_of_executorch(),
    }
    suites_with_packages = {row.needs: row.suite for row in plan.programs if row.needs}
    packages: dict[str, Metric] = {
        str(suite): dict(installed(needs, plan.selection.store).versions)
        for needs, suite in suites_with_packages.items()
    }
    if packages:
        stage.metrics["packages"] = packages


def machine_failed(findings: Iterable[Finding]) -> bool:
    """Whether the machine kept us from a verdict: exit code 1 says that everything could be checked."""
    return any(
        finding.severity is Severity.ERROR and finding.rule.endswith(f"-{MACHINE}") for finding in findings
    )


def finish(stage: StageRun, selection: Selection, *, lacking: bool = False) -> int:
    """Write and show the report; returns the exit code. For `lacking` see StageRun.close."""
    lacking = lacking or machine_failed(stage.findings)

    def show(report: Report) -> None:
        figures = {name: value for name, value in report.metrics.items() if name != "programs"}
        rendering.show(replace(report, metrics=figures, artifacts=()))

    return stage.close(selection.reports, show=show, lacking=lacking)


def export_log(plan: Plan, program: Program) -> Path:
    """Cases of equal names in two suites have logs of their own."""
    alike = [row.suite for row in plan.programs if row.case_name == program.case_name]
    earlier = [*dict.fromkeys([*alike, program.suite])].index(program.suite)
    # No case name contains a space.
    number = f" {earlier + 1}" if earlier else ""
    return (plan.logs / f"{program.case_name}{number}.export.log").absolute()


def _subject_of(program: Program) -> str:
    suite = program.suite
    return f"{program.name} {suite.parent.name}/{suite.name} {program.model_without_suite}"


def run_cached_step(step: Step, programs: Iterable[Program]) -> dict[str, Result]:
    """The result of each program by name."""
    chosen, results = list(programs), dict[str, Result]()
    step = replace(step, subject=_subject_of)
    groups = by_packages(chosen, step.plan.selection.store) if step.own_packages else [(NO_PACKAGES, chosen)]
    for own, alike in groups:
        results |= run_step(step, alike, own)
    return results


def by_packages(programs: Sequence[Program], store: Path) -> Iterator[tuple[OwnPackages, list[Program]]]:
    """The programs of suites with equal packages of their own, with these packages installed."""
    for needs in dict.fromkeys(program.needs for program in programs):
        yield installed(needs, store), [program for program in programs if program.needs == needs]


def scores_of(
    plan: Plan,
    programs: Sequence[Program],
    outputs: Mapping[str, Path],
    home: Callable[[OwnPackages], Home],
    function: str,
    request: Callable[[Any], Mapping[str, object]],
) -> dict[str, MetricFigures | Failure]:
    """The figures of each program's metric. `outputs` are the folders of what each gave, which may be cached.

    `function` is MODULE:FUNCTION; `request` says what it gets beside the metric and the folder."""
    results: dict[str, MetricFigures | Failure] = {}
    for own, alike in by_packages(programs, plan.selection.store):
        tasks = [
            ChildTask(
                program.name,
                function,
                {
                    "do": METRIC,
                    "function": str(program.search_path / program.case.metric.function),
                    "outputs": str(outputs[program.name]),
                    "working_folder": str(program.working_folder),
                    "log": str(_log(plan, program.name)),
                    **request(program),
                },
                plan.work.timeout,
            )
            for program in alike
        ]
        ended = run(tasks, home(own), "metrics of tasks", _line, plan.work.jobs)
        results |= {name: _result(outcome, _log(plan, name)) for name, outcome in ended.items()}
    return results


def _log(plan: Plan, name: str) -> Path:
    return plan.logs.absolute() / METRIC / f"{name}.log"


def _line(name: str, outcome: Outcome) -> Line:
    if isinstance(outcome, Refused):
        return failed(f"{outcome.kind}: {outcome.message}")
    if isinstance(outcome, WorkerDied):
        return failed(f"{outcome.kind}: {outcome.how}")
    return Line("measured", in_words(read(MetricFigures, outcome).figures))


def _result(outcome: Outcome, log: Path) -> MetricFigures | Failure:
    if isinstance(outcome, Refused | WorkerDied):
        return failure_of(outcome, log)
    log.unlink(missing_ok=True)
    return read(MetricFigures, outcome)
