"""reports/operators.html: the operator table with filters, by operator, scheme, chip and result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ci.operators.table import DIFFERS, FAILING, MEANINGS, ONE_DRAW, PLAIN, Cell, OperatorTable, in_db
from ci.pipeline.precision import MEASURED_SCHEMES, ONNX_PRECISIONS
from provisioning.base.rendering.pages import render
from provisioning.base.settings import DEFAULT_SOC

Scheme = TypeVar("Scheme", bound=str)

UNLIKE_FILES, LOSES, IN_FLOAT = "unlike-files", "loses", "in-float"
MARKS = {
    UNLIKE_FILES: f"{DIFFERS} not as its files",
    LOSES: "loses accuracy",
    IN_FLOAT: "in part in fp16",
}


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
    files: str


@dataclass(frozen=True, slots=True)
class OperatorRows:
    schemes: Sequence[str]
    rows: Sequence[OperatorRow]


def html_of(table: OperatorTable) -> str:
    places: dict[str, list[str]] = defaultdict(list)
    for place, versions in sorted([*table.measured.items(), *table.onnx.measured.items()]):
        places[versions].append(place)
    return render(
        Path(__file__).with_name("templates") / "operators.html.j2",
        style="operators.css",
        script="operators.js",
        title="Operators on HTP",
        measured="; ".join(f"{', '.join(names)}: {versions}" for versions, names in places.items()),
        default_soc=DEFAULT_SOC,
        differs=DIFFERS,
        one_draw=ONE_DRAW,
        meanings=MEANINGS,
        schemes={scheme: scheme for scheme in (*MEASURED_SCHEMES, *ONNX_PRECISIONS)},
        results={name: word for name, (word, _) in MEANINGS.items()} | MARKS,
        chips={chip: chip for chip in sorted({*table.measured, *table.onnx.measured})},
        executorch=OperatorRows(MEASURED_SCHEMES, list(_rows(table.cells, table.marked, table.files))),
        onnx=OperatorRows(ONNX_PRECISIONS, list(_rows(table.onnx.cells))),
    )


def _rows(
    cells: Mapping[str, Mapping[str, Mapping[Scheme, Cell]]],
    text_of: Callable[[str, str, Cell], str] = lambda operator, scheme, cell: str(cell),
    files_of: Callable[[str], Sequence[str]] = lambda operator: (),
) -> Iterator[OperatorRow]:
    for operator, chips in cells.items():
        files = ", ".join(files_of(operator))
        for soc, row in sorted(chips.items(), key=lambda item: (item[0] != DEFAULT_SOC, item[0])):
            shown: dict[str, ShownCell] = {
                name: shown_cell(cell, text_of(operator, name, cell)) for name, cell in row.items()
            }
            yield OperatorRow(operator, soc, shown, files)


def shown_cell(cell: Cell, text: str) -> ShownCell:
    results = [*cell.results, *([UNLIKE_FILES] if text.endswith(DIFFERS) else [])]
    results += [LOSES] * (cell.loses_db is not None) + [IN_FLOAT] * bool(cell.in_float)
    differs = not set(FAILING).isdisjoint(cell.results) or (cell.result == "whole" and not cell.good)
    colour = "mixed" if differs and cell.result not in (*FAILING, "no_kernel") else cell.result
    return ShownCell(colour, " ".join(results), text, list(_notes(cell)))


def _notes(cell: Cell) -> Iterator[str]:
    if cell.default:
        yield f"≠ {MEANINGS[cell.default][0]}"
    if cell.worst and cell.models > 1 and cell.least_db is None:
        yield f"worst: {cell.worst}"
    for result in cell.results:
        bad = {name: case for name, case in sorted(cell.bad.items()) if case.result == result}
        names = [
            f"{name}{f' ({figure.strip()})' if (figure := in_db(case.sqnr_db)) else ''}"
            for name, case in bad.items()
        ]
        names += [test for test, other in sorted(cell.others.items()) if other == result and test != PLAIN]
        names += [name for name, value in sorted(cell.elsewhere.items()) if value == result]
        if names:
            yield f"{MEANINGS[result][0]}: {', '.join(names)}"
