"""Accept what a stage measured (`--accept`): each program's values go into the baseline of its suite, and a
run whose chips were all measured gets new thresholds."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ci.suite.accepted import (
    accepted_path,
    derive_thresholds,
    load_baseline,
    load_tolerances,
    low_figures,
    threshold_values,
)
from ci.suite.limits import below_floor
from ci.suite.programs import P, Program, Suites, add_accepted
from ci.suite.stage import MeasuredValues, Plan
from provisioning.accepted_file import Values
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed
from provisioning.base.stage_run import StageRun

L = TypeVar("L", bound=Plan)
V = TypeVar("V")


def accept_values(is_asked: bool, suites: Suites[P], plan: L, values: MeasuredValues, stage: StageRun) -> L:
    """Accept the measured values if the user asks for it; returns the plan with the accepted values. Runs
    that their suites no longer have are dropped."""
    if not is_asked:
        return plan

    def accept_again(program: Program) -> Fix:
        return suites.repeat(program, stage.stage, every_chip=True).plus("--accept")

    profile, margin_db = plan.selection.profile, load_tolerances().sqnr_margin_db
    _require_enough(plan.programs, values.figures, margin_db)
    accepted = list[Program]()
    for suite in dict.fromkeys(program.suite for program in plan.programs):
        programs = [program for program in plan.programs if program.suite == suite]
        all_programs = suites.programs_of(suite, profile=profile)
        thresholds = thresholds_of(
            all_programs, _values_of(programs, values.figures), margin_db, accept_again
        )
        runs = {program.run_name for program in all_programs}
        baseline = load_baseline(suite, profile, suites.lane)
        baseline.rewritten(_values_of(programs, values.recorded), thresholds, runs)
        accepted += add_accepted(programs)
    return replace(plan, programs=tuple(accepted))


def _require_enough(
    programs: Sequence[Program], figures: Mapping[str, Mapping[str, float]], margin_db: float
) -> None:
    """Refuse figures below the limits of all programs: only a person may accept those, by hand."""
    low = [
        f"{program.name} ({name} {figures[program.name][name]:g})"
        for program in programs
        if program.name in figures
        for name in low_figures(
            figures[program.name],
            margin_db,
            program.run.kind,
            demanded=program.demanded,
            accepted=program.accepted.model_dump(exclude_none=True),
        )
    ]
    if low:
        raise CheckFailed(
            f"less than is required of all programs is not accepted: {'; '.join(low)}",
            fix="find out why; if it cannot be better, write its thresholds into the suite, by hand",
        )


def _values_of(programs: Sequence[Program], values: Mapping[str, V]) -> dict[str, V]:
    return {program.name: values[program.name] for program in programs if program.name in values}


def thresholds_of(
    programs: Sequence[Program],
    figures: Mapping[str, Mapping[str, float]],
    margin_db: float,
    again: Callable[[Program], str],
) -> dict[str, Values]:
    """The thresholds of each run whose chips all have figures; chips that other programs of the run name
    count too. Figures that the suite itself demands get none.

    Prints the runs that get none; `again` is the command that measures each chip of a run."""
    figures_by_run: dict[str, list[Mapping[str, float]]] = {}
    for name, figure in figures.items():
        figures_by_run.setdefault(name.rpartition("/")[0], []).append(figure)
    runs: dict[str, list[Program]] = {}
    for program in programs:
        runs.setdefault(program.run_name, []).append(program)
    thresholds, notes = {}, []
    for name, programs_of_run in runs.items():
        first, of_run = programs_of_run[0], figures_by_run.get(name, [])
        if first.thresholds is None or not of_run:
            continue
        title = f"{name} keeps its thresholds"
        bounds = derive_thresholds(accepted_figures(first, of_run), of_run, margin_db)
        if socs := [program.soc for program in programs_of_run if program.name not in figures]:
            verb = "was" if len(socs) == 1 else "were"
            notes.append((f"{title}: {', '.join(socs)} {verb} not measured", again(first)))
        elif absent := ", ".join(figure for figure, value in bounds.items() if math.isnan(value)):
            place = accepted_path(first.suite, first.profile)
            notes.append((f"{title}: its programs have no {absent}", f"remove {absent} of it from {place}"))
        else:
            thresholds[name] = threshold_values(bounds)
    sys.stderr.writelines(f"{message}; {fix}\n" for message, fix in notes)
    return thresholds


def accepted_figures(program: Program, rows: Sequence[Mapping[str, float]]) -> list[str]:
    """The figures that get a threshold: those that programs with such outputs always need, and those that
    already have one, without those that the suite demands."""
    figures = {name for row in rows for name in row}
    has = [name for name in program.run.required_figures if name.removeprefix("reference_") in figures]
    low = [name for figures in rows for name in below_floor(figures, program.run.kind)]
    names = dict.fromkeys([*has, *program.accepted.model_dump(exclude_none=True), *low])
    return [name for name in names if name not in program.demanded]
