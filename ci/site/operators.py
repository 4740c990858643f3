"""The pages of operators: one for each, and one for each view of them all."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ci.operators.html import MARKS, shown_cell
from ci.operators.names import key_of
from ci.operators.table import FAILING, MEANINGS, Cell, OperatorTable, in_db, in_range
from ci.pipeline.precision import MEASURED_SCHEMES, ONNX_PRECISIONS
from provisioning.base.commands import as_installed, session
from provisioning.base.settings import DEFAULT_SOC
from provisioning.fixes import load_fixes
from provisioning.known_faults import Fault, load_faults
from provisioning.manifest import load_socs

Scheme = TypeVar("Scheme", bound=str)
Cells = Mapping[str, Mapping[str, Mapping[str, Cell]]]
"""By operator, chip and scheme."""


@dataclass(frozen=True, slots=True)
class MeasuredLane:
    name: str
    folder: str
    """Below operators/."""
    schemes: Sequence[str]
    measured: Mapping[str, str]
    """By chip."""
    cells: Cells

    @property
    def chips(self) -> list[str]:
        """The default first, which has the most cases."""
        return sorted(self.measured, key=lambda chip: (chip != DEFAULT_SOC, chip))

    @property
    def home(self) -> str:
        return f"operators/{self.folder}on-{self.chips[0]}.html"

    @property
    def builds(self) -> Mapping[str, Sequence[str]]:
        """What was measured with, and the chips."""
        found: dict[str, list[str]] = defaultdict(list)
        for chip in self.chips:
            found[self.measured[chip]].append(chip)
        return found

    def page(self, operator: str) -> str:
        # The folder's own address shows index.html.
        name = "index-" if operator == "index" else operator
        return f"operators/{self.folder}{name}.html"

    def cell(self, operator: str, chip: str, scheme: str) -> Cell | None:
        return self.cells[operator].get(chip, {}).get(scheme)

    def differs(self, operator: str, scheme: str) -> bool:
        """Whether the same cases give another result on another chip."""
        return any(row[scheme].default for row in self.cells[operator].values() if scheme in row)


@dataclass(frozen=True, slots=True)
class GridCell:
    """A cell of a grid."""

    column: str
    href: str
    tone: str
    word: str
    figure: str
    more: Sequence[str]
    results: str
    """What the filter of results finds it by."""
    title: str
    differs: bool


@dataclass(frozen=True, slots=True)
class GridRow:
    name: str
    href: str
    cells: Sequence[GridCell | None]
    differs: bool


@dataclass(frozen=True, slots=True)
class View:
    """Operators by schemes on one chip, or by chips at one scheme."""

    lane: str
    place: str
    """The chip, or the scheme."""
    first: str
    """What stands before it in the list of views: `on` before the first chip."""
    page: str
    columns: Sequence[str]
    rows: Sequence[GridRow]
    measured: str


@dataclass(frozen=True, slots=True)
class Chips:
    """Chips on which an operator does the same at a scheme."""

    names: Sequence[str]
    text: str
    tone: str
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class SchemePart:
    scheme: str
    chips: Sequence[Chips]
    commands: Sequence[str]


@dataclass(frozen=True, slots=True)
class OperatorPage:
    name: str
    lane: MeasuredLane
    also: Mapping[str, str]
    """Its name and page in the other lane."""
    grid: Sequence[GridRow]
    parts: Sequence[SchemePart]
    files: Sequence[str]
    faults: Sequence[Fault]
    suggestions: Sequence[str]
    good: str
    """The schemes at which all is well on the lane's first chip."""


def plain(cells: Mapping[str, Mapping[str, Mapping[Scheme, Cell]]]) -> Cells:
    """For schemes of either lane."""
    return {
        name: {chip: dict[str, Cell](row.items()) for chip, row in chips.items()}
        for name, chips in cells.items()
    }


def lanes(table: OperatorTable) -> tuple[MeasuredLane, MeasuredLane]:
    aten, onnx = plain(table.cells), plain(table.onnx.cells)
    return (
        MeasuredLane("ExecuTorch", "", MEASURED_SCHEMES, table.measured, aten),
        MeasuredLane("ONNX Runtime", "onnx/", ONNX_PRECISIONS, table.onnx.measured, onnx),
    )


def chip_names() -> Mapping[str, str]:
    """`V75, 8 Gen 3` for each chip."""
    return {name: ", ".join([f"V{soc.arch}", *soc.called[:1]]) for name, soc in load_socs().items()}


