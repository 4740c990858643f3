"""The operator tables: how each operator works on HTP in each scheme, as measured on the emulator; of
ExecuTorch, and of ONNX as ONNX Runtime compiles it.

They are measured and made in the laboratory; docs/operators.md shows the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, StringConstraints

from ci.operators.conditions import Traits, key_of, names_of
from provisioning.base.commands import session
from provisioning.base.documents import Model
from provisioning.base.errors import ManifestError
from provisioning.base.settings import DEFAULT_SOC, MANIFESTS

TABLE = MANIFESTS / "upstream" / "operators.json"

PLAIN = "plain"
"""Our own case of usual values and shape."""

Result = Literal["crash", "dies", "wrong", "lost", "bad_test", "no_kernel", "cpu", "part", "float", "whole"]

FAILING = ("lost", "wrong", "dies", "crash")
INEXACT = ("lost", "wrong")

WORDS: Mapping[Result, str] = {
    "whole": "whole",
    "float": "float",
    "part": "part",
    "cpu": "CPU",
    "no_kernel": "no kernel",
    "bad_test": "no test",
    "lost": "LOST",
    "wrong": "WRONG",
    "dies": "DIES",
    "crash": "CRASHES",
}
"""By result, from the best."""

WORST_FIRST: tuple[Result, ...] = tuple(reversed([*WORDS]))

IN_CHAIN = "in a chain"
"""The form between two layers; `in a chain, scalar` is another way to write the operator there."""


class Case(NamedTuple):
    """What one form of an operator gave, in the worst of its draws."""

    result: Result
    db: float | None = None
    """Its SQNR against the quantized model on the CPU; if LOST, that one's against the float model."""

    def __str__(self) -> str:
        """`WRONG -6 dB`, or `DIES`."""
        return f"{WORDS[self.result]}{self.figure}"

    @property
    def figure(self) -> str:
        """With a space before it."""
        return in_db(self.db) + (" to float" if self.result == "lost" and self.db is not None else "")


class Cell(NamedTuple):
    """One operator in one scheme on one chip.

    Its word is that of most of ExecuTorch's tests and of our plain case; of words that are as frequent, the
    worst. What is not whole on HTP alone, and does not fail, has the word of the chain."""

    result: Result
    db: float | None = None
    """The least figure of all draws that gave this word."""
    form: str = ""
    """The form that has this figure: inputs, a shape, or a test of ExecuTorch's; empty: the plain case."""
    cases: int = 1
    """How many programs were tried."""
    others: Mapping[str, Case] = {}
    """The forms whose worst draw gave another word. `alone`: what it gave without a chain, which decides."""
    loses_db: float | None = None
    """How much farther HTP is from the float model than the quantized model on the CPU is, at most; None
    below 20."""

    def __str__(self) -> str:
        """`whole 51 dB: small [-0.01, 0.01]; WRONG -6 dB: across [0.5, 2.5]`."""
        figure = Case(self.result, self.db).figure
        form = f": {self.form}" if self.form and figure else ""
        loses = "" if self.loses_db is None else f", loses{in_db(self.loses_db)}"
        failing = (
            (WORST_FIRST.index(case.result), name)
            for name, case in self.others.items()
            if case.result in FAILING and not name.startswith(f"{IN_CHAIN},")
        )
        worst = min(failing, default=None)
        other = f"; {self.others[worst[1]]}: {worst[1]}" if worst and self.result not in FAILING else ""
        return f"{WORDS[self.result]}{figure}{form}{loses}{other}"

    @property
    def results(self) -> tuple[Result, ...]:
        """Each word that one of its forms gave, from the best to the worst."""
        every = {self.result, *(case.result for case in self.others.values())}
        return tuple(result for result in WORDS if result in every)

    @property
    def good(self) -> bool:
        """Whole on HTP and as exact as the quantized model on the CPU, in all forms."""
        return (
            self.result == "whole"
            and set(FAILING).isdisjoint(self.results)
            and IN_CHAIN not in self.others
            and self.loses_db is None
        )


EXACT = 200.0
"""The SQNR in dB of outputs that are equal."""

Chip = Annotated[str, StringConstraints(pattern=r"^[A-Z]{2,3}\d{4}[A-Z]{0,2}$")]
ONLY: dict[str, object] = {"additionalProperties": False}
"""For JSON Schema: no other keys than those of the pattern."""
Rows = Annotated[Mapping[Chip, Mapping[str, Cell]], Field(json_schema_extra=ONLY)]
"""By chip and scheme."""


class OperatorTable(Model):
    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    measured: Annotated[Mapping[Chip, str], Field(json_schema_extra=ONLY)] = {}
    """What each chip was measured with."""
    cells: Mapping[str, Rows] = {}


def read(path: Path = TABLE) -> OperatorTable:
    if not path.is_file():
        return OperatorTable()
    try:
        return OperatorTable.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        fix = f"git checkout {path}"
        first, wanted = str(error).splitlines()[0], "a table of operators"
        raise ManifestError(path, "cells", expected=wanted, found=first, fix=fix) from error


@cache
def shipped() -> OperatorTable:
    """The committed table."""
    return read()


def rows_by_key(rows: Iterable[str]) -> Mapping[str, str]:
    """By each operator's key the row of its own name, else the only one that has it among its names."""
    own: dict[str, set[str]] = defaultdict(set)
    among: dict[str, set[str]] = defaultdict(set)
    for name in rows:
        own[key_of(name)].add(name)
        for key in names_of(name):
            among[key].add(name)
    return {key: min(names) for key, names in {**among, **own}.items() if len(names) == 1}


