"""What earlier builds gave where the operator table says something else now: a record each, the newest first.

A record has only the cells that differ from the next newer record's, the first from the table's.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from packaging.version import Version
from pydantic import Field

from ci.operators.table import MEANINGS, Cell, OperatorTable, in_db
from provisioning.base.documents import Model
from provisioning.base.settings import MANIFESTS

HISTORY = MANIFESTS / "upstream" / "operators" / "history.json"

Scheme = TypeVar("Scheme", bound=str)
LaneName = Literal["executorch", "onnx"]
Cells = Mapping[str, Mapping[str, Mapping[str, Cell]]]
"""By operator, chip and scheme."""


class PastCell(Model):
    result: str
    """A word of the table, or one that it had."""
    sqnr_db: float | None = None

    def __str__(self) -> str:
        word = {name: words[0] for name, words in MEANINGS.items()}.get(self.result, self.result)
        return word + in_db(self.sqnr_db)


PastCells = Mapping[str, Mapping[str, Mapping[str, PastCell]]]
"""By operator, chip and scheme."""


class MeasuredBefore(Model):
    lane: LaneName
    measured: str
    """What it was measured with."""
    cells: PastCells

    def cell(self, operator: str, chip: str, scheme: str) -> PastCell | None:
        return self.cells.get(operator, {}).get(chip, {}).get(scheme)


class History(Model):
    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    records: tuple[MeasuredBefore, ...] = ()

    def of(self, lane: LaneName) -> list[MeasuredBefore]:
        return [record for record in self.records if record.lane == lane]

    def as_json(self) -> str:
        """A line for each operator of a record."""
        records = ",\n".join(map(_lines, self.records))
        return f'{{"schema": 1, "records": [{records}]}}\n'


def _lines(record: MeasuredBefore) -> str:
    head = f'"lane": {json.dumps(record.lane)}, "measured": {json.dumps(record.measured)}'
    cells = record.model_dump(mode="json", exclude_defaults=True)["cells"]
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(cells[name])}" for name in sorted(cells))
    return f'{{{head}, "cells": {{\n{rows}\n}}}}'


def load(path: Path = HISTORY) -> History:
    return History.model_validate_json(path.read_text(encoding="utf-8")) if path.is_file() else History()


def extended(history: History, old: OperatorTable, new: OperatorTable) -> History:
    """With a record of each lane that the new table has measured with something else."""
    lanes: tuple[tuple[LaneName, Mapping[str, str], Cells, Mapping[str, str], Cells], ...] = (
        ("executorch", old.measured, plain(old.cells), new.measured, plain(new.cells)),
        ("onnx", old.onnx.measured, plain(old.onnx.cells), new.onnx.measured, plain(new.onnx.cells)),
    )
    added = [
        MeasuredBefore(lane=lane, measured="; ".join(sorted(set(gone))), cells=differing(was, now))
        for lane, before, was, after, now in lanes
        if (gone := [text for chip, text in before.items() if after.get(chip) != text])
    ]
    return History(records=(*added, *history.records))


def with_earlier(
    history: History, lane: LaneName, measured: str, cells: Cells, now: Cells, table: Cells
) -> History:
    """With what an earlier build gave, at its place among the records of its lane; `now` is what the same
    cases give with the table's own build, and `table` what all of its cases say together."""
    present: PastCells = _past(table)
    builds, newer = dict[str, PastCells](), present
    for record in history.of(lane):
        builds[record.measured] = newer = _laid_over(newer, record.cells)
    builds[measured] = _laid_over(present, differing(cells, now))
    records, newer = list[MeasuredBefore](), present
    for name in sorted(builds, key=_age, reverse=True):
        records.append(MeasuredBefore(lane=lane, measured=name, cells=differing(builds[name], newer)))
        newer = builds[name]
    others = [record for record in history.records if record.lane != lane]
    return History(records=(*others, *records) if lane == "onnx" else (*records, *others))


VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+)")


def _age(measured: str) -> list[Version]:
    """`executorch 1.4.1, QNN v2.49.40.260810104044` is older than 1.5.0."""
    return [Version(number) for number in VERSION.findall(measured)]


def _past(cells: Cells) -> dict[str, dict[str, dict[str, PastCell]]]:
    found: dict[str, dict[str, dict[str, PastCell]]] = {}
    for operator, chip, scheme, cell in _each(cells):
        past = PastCell(result=cell.result, sqnr_db=cell.sqnr_db)
        found.setdefault(operator, {}).setdefault(chip, {})[scheme] = past
    return found


def _laid_over(below: PastCells, above: PastCells) -> PastCells:
    """The cells of both; where both have one, that of `above`."""
    names = {**below, **above}
    return {
        name: {
            chip: {**below.get(name, {}).get(chip, {}), **above.get(name, {}).get(chip, {})}
            for chip in {**below.get(name, {}), **above.get(name, {})}
        }
        for name in names
    }


def plain(cells: Mapping[str, Mapping[str, Mapping[Scheme, Cell]]]) -> Cells:
    """For schemes of either lane."""
    return {
        name: {chip: dict[str, Cell](row.items()) for chip, row in chips.items()}
        for name, chips in cells.items()
    }


def differing(was: Cells | PastCells, now: Cells | PastCells) -> dict[str, dict[str, dict[str, PastCell]]]:
    """The earlier cells with another result than the later, or that are there no more."""
    found: dict[str, dict[str, dict[str, PastCell]]] = defaultdict(lambda: defaultdict(dict))
    for operator, chip, scheme, cell in _each(was):
        later = now.get(operator, {}).get(chip, {}).get(scheme)
        if later is None or later.result != cell.result:
            found[operator][chip][scheme] = PastCell(result=cell.result, sqnr_db=cell.sqnr_db)
    return {name: {chip: dict(row) for chip, row in chips.items()} for name, chips in found.items()}


def _each(cells: Cells | PastCells) -> Iterator[tuple[str, str, str, Cell | PastCell]]:
    for operator, chips in cells.items():
        for chip, row in chips.items():
            for scheme, cell in row.items():
                yield operator, chip, scheme, cell
