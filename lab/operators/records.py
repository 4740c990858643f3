"""What each part of a test of an operator gave, as runs write it and the table is made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ci.lanes.upstream.suite import Part, UpstreamVerdict
from provisioning.accepted_file import Accepted, Values, load_accepted
from provisioning.base.errors import ManifestError
from provisioning.base.settings import ROOT

FOLDER = ROOT / "lab" / "operators" / "rework-op"
"""The committed records of Qualcomm's newer tests, which a table is made with."""

ALL_TESTS = "(all)"
"""What is the same for all tests of a record."""


class Draw(NamedTuple):
    """What a program gave for one draw of inputs, in dB; None: shapes differ, or it is in float itself."""

    sqnr_db: float | None
    float_db: float | None = None
    quantized_db: float | None = None
    refused: bool = False
    """Its test refuses it: whole numbers are others, or shapes are."""


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """A part of a test with what the laboratory's adapters measure of it."""

    result: str
    sqnr_db: float | None = None
    cpu: tuple[str, ...] = ()
    float_db: float | None = None
    """The SQNR on HTP against the float model."""
    quantized_db: float | None = None
    """That of the quantized model on the CPU against the float model."""
    in_float: tuple[str, ...] | None = None
    """The operators of a quantized model that HTP computes in float; None: not measured."""
    draws: tuple[Draw, ...] = ()
    """Of each draw of inputs, if it ran with several; the figures above are their medians."""


def recorded(part: Part) -> RecordedPart:
    fields: dict[str, Any] = dict(part.measured)
    if "in_float" in fields:
        fields["in_float"] = tuple(fields["in_float"])
    fields["draws"] = tuple(Draw(*draw) for draw in fields.get("draws", ()))
    return RecordedPart(part.result, part.sqnr_db, part.cpu, **fields)


@dataclass(frozen=True, slots=True)
class MeasuredTest:
    parts: tuple[RecordedPart, ...] = ()
    measured: str = ""
    """The versions that gave these."""


@dataclass(frozen=True, slots=True)
class PartsRecord:
    """What a suite's tests gave on one chip. Runs of parts of a suite add up in it."""

    measured: str = ""
    """The versions of what was measured last. Parts of a suite may be older."""
    tests: Mapping[str, MeasuredTest] = field(default_factory=dict)

    def add_verdicts(self, verdicts: Iterable[UpstreamVerdict], measured: str) -> PartsRecord:
        new = {
            verdict.test: MeasuredTest(tuple(map(recorded, verdict.parts)), measured) for verdict in verdicts
        }
        return PartsRecord(measured, {**self.tests, **new})

    def versions(self) -> str:
        """Those of all tests, the last ones first."""
        older = Counter(row.measured for row in self.tests.values() if row.measured != self.measured)
        of = len(self.tests)
        return "; ".join(
            [self.measured, *(f"{count} of {of} tests with {name}" for name, count in older.items())]
        )

    def to_json(self) -> str:
        rows = {test: _values_of(row, self.measured) for test, row in self.tests.items()}
        return Accepted(Path()).updated({ALL_TESTS: {"measured": self.measured}, **rows}).to_text()


def record_of_run(reports: Path, suite: str, soc: str) -> Path:
    return reports / "operators" / f"{suite}-{soc}.json"


def load_record(path: Path) -> PartsRecord:
    again = "remove it, and measure again"
    rows = dict(load_accepted(path, again).subjects)
    measured = str(rows.pop(ALL_TESTS, {}).get("measured", ""))
    try:
        return PartsRecord(measured, {test: _measured_of(row, measured) for test, row in rows.items()})
    except (ValueError, KeyError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise ManifestError(
            path, "tests", expected="[result, dB, …] of each part", found=found, fix=again
        ) from error


def _values_of(row: MeasuredTest, measured: str) -> Values:
    return {
        "parts": [_row_of(part) for part in row.parts],
        "measured": row.measured if row.measured != measured else None,
    }


def _measured_of(values: Mapping[str, Any], measured: str) -> MeasuredTest:
    parts = tuple(_part_of(*part) for part in values["parts"])
    return MeasuredTest(parts, str(values.get("measured", measured)))


def _row_of(part: RecordedPart) -> list[Any]:
    row: list[Any] = [part.result, part.sqnr_db, *part.cpu]
    if part.in_float is not None:
        row.append([part.float_db, part.quantized_db, *part.in_float])
    if part.draws:
        row.append([list(draw if draw.refused else draw[:3]) for draw in part.draws])
    return row if len(row) > 2 or part.sqnr_db is not None else row[:1]


def _part_of(result: str, sqnr_db: float | None = None, *rest: Any) -> RecordedPart:
    texts: list[str] = []
    more: dict[str, Any] = {}
    for row in rest:
        if isinstance(row, str):
            texts.append(row)
        elif row and isinstance(row[0], list):
            more["draws"] = tuple(map(_draw_of, row))
        else:
            float_db, quantized_db, *in_float = row
            more["float_db"], more["quantized_db"] = _figure(float_db), _figure(quantized_db)
            more["in_float"] = tuple(map(str, in_float))
    return RecordedPart(str(result), _figure(sqnr_db), tuple(texts), **more)


def _draw_of(row: Sequence[Any]) -> Draw:
    sqnr_db, float_db, quantized_db = map(_figure, row[:3])
    return Draw(sqnr_db, float_db, quantized_db, refused=len(row) > 3)


def _figure(value: float | None) -> float | None:
    return None if value is None else float(value)
