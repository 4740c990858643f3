"""The pages of operators: one for each, and one for each view of them all."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ci.operators.names import key_of
from ci.operators.onnx_page import shipped as shipped_onnx
from ci.operators.table import FAILING, IN_CHAIN, MEANINGS, Cell, OperatorTable, flows_of, in_db
from ci.pipeline.precision import MEASURED_SCHEMES, ONNX_PRECISIONS
from provisioning.base.commands import session
from provisioning.base.settings import DEFAULT_SOC
from provisioning.fixes import load_fixes
from provisioning.known_faults import Fault, load_faults
from provisioning.manifest import load_socs

LOSES = "loses"

Cells = Mapping[str, Mapping[str, Mapping[str, Cell]]]
"""By operator, chip and scheme."""

Column = tuple[str, str]
"""Chip and scheme."""


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
        """Whether it has another word on another chip."""
        return len({row[scheme].result for row in self.cells[operator].values() if scheme in row}) > 1


@dataclass(frozen=True, slots=True)
class ShownCell:
    colour: str
    text: str
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class GridCell:
    """A cell of a grid."""

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
    faults: Sequence[Fault]
    suggestions: Sequence[str]
    good: str
    """The schemes at which all is well on the lane's first chip."""


def lanes(table: OperatorTable) -> tuple[MeasuredLane, MeasuredLane]:
    onnx = shipped_onnx()
    return (
        MeasuredLane("ExecuTorch", "", MEASURED_SCHEMES, table.measured, table.cells),
        MeasuredLane("ONNX Runtime", "onnx/", ONNX_PRECISIONS, onnx.measured, onnx.cells),
    )


def chip_names() -> Mapping[str, str]:
    """`V75, 8 Gen 3` for each chip."""
    return {name: ", ".join([f"V{soc.arch}", *soc.called[:1]]) for name, soc in load_socs().items()}


def views(table: OperatorTable) -> Iterator[View]:
    for lane in lanes(table):
        for chip in lane.chips:
            word = "on" if chip == lane.chips[0] else ""
            yield _view(lane, chip, "on", word, [(chip, scheme) for scheme in lane.schemes])
        for scheme in lane.schemes if len(lane.chips) > 1 else ():
            word = "at" if scheme == lane.schemes[0] else ""
            yield _view(lane, scheme, "at", word, [(chip, scheme) for chip in lane.chips])


def _view(lane: MeasuredLane, place: str, kind: str, first: str, columns: Sequence[Column]) -> View:
    rows = [_row(lane, name, columns, name, lane.page(name)) for name in lane.cells]
    return View(
        lane.name,
        place,
        first,
        f"operators/{lane.folder}{kind}-{place}.html",
        [scheme if kind == "on" else chip for chip, scheme in columns],
        [row for row in rows if any(row.cells)],
        "; ".join(dict.fromkeys(lane.measured[chip] for chip, _ in columns)),
    )


def _row(lane: MeasuredLane, operator: str, columns: Sequence[Column], title: str, href: str) -> GridRow:
    seen = [_seen(lane, operator, *column) for column in columns]
    return GridRow(title, href, seen, any(lane.differs(operator, scheme) for _, scheme in columns))


def _seen(lane: MeasuredLane, operator: str, chip: str, scheme: str) -> GridCell | None:
    cell = lane.cell(operator, chip, scheme)
    if cell is None:
        return None
    shown = _shown(cell)
    results = [*cell.results, *([LOSES] if cell.loses_db is not None else [])]
    more = [f"loses{in_db(cell.loses_db)}"] if cell.loses_db is not None else []
    more += [
        f"some {MEANINGS[result][0]}"
        for result in cell.results
        if result in FAILING and result != cell.result
    ]
    if chain := cell.others.get(IN_CHAIN):
        more.append(f"chain {MEANINGS[chain.result][0]}")
    where = f"{operator} at {scheme} on {chip}: "
    return GridCell(
        f"{lane.page(operator)}#{scheme}",
        shown.colour,
        MEANINGS[cell.result][0],
        in_db(cell.db).strip(),
        more,
        " ".join(results),
        "\n".join([where + shown.text, *shown.notes]),
        lane.differs(operator, scheme),
    )


