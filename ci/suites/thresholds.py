"""Thresholds from what was measured, and a suite's file rewritten with them."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.suites.model import AnyProgram, Thresholds
from provisioning.base.errors import ManifestError
from provisioning.base.files import replace_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NEAREST_DB, NEAREST_COSINE = 100.0, 0.999999
"""Nothing nearer than this is asked for: one more bit of round-off would miss it."""

RUN = re.compile(r"^\s*\[\[\s*case\s*\.\s*(?:\"([^\"]+)\"|'([^']+)'|([\w-]+))\s*\.\s*run\s*\]\]")
ANY_TABLE = re.compile(r"^\s*\[[^\]]*\]\]?\s*(#.*)?$")
LINE = re.compile(r"^(\s*thresholds\s*=\s*)\{[^}]*\}")


def update_suite(
    path: Path,
    programs_of: Callable[[Path], Sequence[AnyProgram[Any, Any]]],
    figures: Mapping[str, Mapping[str, float]],
    margin_db: float,
) -> None:
    """Write thresholds for every run of the suite of which all programs have figures."""
    runs: dict[tuple[str, int], list[AnyProgram[Any, Any]]] = {}
    for program in programs_of(path):
        number = next(index for index, run in enumerate(program.case.runs) if run is program.run)
        runs.setdefault((program.case_name, number), []).append(program)
    wanted = {}
    for key, programs in runs.items():
        run, found = programs[0].run, [figures[each.name] for each in programs if each.name in figures]
        if run.thresholds is None or not found:
            continue
        if len(found) < len(programs):
            sys.stderr.write(f"{key[0]}/{run.name} keeps its thresholds: not all its chips were measured\n")
            continue
        wanted[key] = derived(run.held, run.thresholds, found, margin_db)
    replace_text(path, rewritten(path.read_text(encoding="utf-8"), path, wanted))
    sys.stderr.write(f"wrote thresholds of {len(wanted)} runs to {path}\n")


def derived(
    always: Collection[str],
    named: Thresholds | None,
    measured: Sequence[Mapping[str, float]],
    margin_db: float,
) -> dict[str, float]:
    """Of the chips' figures the worst less the margin: of those always held, and of those named."""
    more = named.model_dump(exclude_none=True) if named else {}
    names = [*always, *(name for name in more if name not in always)]
    return {name: _threshold(name, [figures[name] for figures in measured], margin_db) for name in names}


def _threshold(name: str, values: Sequence[float], margin_db: float) -> float:
    if name.endswith("sqnr_db"):
        return _down(min(*values, NEAREST_DB) - margin_db, 1)
    if name.endswith("cosine"):
        # The distance from 1 grows as the power of the noise does.
        return min(_down(1 - (1 - min(values)) * 10 ** (margin_db / 10), 6), NEAREST_COSINE)
    if name == "top1":
        return _down(min(values), 6)
    return -_down(-max(values) * 10 ** (margin_db / 20), 6)


def _down(value: float, digits: int) -> float:
    # The first rounding keeps 0.3 - 0.1 from becoming 0.1 when it is cut after a digit.
    return math.floor(round(value * 10.0**digits, 6)) / 10.0**digits


def rewritten(text: str, path: Path, wanted: Mapping[tuple[str, int], Mapping[str, float]]) -> str:
    """The suite's text with other thresholds for these runs (a case and the run's number in it), and nothing
    else changed."""
    lines = text.splitlines(keepends=True)
    left = dict(wanted)
    for index, key in _places(lines):
        if key in left:
            found = LINE.match(lines[index])
            assert found is not None
            lines[index] = found[1] + _inline(left.pop(key)) + lines[index][found.end() :]
    if left:
        case, number = next(iter(left))
        raise ManifestError(
            path,
            f"case.{case}.run.{number}.thresholds",
            expected="thresholds = { … } on a line of its own",
            found="something that cannot be rewritten",
        )
    changed = "".join(lines)
    _same_but_for(tomllib.loads(text), tomllib.loads(changed), wanted, path)
    return changed


def _places(lines: Sequence[str]) -> Iterator[tuple[int, tuple[str, int]]]:
    """Where the thresholds of which run are written."""
    runs: dict[str, int] = {}
    run: tuple[str, int] | None = None
    for index, line in enumerate(lines):
        if ANY_TABLE.match(line):
            run = None
            if table := RUN.match(line):
                case = table[1] or table[2] or table[3]
                run = case, runs.get(case, 0)
                runs[case] = run[1] + 1
        elif run is not None and LINE.match(line):
            yield index, run


def _inline(thresholds: Mapping[str, float]) -> str:
    return "{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in thresholds.items()) + " }"


def _same_but_for(
    before: dict[str, Any],
    after: dict[str, Any],
    wanted: Mapping[tuple[str, int], Mapping[str, float]],
    path: Path,
) -> None:
    for (case, number), thresholds in wanted.items():
        before["case"][case]["run"][number]["thresholds"] = dict(thresholds)
    if before != after:
        raise ManifestError(
            path, "(text)", expected="a layout whose thresholds can be rewritten alone", found="another"
        )
