"""Read the operator tables: how each operator of ExecuTorch, and of ONNX as ONNX Runtime compiles it, works
on HTP in each scheme, as measured on the emulator.

The laboratory measures and writes them; docs/operators.md shows them, and `diagnose` shows one operator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, StringConstraints

from provisioning.base.documents import Model
from provisioning.base.errors import ManifestError
from provisioning.base.settings import DEFAULT_SOC, MANIFESTS

ALIASES: Mapping[str, tuple[str, ...]] = {
    **{f"{kind}{n}d": ("convolution",) for kind in ("conv", "convtranspose") for n in (1, 2, 3)},
    "batchnorm2d": ("batchnorm", "nativebatchnormlegitnotraining"),
    "bitwiseand": ("and",),
    "bitwiseor": ("or",),
    "bitwisexor": ("xor",),
    "cat": ("concat",),
    "clone": ("clonedimorder",),
    "conv2d1x1": ("conv2d", "convolution"),
    "div": ("divide",),
    "fold": ("col2im",),
    "gridsampler2d": ("gridsampler",),
    "gridsampler3d": ("gridsampler",),
    "groupnorm": ("nativegroupnorm",),
    "hadamard": ("hadamardtransform",),
    "instancenorm2d": ("instancenorm",),
    "layernorm": ("nativelayernorm",),
    "linear32": ("linear",),
    "matmul": ("mm",),
    "maxpool2d": ("maxpool2dwithindices",),
    "maxpool2ddefaultstride": ("maxpool2d",),
    "maxpool3d": ("maxpool3dwithindices",),
    "pad": ("constantpadnd",),
    "softmax": ("safesoftmax",),
    "split": ("splitwithsizes",),
    "sub": ("rsub",),
    "to": ("todimorder",),
    "unfold": ("im2col",),
    "view": ("unsafeview",),
}
"""Maps a row's key to other keys of the same operator: its name in aten, or the operator that it is
exported as."""

INDEX_COPY = "index_copy"
"""Its name is no `_copy` form of the operator `index`."""


def key_of(operator: str) -> str:
    """Return a key that is the same for `aten.adaptive_avg_pool2d.default` and `adaptive_avgpool2d`, and for
    `view` and `view_copy`."""
    name = operator.removeprefix("aten.").removeprefix("dim_order_ops.").partition(".")[0]
    if name != INDEX_COPY:
        name = name.removesuffix("_copy")
    return name.replace("_", "")


def names_of(operator: str) -> tuple[str, ...]:
    """Return all keys of a row of the table."""
    key = key_of(operator)
    return (key, *ALIASES.get(key, ()))


TABLE = MANIFESTS / "upstream" / "operators.json"

Result = Literal["crash", "dies", "wrong", "lost", "bad_test", "no_kernel", "cpu", "part", "float", "whole"]

FAILING = ("lost", "wrong", "dies", "crash")

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
"""Maps each result, from the best, to the word that is shown."""

WORST_FIRST: tuple[Result, ...] = tuple(reversed([*WORDS]))

IN_CHAIN = "in a chain"
"""This form has the operator between two layers; `in a chain, scalar` is another way to write the operator
there."""


class Case(NamedTuple):
    """It is the result of one form of an operator, in the worst of its draws."""

    result: Result
    db: float | None = None
    """The SQNR against the quantized model on the CPU; if LOST, that model's SQNR against the float
    model."""

    def __str__(self) -> str:
        """Format as `WRONG -6 dB`, or `DIES`."""
        return f"{WORDS[self.result]}{self.figure}"

    @property
    def figure(self) -> str:
        """Format the figure with a space before it; empty if there is none."""
        return format_db(self.db) + (" to float" if self.result == "lost" and self.db is not None else "")


class Cell(NamedTuple):
    """A cell describes one operator in one scheme on one chip.

    Its word is the most frequent one among ExecuTorch's tests and our plain case; of equally frequent words,
    the worst counts. If the operator alone is not whole on HTP, and does not fail, the cell has the word of
    the chain."""

    result: Result
    db: float | None = None
    """The least figure of all draws that gave this word."""
    form: str = ""
    """This form has the figure: inputs, a shape, or a test of ExecuTorch's; empty for the plain case."""
    cases: int = 1
    """So many programs were tried."""
    others: Mapping[str, Case] = {}
    """The forms whose worst draw gave another word. `alone` is the result without a chain, if the
    chain decides."""
    loses_db: float | None = None
    """HTP is at most so much farther from the float model than the quantized model on the CPU is; None below
    20."""

    def __str__(self) -> str:
        """Format as `whole 51 dB: small [-0.01, 0.01]; WRONG -6 dB: across [0.5, 2.5]`."""
        figure = Case(self.result, self.db).figure
        form = f": {self.form}" if self.form and figure else ""
        loses = "" if self.loses_db is None else f", loses{format_db(self.loses_db)}"
        failures = (
            (WORST_FIRST.index(case.result), name)
            for name, case in self.others.items()
            if case.result in FAILING and not name.startswith(f"{IN_CHAIN},")
        )
        worst = min(failures, default=None)
        failure = f"; {self.others[worst[1]]}: {worst[1]}" if worst and self.result not in FAILING else ""
        return f"{WORDS[self.result]}{figure}{form}{loses}{failure}"


