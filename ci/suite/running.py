"""Run the steps of a plan with the packages that each program's suite needs, and compute the metrics of
tasks.

A lane calls `run_cached_step` for each of its steps. If the model of a command line imports a module that is
not installed, the step runs again with the packages of the project around the model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ci.models.own_packages import OwnPackages, install_packages
from ci.models.package_needs import Needs
from ci.models.projects import PACKAGES, contradictions, dependencies_of, nearest_project, version_at_hand
from ci.models.uv_packages import LOCKED_ALWAYS, locked_versions
from ci.suite.figures import METRIC, describe_figures
from ci.suite.programs import P, Program
from ci.suite.stage import Plan
from ci.suite.task_metric import MetricFigures
from ci.work import (
    ChildTask,
    Failure,
    Home,
    Line,
    Result,
    Step,
    TaskOutcome,
    WorkPlan,
    failed_line,
    read,
    run_step,
    run_tasks,
)
from provisioning.base.commands import Fix


def _subject_of(program: Program) -> str:
    suite = program.suite
    return f"{program.name} {suite.parent.name}/{suite.name} {program.model_without_suite}"


def run_cached_step(step: Step[P], programs: Iterable[P]) -> dict[str, Result]:
    """The result of each program by name."""
    results = dict[str, Result]()
    step = replace(step, subject=_subject_of)
    for own, alike in group_by_packages(step.plan, list(programs)):
        answers = run_step(step, alike, own)
        if module := next(filter(None, map(_missing_module, answers.values())), ""):
            answers = _retry_with_project(step, alike, answers, module)
        results |= answers
    return results


def _missing_module(result: Result) -> str:
    """The module that the model imports and that is not installed; empty if there is none."""
    return str(result.failure.details.get("missing") or "") if result.failure else ""


def _retry_with_project(
    step: Step[P], programs: Sequence[P], answers: dict[str, Result], module: str
) -> dict[str, Result]:
    """Return the results of a command line's model. If a module is missing, try again with the packages of
    its project; else the failure names the flag to use."""
    needs = programs[0].needs
    if needs.model is None:
        return answers
    if own := packages_of_project(needs, module, step.plan.selection.store):
        answers = run_step(step, programs, own)
        module = next(filter(None, map(_missing_module, answers.values())), "")
    fix = advice(needs, module)
    return {name: _add_advice(result, fix) for name, result in answers.items()}


def packages_of_project(needs: Needs, module: str, store: Path) -> OwnPackages | None:
    """Install what the project of a model brings, if the model lacks this module. Returns None if there is no
    such project, if the user excludes it, or if it was tried already."""
    project = nearest_project(needs.model) if needs.model and needs.takes_nearest else None
    if project is None or needs in _WITH_PROJECT:
        return None
    sys.stderr.write(f"{module} is not installed: taking the packages of {project} (or --no-project)\n")
    pins = {name: pin for name, pin in locked_versions().items() if name in LOCKED_ALWAYS}
    for text, name, pin in contradictions(dependencies_of(project), pins):
        sys.stderr.write(f"its {text} does not count: {name} is {pin}\n")
    _WITH_PROJECT[needs] = install_packages(replace(needs, project=project, is_lenient=True), store)
    return _WITH_PROJECT[needs]


def modules_beside(model: Path, module: str) -> str:
    """Return the module beside a model's file that may be meant by another name; empty if there is none."""
    names = [path.stem for path in model.parent.glob("*.py") if path != model]
    return next(iter(get_close_matches(module, names, n=1, cutoff=0.8)), "")


def advice(needs: Needs, module: str) -> Fix:
    """The flag that names the package of a module that a model lacks."""
    if needs.model and (near := modules_beside(needs.model, module)):
        return Fix(f"did you mean {near}, which is beside {needs.model.name}?")
    package = version_at_hand(module, nearest_project(needs.model) if needs.model else None, os.environ)
    package = package or PACKAGES.get(module, "")
    return (
        Fix("{}", ("--with", package)) if package else Fix("{}, if that is its package", ("--with", module))
    )


def _add_advice(result: Result, fix: Fix) -> Result:
    if result.failure is None or not _missing_module(result):
        return result
    return replace(result, failure=replace(result.failure, fix=fix))


_WITH_PROJECT: dict[Needs, OwnPackages] = {}
"""The packages that this process has installed from the projects of models. Later steps use them, too."""


def group_by_packages(plan: WorkPlan, programs: Sequence[P]) -> Iterator[tuple[OwnPackages, list[P]]]:
    """Group the programs by the packages of their suites; yields each group with its packages."""
    assert isinstance(plan, Plan)
    for needs in dict.fromkeys(program.needs for program in programs):
        own = _WITH_PROJECT.get(needs) or plan.packages[needs]
        yield own, [program for program in programs if program.needs == needs]


def scores_of(
    plan: Plan,
    programs: Sequence[Program],
    outputs: Mapping[str, Path],
    home: Callable[[OwnPackages], Home],
    function: str,
    request: Callable[[Any], Mapping[str, object]],
) -> dict[str, MetricFigures | Failure]:
    """Compute the figures of each program's metric. `outputs` are the folders with each program's outputs,
    which may be cached.

    `function` is MODULE:FUNCTION; `request` builds its request from the metric and the folder."""
    results: dict[str, MetricFigures | Failure] = {}
    for own, alike in group_by_packages(plan, programs):
        tasks = [
            ChildTask(
                program.name,
                function,
                {
                    "do": METRIC,
                    "function": str(program.search_path / program.case.metric.function),
                    "outputs": str(outputs[program.name]),
                    "working_folder": str(program.working_folder),
                    **request(program),
                },
                plan.work.timeout,
                _log(plan, program.name),
            )
            for program in alike
        ]
        outcomes = run_tasks(tasks, home(own), "metrics of tasks", _line, plan.work.jobs)
        results |= {
            name: outcome if isinstance(outcome, Failure) else _metric_of(outcome, _log(plan, name))
            for name, outcome in outcomes.items()
        }
    return results


def _log(plan: Plan, name: str) -> Path:
    return plan.logs.absolute() / METRIC / f"{name}.log"


def _line(name: str, outcome: TaskOutcome) -> Line:
    if isinstance(outcome, Failure):
        return failed_line(f"{outcome.kind}: {outcome.message}")
    return Line("measured", describe_figures(read(MetricFigures, outcome).figures))


def _metric_of(reply: dict[str, object], log: Path) -> MetricFigures:
    log.unlink(missing_ok=True)
    return read(MetricFigures, reply)
