"""`run`: the outputs of a compiled program, its time, and what ran where; and how far another one's are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from ci.suite.accuracy import Pair, Unusable, compare, in_words, missed
from ci.suite.output import origin_of, require_own
from ci.suite.programs import Thresholds
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from ci.models.arrays import Sample

RECORD = "run.json"
"""Beside the outputs: their names in order, times, and what ran where."""
SCHEMA = 1
SHOWN = 4


@dataclass(frozen=True, slots=True)
class Ran:
    inputs: Sample
    outputs: Sample
    milliseconds: Sequence[float]
    """Of each run."""
    where: str


def require_program(path: Path, typed: str) -> None:
    if not path.is_file():
        problem = "it is a folder" if path.is_dir() else "there is no such file"
        fix = Fix(
            "name a .pte, an .onnx or a context, as {} makes them", session("compile", typed, "-o", "out")
        )
        raise UsageError(f"{typed}: {problem}", fix=fix)


def as_text(ran: Ran) -> Iterator[str]:
    yield ran.where
    for name, array in ran.outputs.items():
        values = ", ".join(f"{value:.5g}" for value in array.ravel()[:SHOWN])
        more = ", …" if array.size > SHOWN else ""
        yield f"{name}: {array.dtype}[{', '.join(map(str, array.shape))}]  {values}{more}"
    times = ran.milliseconds
    spread = f", {min(times):.3g} to {max(times):.3g} in {len(times)} runs" if len(times) > 1 else ""
    yield f"{median(times):.3g} ms a run{spread}: this machine's time, not the chip's"


def write(ran: Ran, folder: Path, typed: str) -> None:
    """An .npy for each output of a program, and the record."""
    import numpy

    folder.mkdir(parents=True, exist_ok=True)
    files = {name: f"{re.sub(r'[^-.A-Za-z0-9_]', '_', name)}.npy" for name in ran.outputs}
    if len(set(files.values())) < len(files):
        files = {name: f"output_{index}.npy" for index, name in enumerate(files)}
    require_own([folder / RECORD], typed)
    for name, array in ran.outputs.items():
        numpy.save(folder / files[name], array)
    record = {
        "schema": SCHEMA,
        "outputs": [{"name": name, "file": file} for name, file in files.items()],
        "milliseconds": list(ran.milliseconds),
        "where": ran.where,
        "origin": origin_of(typed, folder),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def outputs_in(folder: Path) -> Sample:
    from ci.models.inputs import read_array

    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return {str(output["name"]): read_array(folder / output["file"]) for output in record["outputs"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckFailed(
            f"{folder}: expected what run wrote with -o, found {error}",
            fix="name a program, or such a folder",
        ) from error


@dataclass(frozen=True, slots=True)
class Compared:
    figures: Mapping[str, Mapping[str, float]]
    """By output."""
    lines: Sequence[str]
    differ: bool
    """Whether outputs have little in common, which the last line then says."""


def compared(ours: Sample, other: Sample, whose: str) -> Compared:
    """By names, where both have the same; else in order."""
    if len(ours) != len(other):
        raise CheckFailed(
            f"{whose} has {len(other)} outputs, but this one {len(ours)}", fix="compare with the same model"
        )
    if set(ours) != set(other):
        other = dict(zip(ours, other.values(), strict=True))
    lines, strange, all_figures = list[str](), list[str](), dict[str, Mapping[str, float]]()
    for name, array in ours.items():
        try:
            figures = compare([Pair(name, other[name], array)], non_finite=True)
        except Unusable as error:
            fix = "compare with the same model"
            raise CheckFailed(f"against {whose}: {error}", fix=fix) from error
        all_figures[name] = figures
        apart = f", at most {figures['max_abs']:.3g} apart" if figures.get("max_abs") else ""
        lines.append(f"against {whose}: {name} {in_words(figures)}{apart}")
        strange += [name] if missed(Thresholds(), figures) else []
    if strange:
        lines.append(f"{', '.join(strange)}: too different from {whose} at the same inputs")
    return Compared(all_figures, lines, bool(strange))
