"""The metric of a task, computed anew each time: the user's function may read what no key knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.models.own_packages import OwnPackages
from ci.outcome import Failure, Refused, Result, WorkerDied
from ci.progress import Line, failed
from ci.suite.accuracy import in_words
from ci.suite.metric import METRIC
from ci.suite.program_steps import by_packages
from ci.suite.programs import Program
from ci.suite.stage import Plan
from ci.work import ChildTask, Home, Outcome, run
from provisioning.base.commands import session


def scores_of(
    plan: Plan,
    programs: Sequence[Program],
    outputs: Mapping[str, Path],
    home: Callable[[OwnPackages], Home],
    function: str,
    request: Callable[[Any], Mapping[str, Any]],
) -> dict[str, Result]:
    """The figures of each program's metric. `outputs` are the folders of what each gave, which may be cached.

    `function` is MODULE:FUNCTION; `request` says what it gets beside the metric and the folder."""
    results: dict[str, Result] = {}
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
    return Line("measured", in_words(outcome["figures"]))


def _result(outcome: Outcome, log: Path) -> Result:
    if isinstance(outcome, Refused):
        failure = Failure(
            outcome.kind,
            outcome.message,
            outcome.fix,
            log,
            exit_code=outcome.exit_code,
            details=outcome.details,
        )
        return Result(failure=failure)
    if isinstance(outcome, WorkerDied):
        if trouble := outcome.trouble(log):
            return Result(failure=Failure.of(trouble, log))
        late = outcome.kind == "timeout"
        fix = "give it longer with --timeout" if late else session("diagnose", log)
        return Result(failure=Failure(outcome.kind, outcome.sentence(log), fix, log))
    log.unlink(missing_ok=True)
    return Result(outcome)