def views(table: OperatorTable) -> Iterator[View]:
    for lane in lanes(table):
        for chip in lane.chips:
            page = f"operators/{lane.folder}on-{chip}.html"
            word = "on" if chip == lane.chips[0] else ""
            yield _view(chip, word, page, table, lane, [(chip, scheme) for scheme in lane.schemes])
        for scheme in lane.schemes if len(lane.chips) > 1 else ():
            page = f"operators/{lane.folder}at-{scheme}.html"
            word = "at" if scheme == lane.schemes[0] else ""
            yield _view(scheme, word, page, table, lane, [(chip, scheme) for chip in lane.chips])


def _view(
    place: str,
    first: str,
    page: str,
    table: OperatorTable,
    lane: MeasuredLane,
    columns: Sequence[tuple[str, str]],
) -> View:
    one_chip = len({chip for chip, _ in columns}) == 1
    rows = [_row(table, lane, name, columns, name, lane.page(name)) for name in lane.cells]
    return View(
        lane.name,
        place,
        first,
        page,
        [scheme if one_chip else chip for chip, scheme in columns],
        [row for row in rows if any(row.cells)],
        "; ".join(dict.fromkeys(lane.measured[chip] for chip, _ in columns)),
    )


def _row(
    table: OperatorTable,
    lane: MeasuredLane,
    operator: str,
    columns: Sequence[tuple[str, str]],
    title: str,
    href: str,
) -> GridRow:
    one_chip = len({chip for chip, _ in columns}) == 1
    seen = [
        _seen(table, lane, operator, chip, scheme, scheme if one_chip else chip) for chip, scheme in columns
    ]
    return GridRow(title, href, seen, any(lane.differs(operator, scheme) for _, scheme in columns))


def _seen(
    table: OperatorTable, lane: MeasuredLane, operator: str, chip: str, scheme: str, column: str
) -> GridCell | None:
    cell = lane.cell(operator, chip, scheme)
    if cell is None:
        return None
    text = table.marked(operator, scheme, cell) if not lane.folder else str(cell)
    shown = shown_cell(cell, text)
    more = [spread.strip(" ()")] if (spread := in_range(cell.range_db)) else []
    more += [f"least{in_db(cell.least_db)}"] if cell.least_db is not None else []
    more += [f"loses{in_db(cell.loses_db)}"] if cell.loses_db is not None else []
    more += [
        f"some {MEANINGS[result][0]}"
        for result in cell.results
        if result in FAILING and result != cell.result
    ]
    if cell.chain and cell.chain.result != cell.result:
        more.append(f"chain {MEANINGS[cell.chain.result][0]}")
    where = f"{operator} at {scheme} on {chip}: "
    return GridCell(
        column,
        f"{lane.page(operator)}#{scheme}",
        shown.colour,
        MEANINGS[cell.result][0],
        in_db(cell.sqnr_db).strip() + (cell.mark if cell.sqnr_db is not None else ""),
        more,
        shown.results,
        "\n".join([where + text, *shown.notes]),
        lane.differs(operator, scheme),
    )


def pages(table: OperatorTable) -> Iterator[OperatorPage]:
    both = lanes(table)
    for lane, other in zip(both, reversed(both), strict=True):
        keys = {key_of(name).lower(): name for name in other.cells}
        for name in lane.cells:
            also = keys.get(key_of(name).lower(), "")
            yield _page(table, lane, name, {f"{also} through {other.name}": other.page(also)} if also else {})


def _page(table: OperatorTable, lane: MeasuredLane, name: str, also: Mapping[str, str]) -> OperatorPage:
    schemes = [scheme for scheme in lane.schemes if any(scheme in row for row in lane.cells[name].values())]
    grid = [
        _row(
            table, lane, name, [(chip, scheme) for chip in lane.chips], scheme, f"{lane.page(name)}#{scheme}"
        )
        for scheme in schemes
    ]
    good = [scheme for scheme in schemes if (cell := lane.cell(name, lane.chips[0], scheme)) and cell.good]
    own = key_of(name)
    return OperatorPage(
        name,
        lane,
        also,
        grid,
        [
            SchemePart(scheme, _chips(table, lane, name, scheme), proof(lane, name, scheme))
            for scheme in schemes
        ],
        () if lane.folder else table.files(name),
        faults_of(name),
        [
            f"{NEEDED[fix.where]}: {fix.words}"
            for fix in load_fixes()
            if name in fix.operators or (not lane.folder and own in map(key_of, fix.operators))
        ],
        ", ".join(good),
    )


