"""Write thresholds from measured figures into a suite's file."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Table

from ci.suites.suite import AnyProgram, Thresholds
from provisioning.base.files import replace_text

NEAREST_DB, NEAREST_COSINE = 100.0, 0.999999
"""The strictest threshold: beyond it, one more bit of rounding would fail."""


def update_suite(
    path: Path,
    programs_of: Callable[[Path], Sequence[AnyProgram[Any, Any]]],
    figures: Mapping[str, Mapping[str, float]],
    margin_db: float,
) -> None:
    """Write thresholds for every run of the suite whose programs all have figures."""
    runs: dict[tuple[str, int], list[AnyProgram[Any, Any]]] = {}
    for program in programs_of(path):
        number = next(index for index, run in enumerate(program.case.runs) if run is program.run)
        runs.setdefault((program.case_name, number), []).append(program)
    wanted = {}
    for key, programs in runs.items():
        run, measured = programs[0].run, [figures[each.name] for each in programs if each.name in figures]
        if run.effective_thresholds is None or not measured:
            continue
        if len(measured) < len(programs):
            sys.stderr.write(f"{key[0]}/{run.name} keeps its thresholds: not all its chips were measured\n")
            continue
        wanted[key] = derived(run.held, run.thresholds, measured, margin_db)
    replace_text(path, rewritten(path.read_text(encoding="utf-8"), wanted))
    sys.stderr.write(f"wrote thresholds of {len(wanted)} runs to {path}\n")


def derived(
    always: Collection[str],
    named: Thresholds | None,
    measured: Sequence[Mapping[str, float]],
    margin_db: float,
) -> dict[str, float]:
    """For each figure the worst of all chips less the margin, if it always gets a threshold or the suite
    names it.

    A top-1 agreement of zero cannot be missed, so it gives no threshold."""
    more = named.model_dump(exclude_none=True) if named else {}
    names = [*always, *(name for name in more if name not in always)]
    values = {name: _threshold(name, [figures[name] for figures in measured], margin_db) for name in names}
    return {name: value for name, value in values.items() if name != "top1" or value}


def _threshold(name: str, values: Sequence[float], margin_db: float) -> float:
    if name.endswith("sqnr_db"):
        return max(0.0, _down(min(*values, NEAREST_DB) - margin_db, 1))
    if name.endswith("cosine"):
        # The distance from 1 grows with the power of the noise.
        return max(0.0, min(_down(1 - (1 - min(values)) * 10 ** (margin_db / 10), 6), NEAREST_COSINE))
    if name == "top1":
        return _down(min(values), 6)
    return -_down(-max(values) * 10 ** (margin_db / 20), 6)


def _down(value: float, digits: int) -> float:
    # Round first, because 0.3 - 0.1 is less than 0.2 in binary and would be cut to 0.1.
    return math.floor(round(value * 10.0**digits, 6)) / 10.0**digits


def rewritten(text: str, wanted: Mapping[tuple[str, int], Mapping[str, float]]) -> str:
    """The suite's text with other thresholds for these runs (a case and the run's number in it).

    Everything else stays, comments and layout too."""
    document: Any = tomlkit.parse(text)
    for (case, number), thresholds in wanted.items():
        run = document["case"][case]["run"][number]
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
