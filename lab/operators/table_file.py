"""The text of manifests/upstream/operators.json, and its cells with those of later runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ci.operators.table import Cell, OperatorTable


def to_json(table: OperatorTable) -> str:
    """A line for each operator and chip."""
    rows = ",\n".join(
        f"{json.dumps(name)}: {{\n" + ",\n".join(_line(*row) for row in sorted(chips.items())) + "}"
        for name, chips in sorted(table.cells.items())
    )
    head = f'"schema": 1,\n"measured": {json.dumps(dict(sorted(table.measured.items())))}'
    return f'{{{head},\n"cells": {{\n{rows}}}}}\n'


def updated(table: OperatorTable, new: OperatorTable) -> tuple[OperatorTable, int]:
    """With the cells of another table, and how many are left as they were: they had more cases."""
    cells = {name: {chip: dict(row) for chip, row in chips.items()} for name, chips in table.cells.items()}
    measured, fewer = dict(table.measured), 0
    for name, chips in new.cells.items():
        for chip, row in chips.items():
            old = cells.setdefault(name, {}).setdefault(chip, {})
            better = {
                scheme: cell
                for scheme, cell in row.items()
                if scheme not in old or old[scheme].cases <= cell.cases
            }
            fewer += len(row) - len(better)
            old.update(better)
    for chip, versions in new.measured.items():
        of_chip = [(name, scheme) for name, chips in cells.items() for scheme in chips.get(chip, {})]
        whole = all(scheme in new.cells.get(name, {}).get(chip, {}) for name, scheme in of_chip)
        before = () if whole and not fewer else measured.get(chip, "").split("; ")
        measured[chip] = "; ".join(filter(None, dict.fromkeys([versions, *before])))
    return OperatorTable(measured=measured, cells=cells), fewer


def _line(chip: str, row: Mapping[str, Cell]) -> str:
    cells = {scheme: _brief(cell) for scheme, cell in row.items()}
    return f" {json.dumps(chip)}: {json.dumps(cells, separators=(',', ':'))}"


def _brief(values: tuple[Any, ...]) -> list[Any]:
    """Without what is as by default at the end."""
    defaults = list(getattr(values, "_field_defaults", {}).values())
    row = [
        {name: _brief(case) for name, case in value.items()} if isinstance(value, dict) else value
        for value in values
    ]
    while len(row) > 1 and row[-1] == defaults[len(row) - 2]:
        row.pop()
    return row
