"""Work on programs of suites, each with the packages of its suite: steps, and the metrics of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci.cached_steps import Step, run_step
from ci.models.own_packages import NO_PACKAGES, OwnPackages, installed
from ci.outcome import Failure, Refused, Result, WorkerDied, failure_of
from ci.plain import read
from ci.progress import Line, failed
from ci.results import folder_digest
from ci.suite.accuracy import in_words
from ci.suite.metric import METRIC, MetricFigures
from ci.suite.programs import NO_SUITE, Program
from ci.suite.stage import Plan
from ci.work import ChildTask, Home, Outcome, run


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


def _code_of(program: Program) -> str:
    # Of a model that no suite has, the folder may be anything, with any number of files.
    return f"{program.suite} {folder_digest(program.suite.parent)}" if program.suite.name != NO_SUITE else ""


def run_cached_step(step: Step, programs: Iterable[Program]) -> dict[str, Result]:
    """The result of each program by name."""
    chosen, results = list(programs), dict[str, Result]()
    step = replace(step, subject=_subject_of, code=_code_of)
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
    for own, mine in by_packages(programs, plan.selection.store):
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
            for program in mine
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