@cache
def shipped_rows() -> Mapping[str, str]:
    return rows_by_key(shipped().cells)


def in_db(figure: float | None) -> str:
    """With a space before it."""
    return "" if figure is None else " exact" if figure >= EXACT else f" {round(figure)} dB"


@dataclass(frozen=True, slots=True)
class Inexact:
    """An operator that fails in a scheme for some inputs, and the command that shows what was measured."""

    operator: str
    message: str
    command: str


def measured(operator: str, scheme: str) -> str:
    """The table's cell in words; empty if there is none."""
    name, chips = _row(operator)
    cell = _cell(chips, DEFAULT_SOC, scheme)
    return _in_words(name, scheme, DEFAULT_SOC, cell) if cell else ""


def _in_words(name: str, scheme: str, soc: str, cell: Cell, better: str = "") -> str:
    """`better` is the scheme at which it is right."""
    instead = f"; keep it at {better}" if better else ""
    return f"{name} at {scheme} on the emulator of {soc}: {cell}{instead}"


def name_in_table(operator: str) -> str:
    """The name of its row; empty if it has none, or several."""
    return shipped_rows().get(key_of(operator), "")


def _row(operator: str) -> tuple[str, Rows]:
    name = name_in_table(operator)
    return name, shipped().cells[name] if name else {}


def _cell(chips: Rows, soc: str, scheme: str) -> Cell | None:
    return chips.get(soc, {}).get(scheme)


def operators_in(nodes: Mapping[str, Traits]) -> dict[str, set[str]]:
    """The operators of a program's nodes, but for added ones, with the shapes of their tensors: `1x3x8x8`."""
    operators: dict[str, set[str]] = {}
    for node in nodes.values():
        if not node.added:
            shapes = ("x".join(map(str, shape)) for shape in node.shapes)
            operators.setdefault(node.operator, set()).update(shapes)
    return operators


def inexact(
    operators: Iterable[str] | Mapping[str, Collection[str]], scheme: str, soc: str = DEFAULT_SOC
) -> Iterator[Inexact]:
    """Those of these operators that compile and are wrong, or far from float once they are quantized, with
    the scheme to use instead. Where all is well with a chip's own cases, those of SM8650 count: it has more.
    A mapping gives the shapes of their tensors: other shapes do not count, nor do ExecuTorch's tests, whose
    arguments the table does not have."""
    shapes_of = operators if isinstance(operators, Mapping) else {}
    found = ((operator, *_row(operator)) for operator in sorted(set(operators)))
    rows = {name: (operator, chips) for operator, name, chips in found}
    for name, (operator, chips) in rows.items():
        for chip in dict.fromkeys((soc, DEFAULT_SOC)):
            cell = _cell(chips, chip, scheme)
            if cell is None or not (failing := _failing(cell, shapes_of.get(operator))):
                continue
            better = next((other for other in _better(scheme) if _is_good(chips, {soc, chip}, other)), "")
            message = _in_words(name, scheme, chip, failing, better)
            yield Inexact(operator, message, session("diagnose", f"{name}@{scheme}"))
            break


def _failing(cell: Cell, shapes: Collection[str] | None) -> Cell | None:
    """The cell with the forms alone that an operator of these shapes can have; None if none of them is
    inexact."""
    others = {
        form: case
        for form, case in cell.others.items()
        if case.result in INEXACT and (shapes is None or _is_input(form, shapes))
    }
    return cell._replace(others=others) if others or cell.result in INEXACT else None


def _is_input(form: str, shapes: Collection[str]) -> bool:
    """Not a test, a shape that the model has not, nor a form that the operator need not have."""
    kind, _, sizes = form.partition(" ")
    of_another_shape = kind == "shape" and sizes not in shapes
    return bool(sizes) and not of_another_shape and not form.startswith(f"{IN_CHAIN}, ")


def _better(scheme: str) -> Iterator[str]:
    """What to use instead: activations of the same width, then wider ones, then 8 bits, then float."""
    narrow = scheme.startswith("8a")
    order = ("8a8w", "16a8w", "16a16w", "fp16") if narrow else ("16a8w", "16a16w", "8a8w", "fp16")
    yield from (name for name in order if name != scheme)


def _is_good(chips: Rows, socs: Iterable[str], scheme: str) -> bool:
    """On each of these chips that was measured."""
    cells = [cell for soc in socs if (cell := _cell(chips, soc, scheme))]
    return bool(cells) and all(cell.good for cell in cells)


ONNX_TABLE = MANIFESTS / "onnx_operators.json"


@cache
def shipped_onnx() -> OperatorTable:
    """The committed table of ONNX's operators, as ONNX Runtime compiles them."""
    return read(ONNX_TABLE)


def inexact_onnx(operators: Iterable[str], precision: str, *, compiled: bool = False) -> Iterator[Inexact]:
    """Those of these operators of ONNX that fail in ONNX Runtime, with the precision to use instead;
    `compiled`: of a model that was compiled here."""
    for name in sorted(set(operators)):
        cells = shipped_onnx().cells.get(name, {}).get(DEFAULT_SOC, {})
        cell = cells.get(precision)
        if cell is None or cell.result not in (INEXACT if compiled else FAILING):
            continue
        order = ("16a8w", "8a8w", "fp16") if precision == "fp16" else ("8a8w", "16a8w", "fp16")
        better = next((name for name in order if name in cells and cells[name].good), "")
        words = ("--suite", "manifests/suites/onnx_operators.toml", "-k", f"{name}/{precision}/")
        message = _in_words(name, precision, DEFAULT_SOC, cell, better)
        yield Inexact(name, message, session("test_onnx", *words))