def _shown(cell: Cell) -> ShownCell:
    differs = not set(FAILING).isdisjoint(cell.results) or (cell.result == "whole" and not cell.good)
    colour = "mixed" if differs and cell.result not in (*FAILING, "no_kernel") else cell.result
    return ShownCell(colour, str(cell), list(_notes(cell)))


def _notes(cell: Cell) -> Iterator[str]:
    for result in cell.results:
        forms = [
            f"{name}{f' ({figure})' if (figure := case.figure.strip()) else ''}"
            for name, case in sorted(cell.others.items())
            if case.result == result
        ]
        if forms:
            yield f"{MEANINGS[result][0]}: {', '.join(forms)}"


def pages(table: OperatorTable) -> Iterator[OperatorPage]:
    both = lanes(table)
    for lane, other in zip(both, reversed(both), strict=True):
        keys = {key_of(name).lower(): name for name in other.cells}
        for name in lane.cells:
            also = keys.get(key_of(name).lower(), "")
            yield _page(lane, name, {f"{also} through {other.name}": other.page(also)} if also else {})


def _page(lane: MeasuredLane, name: str, also: Mapping[str, str]) -> OperatorPage:
    schemes = [scheme for scheme in lane.schemes if any(scheme in row for row in lane.cells[name].values())]
    grid = [
        _row(lane, name, [(chip, scheme) for chip in lane.chips], scheme, f"{lane.page(name)}#{scheme}")
        for scheme in schemes
    ]
    good = [scheme for scheme in schemes if (cell := lane.cell(name, lane.chips[0], scheme)) and cell.good]
    own = key_of(name)
    return OperatorPage(
        name,
        lane,
        also,
        grid,
        [SchemePart(scheme, _chips(lane, name, scheme), proof(lane, name, scheme)) for scheme in schemes],
        faults_of(name),
        [
            f"{NEEDED[fix.where]}: {fix.words}"
            for fix in load_fixes()
            if name in fix.operators or (not lane.folder and own in map(key_of, fix.operators))
        ],
        ", ".join(good),
    )


def _chips(lane: MeasuredLane, name: str, scheme: str) -> list[Chips]:
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for chip in lane.chips:
        if cell := lane.cell(name, chip, scheme):
            shown = _shown(cell)
            tried = f"{cell.cases} programs tried" if cell.cases > 1 else "one program tried"
            alike[shown.text, shown.colour, (tried, *shown.notes)].append(chip)
    return [Chips(chips, text, tone, notes) for (text, tone, notes), chips in alike.items()]


def proof(lane: MeasuredLane, name: str, scheme: str) -> list[str]:
    """The commands that measure an operator at a scheme again."""
    if lane.folder:
        suite = "manifests/suites/onnx_operators.toml"
        return [session("test_onnx", "--suite", suite, "-k", f"{name}/{scheme}/").installed]
    cells = [row[scheme] for row in lane.cells[name].values() if scheme in row]
    if newer := sorted({test for cell in cells for test in cell.newer}):
        expression = " or ".join(f"{test}[" for test in newer)
        return [session("test_upstream", "rework-op", "-k", expression).installed]
    ways = (
        ("operators", "values", "-k", f"test_{name}. or *-{name}-*", *flows_of(scheme, "values")),
        ("chains", "-k", f"*-{name}-*", "--flow", scheme),
    )
    return [session("test_upstream", *words).installed for words in ways]


NEEDED = {"cpu": "where it stays on the CPU", "builder": "where the backend's builder fails at it"}


def faults_of(name: str) -> list[Fault]:
    return [fault for fault in load_faults() if name in fault.operators]


RESULTS: Mapping[str, str] = {
    **{name: word for name, (word, _) in MEANINGS.items()},
    LOSES: "loses accuracy",
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
            "least_db": cell.db,
            "form": cell.form,
            "loses_db": cell.loses_db,
            "cases": cell.cases,
            "others": "; ".join(f"{form}: {case}" for form, case in cell.others.items()),
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
