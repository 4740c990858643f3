"""Write thresholds from measured figures into a suite's file."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomlkit
from tomlkit.items import Table

from ci.pipeline.accuracy import REQUIRED, at_worst, rounded
from ci.pipeline.suite import AnyProgram, Thresholds
from provisioning.base.files import replace_text
from provisioning.base.rendering.text import plural

P = TypeVar("P", bound=AnyProgram[Any, Any])

NEAREST_DB, NEAREST_COSINE = 100.0, 0.999999
"""The strictest threshold: beyond it, one more bit of rounding would fail."""


def update_suite(
    path: Path,
    lane: str,
    programs_of: Callable[[Path], Sequence[P]],
    figures: Mapping[str, Mapping[str, float]],
    margin_db: float,
    again: Callable[[P], str],
) -> None:
    """Write thresholds for every run of the suite of which each chip has figures; those of other chips count
    too. Says of which it has not; `again` is the command that measures each chip of a run."""
    measured: dict[str, list[Mapping[str, float]]] = {}
    for name, each in figures.items():
        measured.setdefault(name.rpartition("/")[0], []).append(each)
    runs: dict[tuple[str, int], list[P]] = {}
    for program in programs_of(path):
        number = next(index for index, run in enumerate(program.case.runs) if run is program.run)
        runs.setdefault((program.case_name, number), []).append(program)
    wanted, kept = {}, []
    for key, programs in runs.items():
        run, mine = programs[0].run, measured.get(programs[0].run_name, [])
        names = figures_held(run.held, run.thresholds, mine)
        if run.effective_thresholds is None or not mine:
            continue
        title = f"{programs[0].run_name} keeps its thresholds"
        if missing := [program.soc for program in programs if program.name not in figures]:
            verb = "was" if len(missing) == 1 else "were"
            kept.append((f"{title}: {', '.join(missing)} {verb} not measured", again(programs[0])))
        elif absent := ", ".join(each for each in names if not _is_measured(each, mine)):
            kept.append((f"{title}: its programs have no {absent}", f"remove {absent} from them in {path}"))
        else:
            wanted[key] = derived(run.held, run.thresholds, mine, margin_db)
    sys.stderr.writelines(f"{message}; {fix}\n" for message, fix in kept)
    if not wanted:
        return
    replace_text(path, rewritten(path.read_text(encoding="utf-8"), lane, wanted))
    sys.stderr.write(f"wrote thresholds of {plural(len(wanted), 'run')} to {path}\n")


def _is_measured(name: str, measured: Sequence[Mapping[str, float]]) -> bool:
    return all(math.isfinite(figures.get(name, math.nan)) for figures in measured)


def figures_held(
    always: Collection[str], named: Thresholds | None, measured: Sequence[Mapping[str, float]]
) -> list[str]:
    """Figures that get a threshold: those that always do of floats or integers, where the programs have such
    outputs, and those that the suite names."""
    has = [name for name in always if any(name.removeprefix("reference_") in each for each in measured)]
    return list(dict.fromkeys([*has, *(named.model_dump(exclude_none=True) if named else {})]))


def derived(
    always: Collection[str],
    named: Thresholds | None,
    measured: Sequence[Mapping[str, float]],
    margin_db: float,
) -> dict[str, float]:
    """For each figure the worst of all chips less the margin, if it always gets a threshold or the suite
    names it. Derived from what a baseline stores of them.

    A top-1 agreement of zero cannot be missed, so it gives no threshold."""
    measured = [rounded(figures) for figures in measured]
    values = {
        name: _threshold(name, [figures[name] for figures in measured], margin_db)
        for name in figures_held(always, named, measured)
    }
    return {name: value for name, value in values.items() if name != "top1" or value}


def below_required(thresholds: Mapping[str, float]) -> list[str]:
    """Those that need a reason."""
    return [name for name, least in REQUIRED.items() if not thresholds.get(name, least) >= least]


def low_figures(figures: Mapping[str, Mapping[str, float]], margin_db: float) -> dict[str, list[str]]:
    """By program, the figures that give a threshold below what is required."""
    return {
        program: below_required(
            {
                name: _threshold(name, [value], margin_db) if math.isfinite(value) else value
                for name, value in rounded(measured).items()
                if name in REQUIRED
            }
        )
        for program, measured in figures.items()
    }


def _threshold(name: str, values: Sequence[float], margin_db: float) -> float:
    if name.endswith("sqnr_db"):
        return max(0.0, _down(min(*values, NEAREST_DB) - margin_db, 1))
    if name.endswith("cosine"):
        # The distance from 1 grows with the power of the noise.
        return max(0.0, min(_down(1 - (1 - min(values)) * 10 ** (margin_db / 10), 6), NEAREST_COSINE))
    if name == "top1" or name.endswith("agreement"):
        return at_worst(name, min(values))
    return at_worst(name, max(values) * 10 ** (margin_db / 20))


def _down(value: float, digits: int) -> float:
    # Round first, because 0.3 - 0.1 is less than 0.2 in binary and would be cut to 0.1.
    return math.floor(round(value * 10.0**digits, 6)) / 10.0**digits


def rewritten(text: str, lane: str, wanted: Mapping[tuple[str, int], Mapping[str, float]]) -> str:
    """The suite's text with other thresholds for these runs of a lane (a case and the run's number in
    it among those of the lane).

    Everything else stays, comments and layout too."""
    document: Any = tomlkit.parse(text)
    for (case, number), thresholds in wanted.items():
        # A suite of an earlier release has one lane and does not name it.
        runs = [run for run in document["case"][case]["run"] if run.get("lane", lane) == lane]
        run = runs[number]
        if isinstance(run.get("thresholds"), Table):
            # Thresholds on lines of their own: [case.x.run.thresholds], or thresholds.sqnr_db = 1.
            _replace(run["thresholds"], thresholds)
        else:
            run["thresholds"] = _inline(thresholds)
    return tomlkit.dumps(document)


def _inline(thresholds: Mapping[str, float]) -> Any:
    pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in thresholds.items())
    return tomlkit.value(f"{{ {pairs} }}")


def _replace(table: MutableMapping[str, float], values: Mapping[str, float]) -> None:
    for name in set(table) - set(values):
        del table[name]
    for name, value in values.items():
        table[name] = value
