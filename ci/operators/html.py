"""reports/operators.html: the operator table with filters, by operator, scheme, chip and result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.operators.onnx_page import OnnxOperators
from ci.operators.table import FAILING, MEANINGS, Cell, OperatorTable
from ci.pipeline.precision import MEASURED_SCHEMES, ONNX_PRECISIONS
from provisioning.base.rendering.pages import render
from provisioning.base.settings import DEFAULT_SOC

LOSES = "loses"
MARKS = {LOSES: "loses accuracy"}


@dataclass(frozen=True, slots=True)
class ShownCell:
    colour: str
    results: str
    """What the filter of results finds it by."""
    text: str
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class OperatorRow:
    operator: str
    soc: str
    cells: Mapping[str, ShownCell]
    """By scheme."""


@dataclass(frozen=True, slots=True)
class OperatorRows:
    schemes: Sequence[str]
    rows: Sequence[OperatorRow]


def html_of(table: OperatorTable, onnx: OnnxOperators) -> str:
    places: dict[str, list[str]] = defaultdict(list)
    for place, versions in sorted([*table.measured.items(), *onnx.measured.items()]):
        places[versions].append(place)
    return render(
        Path(__file__).with_name("templates") / "operators.html.j2",
        style="operators.css",
        script="operators.js",
        title="Operators on HTP",
        measured="; ".join(f"{', '.join(names)}: {versions}" for versions, names in places.items()),
        meanings=MEANINGS,
        schemes={scheme: scheme for scheme in (*MEASURED_SCHEMES, *ONNX_PRECISIONS)},
        results={name: word for name, (word, _) in MEANINGS.items()} | MARKS,
        chips={chip: chip for chip in sorted({*table.measured, *onnx.measured})},
        executorch=OperatorRows(MEASURED_SCHEMES, list(_rows(table.cells))),
        onnx=OperatorRows(ONNX_PRECISIONS, list(_rows(onnx.cells))),
    )


def _rows(cells: Mapping[str, Mapping[str, Mapping[str, Cell]]]) -> Iterator[OperatorRow]:
    for operator, chips in cells.items():
        for soc, row in sorted(chips.items(), key=lambda item: (item[0] != DEFAULT_SOC, item[0])):
            yield OperatorRow(operator, soc, {name: shown_cell(cell) for name, cell in row.items()})


def shown_cell(cell: Cell) -> ShownCell:
    results = [*cell.results, *([LOSES] if cell.loses_db is not None else [])]
    differs = not set(FAILING).isdisjoint(cell.results) or (cell.result == "whole" and not cell.good)
    colour = "mixed" if differs and cell.result not in (*FAILING, "no_kernel") else cell.result
    return ShownCell(colour, " ".join(results), str(cell), list(_notes(cell)))


def _notes(cell: Cell) -> Iterator[str]:
    for result in cell.results:
        forms = [
            f"{name}{f' ({figure})' if (figure := case.figure.strip()) else ''}"
            for name, case in sorted(cell.others.items())
            if case.result == result
        ]
        if forms:
            yield f"{MEANINGS[result][0]}: {', '.join(forms)}"