def _chips(table: OperatorTable, lane: MeasuredLane, name: str, scheme: str) -> list[Chips]:
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for chip in lane.chips:
        if cell := lane.cell(name, chip, scheme):
            text = table.marked(name, scheme, cell) if not lane.folder else str(cell)
            shown = shown_cell(cell, text)
            tried = f"{cell.models} cases tried" if cell.models > 1 else "one case tried"
            alike[text, shown.colour, (tried, *shown.notes)].append(chip)
    return [Chips(chips, text, tone, notes) for (text, tone, notes), chips in alike.items()]


def proof(lane: MeasuredLane, name: str, scheme: str) -> list[str]:
    """The commands that measure an operator at a scheme again."""
    if lane.folder:
        suite = "manifests/suites/onnx_operators.toml"
        return [as_installed(session("test_onnx", "--suite", suite, "-k", f"{name}/{scheme}/"))]
    cells = [row[scheme] for row in lane.cells[name].values() if scheme in row]
    if newer := sorted({test for cell in cells for test in cell.newer}):
        expression = " or ".join(f"{test}[" for test in newer)
        return [as_installed(session("test_upstream", "rework-op", "-k", expression))]
    own = ("operators", "values", "-k", f"test_{name}. or *-{name}-*", "--flow", scheme)
    ranges = [("values", "-k", f"*-{name}-*", "--flow", cell.tried_in) for cell in cells if cell.tried_in]
    chain = [("chains", "-k", f"*-{name}-*", "--flow", scheme)] if any(cell.chain for cell in cells) else []
    ways = dict.fromkeys([own, *ranges, *chain])
    return [as_installed(session("test_upstream", *words)) for words in ways]


NEEDED = {"cpu": "where it stays on the CPU", "builder": "where the backend's builder fails at it"}


def faults_of(name: str) -> list[Fault]:
    return [fault for fault in load_faults() if name in fault.operators]


RESULTS: Mapping[str, str] = {
    **{name: word for name, (word, _) in MEANINGS.items()},
    **MARKS,
}
"""What a grid can be filtered by."""


def rows(table: OperatorTable) -> list[dict[str, object]]:
    """Every cell, for other programs."""
    return [
        {
            "lane": lane.name,
            "operator": name,
            "chip": chip,
            "scheme": scheme,
            "result": cell.result,
            "sqnr_db": cell.sqnr_db,
            "least_of_draws_db": cell.range_db[0] if cell.range_db else None,
            "greatest_of_draws_db": cell.range_db[1] if cell.range_db else None,
            "one_draw": cell.one_draw,
            "draws": ", ".join(cell.other_draws),
            "float_db": cell.float_db,
            "loses_db": cell.loses_db,
            "cases": cell.models,
            "deciding": "{} of {}".format(*cell.deciding) if cell.deciding else "",
            "least_db": cell.least_db,
            "worst": cell.worst,
            "alone": cell.alone or "",
            "chain": str(cell.chain or ""),
            "on_cpu": " ".join(cell.cpu),
            "in_fp16": " ".join(cell.in_float),
            "text": str(cell),
            "page": f"{lane.page(name)}#{scheme}",
        }
        for lane in lanes(table)
        for name, chips in lane.cells.items()
        for chip, row in chips.items()
        for scheme, cell in row.items()
    ]


def as_csv(cells: Sequence[Mapping[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(cells[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    return text.getvalue()


def as_json(table: OperatorTable, cells: Sequence[Mapping[str, object]]) -> str:
    measured = {lane.name: lane.measured for lane in lanes(table)}
    words = {name: list(meaning) for name, meaning in MEANINGS.items()}
    lines = ",\n".join(json.dumps(cell, sort_keys=True) for cell in cells)
    return (
        f'{{"schema": 1, "measured": {json.dumps(measured)}, "words": {json.dumps(words)},\n'
        f'"cells": [\n{lines}\n]}}\n'
    )


def counted(view: View) -> Mapping[str, int]:
    """How many cells of a view have each result, from the best."""
    words = [cell.word for row in view.rows for cell in row.cells if cell]
    return {name: count for name, (word, _) in MEANINGS.items() if (count := words.count(word))}
