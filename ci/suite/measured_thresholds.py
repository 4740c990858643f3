"""Thresholds from measured figures."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

from ci.suite.accuracy import at_worst, below_floor, required_of, rounded
from ci.suite.programs import THRESHOLD_NAMES, AnyProgram
from ci.suite.suite_file import accepted_path
from provisioning.base.accepted import Values

NEAREST_DB, NEAREST_COSINE = 100.0, 0.999999
"""The strictest threshold: beyond it, one more bit of rounding would fail."""


def thresholds_of(
    programs: Sequence[AnyProgram],
    figures: Mapping[str, Mapping[str, float]],
    margin_db: float,
    again: Callable[[AnyProgram], str],
) -> dict[str, Values]:
    """By run, the thresholds of every run of which each chip has figures; those of other chips count too.
    Figures that the suite itself demands get none.

    Says of which run it has none; `again` is the command that measures each chip of it."""
    measured: dict[str, list[Mapping[str, float]]] = {}
    for name, figure in figures.items():
        measured.setdefault(name.rpartition("/")[0], []).append(figure)
    runs: dict[str, list[AnyProgram]] = {}
    for program in programs:
        runs.setdefault(program.run_name, []).append(program)
    wanted, kept = {}, []
    for name, mine in runs.items():
        first, of_run = mine[0], measured.get(name, [])
        if first.thresholds is None or not of_run:
            continue
        title = f"{name} keeps its thresholds"
        held = derived(accepted_figures(first, of_run), of_run, margin_db)
        if missing := [program.soc for program in mine if program.name not in figures]:
            verb = "was" if len(missing) == 1 else "were"
            kept.append((f"{title}: {', '.join(missing)} {verb} not measured", again(first)))
        elif absent := ", ".join(figure for figure, value in held.items() if math.isnan(value)):
            place = accepted_path(first.suite, first.profile)
            kept.append((f"{title}: its programs have no {absent}", f"remove {absent} of it from {place}"))
        else:
            wanted[name] = threshold_values(held)
    sys.stderr.writelines(f"{message}; {fix}\n" for message, fix in kept)
    return wanted


def accepted_figures(program: AnyProgram, measured: Sequence[Mapping[str, float]]) -> list[str]:
    """Figures that get a threshold: those that always do of floats or integers, where the programs have such
    outputs, and those that have one; without those that the suite demands."""
    has = [
        name
        for name in program.run.required_figures
        if any(name.removeprefix("reference_") in row for row in measured)
    ]
    low = [name for figures in measured for name in below_floor(figures, program.run.kind)]
    names = dict.fromkeys([*has, *program.accepted.model_dump(exclude_none=True), *low])
    return [name for name in names if name not in program.demanded]


def threshold_values(thresholds: Mapping[str, float]) -> Values:
    """As a file has them; None is not there."""
    return {row: thresholds.get(name) for name, row in THRESHOLD_NAMES.items()}


def derived(
    names: Collection[str], measured: Sequence[Mapping[str, float]], margin_db: float
) -> dict[str, float]:
    """For each of these figures the worst of all chips less the margin; NaN if one has none. Derived from
    what is stored of them.

    A top-1 agreement of zero cannot be missed, so it gives no threshold."""
    measured = [rounded(figures) for figures in measured]
    values = {
        name: _threshold(name, [figures.get(name, math.nan) for figures in measured], margin_db)
        for name in names
    }
    return {name: value for name, value in values.items() if name != "top1" or value}


def below_required(thresholds: Mapping[str, float], kind: str) -> list[str]:
    """Those that need a reason."""
    required = required_of(kind)
    return [name for name, least in required.items() if not thresholds.get(name, least) >= least]


def low_figures(
    figures: Mapping[str, float], margin_db: float, demanded: Collection[str] = (), kind: str = ""
) -> list[str]:
    """Those that give a threshold below what is required. Those that the suite demands give none."""
    names = [name for name in required_of(kind) if name in figures and name not in demanded]
    if "slice_sqnr_db" in names and "slice_sqnr_db" not in below_floor(figures, kind):
        names.remove("slice_sqnr_db")
    return below_required(derived(names, [figures], margin_db), kind)


def _threshold(name: str, values: Sequence[float], margin_db: float) -> float:
    if not all(map(math.isfinite, values)):
        return math.nan
    if name.endswith("sqnr_db"):
        return max(0.0, _down(min(*values, NEAREST_DB) - margin_db, 1))
    if name.endswith("cosine"):
        # The distance from 1 grows with the power of the noise.
        return max(0.0, min(_down(1 - (1 - min(values)) * 10 ** (margin_db / 10), 6), NEAREST_COSINE))
    if name in ("top1", "metric") or name.endswith("agreement"):
        return at_worst(name, min(values))
    return at_worst(name, max(values) * 10 ** (margin_db / 20))


def _down(value: float, digits: int) -> float:
    # Round first, because 0.3 - 0.1 is less than 0.2 in binary and would be cut to 0.1.
    return math.floor(round(value * 10.0**digits, 6)) / 10.0**digits