EXACT = 200.0
"""Equal outputs have this SQNR in dB."""

Chip = Annotated[str, StringConstraints(pattern=r"^[A-Z]{2,3}\d{4}[A-Z]{0,2}$")]
ONLY: dict[str, object] = {"additionalProperties": False}
"""In JSON Schema, it refuses keys that do not match the pattern."""
Rows = Annotated[Mapping[Chip, Mapping[str, Cell]], Field(json_schema_extra=ONLY)]
"""A cell for each chip and scheme."""


class OperatorTable(Model):
    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    measured: Annotated[Mapping[Chip, str], Field(json_schema_extra=ONLY)] = {}
    """Says what each chip was measured with."""
    cells: Mapping[str, Rows] = {}


def read(path: Path = TABLE) -> OperatorTable:
    if not path.is_file():
        return OperatorTable()
    try:
        return OperatorTable.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        fix = f"git checkout {path}"
        first, content = str(error).splitlines()[0], "a table of operators"
        raise ManifestError(path, "cells", expected=content, found=first, fix=fix) from error


@cache
def shipped_table() -> OperatorTable:
    """Return the committed table."""
    return read()


def rows_by_key(rows: Iterable[str]) -> Mapping[str, str]:
    """Map each operator's key to the row of its own name, else to the only row that has the key among its
    names."""
    own: dict[str, set[str]] = defaultdict(set)
    among: dict[str, set[str]] = defaultdict(set)
    for name in rows:
        own[key_of(name)].add(name)
        for key in names_of(name):
            among[key].add(name)
    return {key: min(names) for key, names in {**among, **own}.items() if len(names) == 1}


@cache
def shipped_rows() -> Mapping[str, str]:
    return rows_by_key(shipped_table().cells)


def format_db(figure: float | None) -> str:
    """Format a figure with a space before it; empty if there is none."""
    return "" if figure is None else " exact" if figure >= EXACT else f" {round(figure)} dB"


ONNX_TABLE = MANIFESTS / "onnx_operators.json"


@cache
def shipped_onnx() -> OperatorTable:
    """Return the committed table of ONNX's operators, as ONNX Runtime compiles them."""
    return read(ONNX_TABLE)


def lines_of(operator: str, scheme: str) -> Iterator[str]:
    """Yield the tables' lines for an operator, by ExecuTorch's name or by ONNX's, on the default chip."""
    for name, table in ((name_in_table(operator), shipped_table()), (operator, shipped_onnx())):
        cell = table.cells.get(name, {}).get(DEFAULT_SOC, {}).get(scheme)
        if cell:
            yield f"{name} at {scheme} on the emulator of {DEFAULT_SOC}: {cell}"


def measured_operators() -> frozenset[str]:
    """Return the names of the operators that were measured, ExecuTorch's and ONNX's."""
    return frozenset((*shipped_rows(), *shipped_onnx().cells))


def schemes_of(operator: str) -> list[str]:
    """Return the schemes at which an operator was measured on the default chip, by either table's name."""
    rows = (shipped_table().cells.get(name_in_table(operator), {}), shipped_onnx().cells.get(operator, {}))
    return list(dict.fromkeys(scheme for row in rows for scheme in row.get(DEFAULT_SOC, {})))


def name_in_table(operator: str) -> str:
    """Return the name of the operator's row; empty if it has none, or several."""
    return shipped_rows().get(key_of(operator), "")
