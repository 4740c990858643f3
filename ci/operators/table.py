"""The operator table: how each operator works on HTP in each scheme, as measured on the emulator.

`nox -s test_upstream -- operators values chains rework-op --accept` writes it; docs/operators.md shows it.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, StringConstraints

from ci.operators.names import key_of, names_of
from ci.pipeline.precision import MeasuredScheme, OnnxPrecision
from ci.pipeline.slices import LEAST_DB
from provisioning.base.commands import session
from provisioning.base.documents import Model
from provisioning.base.errors import ManifestError
from provisioning.base.settings import DEFAULT_SOC, MANIFESTS

TABLE = MANIFESTS / "upstream" / "operators" / "table.json"
"""What ExecuTorch's files have, and ONNX's operators; table-CHIP.json beside it has the cells of a chip."""

PLAIN = "plain"
"""Our own case of usual values and shape."""

Result = Literal["crash", "dies", "wrong", "lost", "bad_test", "no_kernel", "cpu", "part", "float", "whole"]

FAILING = ("lost", "wrong", "dies", "crash")
NOT_COMPILED = ("dies", "crash")

MEANINGS: Mapping[str, tuple[str, str]] = {
    "whole": ("whole", "all of it is one delegate on HTP"),
    "float": ("float", "on HTP, but not quantized: it runs in fp16 there"),
    "part": ("part", "some operators stay on the CPU"),
    "cpu": ("CPU", "all of it stays on the CPU"),
    "no_kernel": (
        "no kernel",
        "on the CPU, where ExecuTorch has no kernel of it: it does not run",
    ),
    "bad_test": ("no test", "ExecuTorch's test does not test it"),
    "lost": (
        "LOST",
        f"HTP computes what the quantized model says, and that is itself below {LEAST_DB:g} dB of the float "
        "model: the first figure is HTP against the quantized model, the second the quantized one to float",
    ),
    "wrong": (
        "WRONG",
        f"lowers and runs, and HTP is below {LEAST_DB:g} dB of the quantized model, or its outputs have "
        "another shape than the float model's",
    ),
    "dies": ("DIES", "it is taken, and quantizing, lowering or running it fails"),
    "crash": ("CRASHES", "the process that lowers or runs it ends by a signal"),
}
"""The word and the meaning of a result."""


DRAWS = 5
"""How many inputs a plain case, one in a chain and one of ONNX run with, and are calibrated with."""

PROGRAMS = 3
"""How many programs a plain case has where scales make the difference."""

IN_CHAIN = "in a chain"
"""What the name of such a case begins with."""


class CaseResult(Model):
    """What one of our own cases gave, with one draw of inputs or with several."""

    result: Result
    sqnr_db: float | None = None
    """The median of the draws, compared with the quantized model on the CPU."""
    range_db: tuple[float, float] | None = None
    """The least and the greatest of the draws, if there are several."""
    float_db: float | None = None
    """If LOST: the median of the quantized model on the CPU against the float model."""
    draws: Mapping[Result, int] = Field(default_factory=dict)
    """How many draws gave each result, if not all gave the same."""

    def __str__(self) -> str:
        """`WRONG -6 dB`, `LOST exact, 14 dB to float`, `DIES`, or `whole 58 dB (4 to 60), 1 of 5 draws
        WRONG`."""
        figures = _figures(self.result, self.sqnr_db, self.float_db, self.range_db)
        return ", ".join([MEANINGS[self.result][0] + figures, *self.other_draws])

    @property
    def figures(self) -> str:
        return _figures(self.result, self.sqnr_db, self.float_db)

    @property
    def other_draws(self) -> list[str]:
        """`1 of 5 draws WRONG`."""
        every = sum(self.draws.values())
        counts = Counter[str](self.draws)
        return [
            f"{counts[name]} of {every} draws {word}"
            for name, (word, _) in MEANINGS.items()
            if name in counts and name != self.result
        ]


class ChainResult(CaseResult):
    """What an operator gave between two layers with weights, in the form that models have."""

    forms: Mapping[str, CaseResult] = Field(default_factory=dict)
    """Other forms that gave another result, by name in manifests/upstream/values.toml."""

    def __str__(self) -> str:
        """`whole 58 dB (55 to 60), 1 of 5 draws WRONG, scalar CPU`."""
        forms = [f"{name.replace('_', ' ')} {case}" for name, case in self.forms.items()]
        return ", ".join([super().__str__(), *forms])

    @property
    def results(self) -> set[Result]:
        return {self.result, *self.draws, *(case.result for case in self.forms.values())}


class Cell(CaseResult):
    """One operator in one scheme on one chip.

    Its result is that of most of ExecuTorch's tests and of our plain case; of results that are as frequent,
    the worst. What is not whole on HTP alone, and does not fail, has the result of the chain. Its figures
    are those of the draws of what decides, the plain case or the chain."""

    alone: Result | None = None
    """What the operator gave alone, if the chain decides."""
    chain: ChainResult | None = None
    of_chain: bool = False
    """Whether the chain decides, and the figures are its."""
    deciding: tuple[int, int] | None = None
    """How many of those have that result, and how many there are, if not all have it."""
    one_draw: bool = False
    """No case with that result has several draws: the figures are the least of all of them, if there are
    any. `float_db` is also that of Qualcomm's newer tests, which compare with the float model alone: it has
    in it what quantizing itself loses."""
    least_db: float | None = None
    """The least of all cases with that result, if the draws are well above it; if LOST, of the quantized
    model against the float model."""
    worst: str = ""
    """The case with the least figure: its inputs, or ExecuTorch's test. Empty if all are exact, or no case is
    well below the draws."""
    equal_to_float: float = 1.0
    """Of ONNX's operators: the share of integers that are those of the float model."""
    loses_db: float | None = None
    """How much farther HTP is from the float model than the quantized model on the CPU is, at most; None
    below LOSES_DB."""
    in_float: tuple[str, ...] = ()
    """Operators that run in fp16 beside quantized ones."""
    tried_in: MeasuredScheme | None = None
    """The scheme in which ranges and shapes were tried: it differs in the weights alone, and the operator has
    none."""
    models: Annotated[int, Field(ge=1)] = 1
    """How many cases were tried."""
    cpu: tuple[str, ...] = ()
    """The operators that stayed on the CPU."""
    others: Mapping[str, Result] = Field(default_factory=dict)
    """Cases with another result: tests of ExecuTorch's suite, and our own plain one."""
    elsewhere: Mapping[str, Result] = Field(default_factory=dict)
    """Ranges and shapes of manifests/upstream/values.toml that run elsewhere than the result says."""
    bad: Mapping[str, CaseResult] = Field(default_factory=dict)
    """Ranges and shapes of manifests/upstream/values.toml that are wrong, die or crash."""
    default: Result | None = None
    """On another chip than SM8650: what the same cases give there, where it is another result."""
    newer: tuple[str, ...] = ()
    """The tests of the suite rework-op that were measured, where `operators` and `values` measure nothing."""

    def __str__(self) -> str:
        """`whole 58 dB (57 to 60)`, `whole 43 dB¹ (1 DIES)`, `part 38 dB: unsqueeze_copy`, or
        `whole 72 dB (71 to 73); 51 dB: small [-0.01, 0.01]`."""
        figure = _figures(self.result, self.sqnr_db, self.float_db, self.range_db) + self.mark
        figure = "" if self.of_chain else ", ".join([figure, *self.other_draws])
        if self.result in FAILING and self.deciding:
            figure += " in {} of {}".format(*self.deciding)
        if self.equal_to_float < 1:
            figure += f", {self.equal_to_float:.0%} equal to float"
        if self.loses_db is not None:
            figure += f", loses{in_db(self.loses_db)}"
        if self.in_float:
            figure += f", {', '.join(self.in_float)} in fp16"
        names = ", ".join(name.removeprefix("aten::") for name in self.cpu)
        beside = f": {names}" if names and self.result in ("part", "cpu", "no_kernel") else ""
        if self.alone:
            figure = f", alone {MEANINGS[self.alone][0]}"
        counts = Counter[str](self.others.values())
        words = [f"{counts[name]} {word}" for name, (word, _) in MEANINGS.items() if name in counts]
        others = f" ({', '.join(words)})" if words else ""
        text = f"{MEANINGS[self.result][0]}{figure}{others}{beside}{self._worse}"
        return f"{text}; chain {self.chain}" if self.chain else text

    @property
    def _worse(self) -> str:
        """The worst with other inputs: `; WRONG -6 dB: across [0.5, 2.5]`, `; 51 dB: small [-0.01, 0.01]`."""
        inexact = [
            (case.result != "wrong", figure if figure is not None else -EXACT, f"{case}: {name}")
            for name, case in self.bad.items()
            if case.result in ("wrong", "lost") and not name.startswith(IN_CHAIN)
            for figure in [case.sqnr_db if case.float_db is None else case.float_db]
        ]
        if inexact and self.result not in FAILING:
            return f"; {min(inexact)[2]}"
        to_float = " to float" if self.result == "lost" else ""
        return "" if self.least_db is None else f";{in_db(self.least_db)}{to_float}: {self.worst}"

    @property
    def mark(self) -> str:
        """After a figure of one draw."""
        return ONE_DRAW if self.one_draw else ""

    @property
    def results(self) -> tuple[Result, ...]:
        """Each result that one of its cases gave, from the best to the worst."""
        bad = {case.result for case in self.bad.values()}
        every = {self.result, *self.draws, *self.others.values(), *self.elsewhere.values(), *bad}
        every |= self.chain.results if self.chain else set()
        return tuple(result for result in MEANINGS if result in every)

    @property
    def good(self) -> bool:
        """Whole on HTP and as exact as the quantized model on the CPU, in all cases."""
        return (
            self.result == "whole"
            and {*FAILING, "bad_test"}.isdisjoint(self.results)
            and (self.float_db is None or self.float_db >= LEAST_DB)
            and self.equal_to_float == 1
            and self.loses_db is None
            and (self.chain is None or self.chain.result == "whole")
        )


EXACT = 200.0
"""The SQNR in dB of outputs that are equal."""

LOSES_DB = 20.0
"""HTP loses accuracy if it is so much farther from the float model than the quantized model on the CPU is."""

DIFFERS = "†"
"""Marks what is not as ExecuTorch's files say."""

ONE_DRAW = "¹"
"""Marks a figure of one draw of inputs."""

Chip = Annotated[str, StringConstraints(pattern=r"^[A-Z]{2,3}\d{4}[A-Z]{0,2}$")]
ONLY: dict[str, Any] = {"additionalProperties": False}
"""For JSON Schema: no other keys than those of the pattern."""
Row = Mapping[MeasuredScheme, Cell]
Rows = Annotated[Mapping[Chip, Row], Field(json_schema_extra=ONLY)]
OnnxRows = Annotated[Mapping[Chip, Mapping[OnnxPrecision, Cell]], Field(json_schema_extra=ONLY)]


class OnnxOperators(Model):
    """Operators of ONNX's opset, by ONNX's names, compiled by ONNX Runtime."""

    opset: int = 0
    measured: Annotated[Mapping[Chip, str], Field(json_schema_extra=ONLY)] = {}
    """What each chip was measured with."""
    cells: Mapping[str, OnnxRows] = {}
    """By operator, chip and precision."""
    left_out: Mapping[str, str] = {}
    """Operators that are not measured, each with the reason."""


class OperatorTable(Model):
    """A table, or a part of one."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    measured: Annotated[Mapping[Chip, str], Field(json_schema_extra=ONLY)]
    """What each chip was measured with."""
    upstream: Mapping[str, tuple[Literal["lowers", "quantizes"], ...]]
    """What ExecuTorch's files have for an operator: a builder, a rule of the quantizer."""
    cells: Mapping[str, Rows]
    """By operator, chip and scheme."""
    onnx: OnnxOperators = OnnxOperators()

    def files(self, operator: str) -> tuple[str, ...]:
        """`lowers`, `quantizes`: of the operator, and of the names that it has after it is exported."""
        words = {word for name in names_of(operator) for word in self.upstream.get(name, ())}
        return tuple(sorted(words))

    def contradiction(self, operator: str, scheme: str, cell: Cell) -> str:
        """How the measurement differs from what ExecuTorch's files say; empty if it does not."""
        files = self.files(operator)
        if cell.result == "bad_test":
            return ""
        if scheme == "fp16":
            return "has a builder, and is not whole" if "lowers" in files and cell.result != "whole" else ""
        if "quantizes" in files and cell.result != "whole":
            return "has a rule of the quantizer, and is not whole"
        if files == ("lowers",) and cell.result == "whole":
            return "has no rule of the quantizer, and runs quantized"
        return ""

    def marked(self, operator: str, scheme: str, cell: Cell) -> str:
        """The cell in words, with DIFFERS where ExecuTorch's files say something else."""
        return f"{cell} {DIFFERS}" if self.contradiction(operator, scheme, cell) else str(cell)

    def as_files(self, path: Path) -> dict[Path, str]:
        """In parts, as `read` joins them: a chip's cells stand in a file of its own."""
        files = {path: self.model_copy(update={"measured": {}, "cells": {}})}
        for soc, measured in self.measured.items():
            cells = {operator: {soc: chips[soc]} for operator, chips in self.cells.items() if soc in chips}
            files[_of_chip(path, soc)] = OperatorTable.model_validate(
                {"schema": self.schema_, "measured": {soc: measured}, "upstream": {}, "cells": cells}
            )
        return {file: part.as_json() for file, part in files.items()}

    def as_json(self) -> str:
        whole = self.model_dump(mode="json", by_alias=True, exclude={"cells", "onnx"})
        brief = self.model_dump(mode="json", exclude_defaults=True)
        fields = [*_fields(whole, 1), _lines("cells", brief["cells"], 1)]
        if onnx := brief.get("onnx"):
            rows = _lines("cells", onnx.pop("cells", {}), 2)
            fields.append(' "onnx": {\n' + ",\n".join([*_fields(onnx, 2), rows]) + "\n }")
        return "{\n" + ",\n".join(fields) + "\n}\n"


def _fields(values: Mapping[str, object], indent: int) -> Iterator[str]:
    for key, value in values.items():
        yield f"{' ' * indent}{json.dumps(key)}: {json.dumps(value, sort_keys=True)}"


def _lines(key: str, values: Mapping[str, object], indent: int) -> str:
    """A line for each value, sorted."""
    margin = " " * indent
    rows = [f"{margin}{json.dumps(name)}:{_compact(value)}" for name, value in sorted(values.items())]
    return f"{margin}{json.dumps(key)}: {{\n" + ",\n".join(rows) + f"\n{margin}}}"


def _compact(value: object) -> str:
    """The file has thousands of cells."""
    return json.dumps(value, separators=(",", ":"))


def files_of(path: Path = TABLE) -> list[Path]:
    """A table's own file, and those of its chips beside it."""
    return [path, *sorted(path.parent.glob(_of_chip(path, "*").name))]


def _of_chip(path: Path, soc: str) -> Path:
    return path.with_name(f"{path.stem}-{soc}{path.suffix}")


def read(path: Path = TABLE) -> OperatorTable:
    """With the parts that stand beside it."""
    table, *parts = (_read(file) for file in files_of(path))
    measured, cells = dict(table.measured), {name: dict(chips) for name, chips in table.cells.items()}
    for part in parts:
        measured.update(part.measured)
        for operator, chips in part.cells.items():
            cells.setdefault(operator, {}).update(chips)
    return table.model_copy(update={"measured": measured, "cells": dict(sorted(cells.items()))})


def _read(path: Path) -> OperatorTable:
    if not path.is_file():
        return OperatorTable.model_validate({"schema": 1, "measured": {}, "upstream": {}, "cells": {}})
    try:
        return OperatorTable.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ManifestError(
            path,
            "cells",
            expected="a table of operators",
            found=str(error).splitlines()[0],
            fix="nox -s generate writes it again",
        ) from error


@cache
def shipped() -> OperatorTable:
    """The committed table."""
    return read()


class RowNames:
    """The rows of a table by their own names, and by all names that they have."""

    def __init__(self, rows: Iterable[str]) -> None:
        self._by_key: dict[str, list[str]] = defaultdict(list)
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for name in rows:
            self._by_key[key_of(name)].append(name)
            for key in dict.fromkeys(names_of(name)):
                self._by_name[key].append(name)

    def row_of(self, operator: str) -> str:
        """The row of the operator's own name, else the only one that has this name among its names; empty if
        there is none."""
        key = key_of(operator)
        names = self._by_key.get(key) or self._by_name.get(key, [])
        return names[0] if len(names) == 1 else ""


@cache
def row_names() -> RowNames:
    """Of the committed table, whose cells take several times as long to read."""
    try:
        cells = (json.loads(file.read_text(encoding="utf-8"))["cells"] for file in files_of())
        return RowNames(dict.fromkeys(name for names in cells for name in names))
    except (OSError, ValueError, TypeError, KeyError):
        # What is wrong with it is said there.
        return RowNames(shipped().cells)


def _figures(
    result: Result,
    sqnr_db: float | None,
    float_db: float | None,
    range_db: tuple[float, float] | None = None,
) -> str:
    """Each with what it is compared with; said where nothing could be compared."""
    to_float = "" if float_db is None else f",{in_db(float_db)} to float"
    return in_db(sqnr_db) + in_range(range_db) + to_float or (", no figure" if result == "wrong" else "")


def in_range(range_db: tuple[float, float] | None) -> str:
    """` (71 to 73)`, with a space before it; empty if all are alike."""
    least, most = range_db or (EXACT, EXACT)
    if least >= EXACT or round(least) == round(most):
        return ""
    return f" ({round(least)} to {in_db(most).strip().removesuffix(' dB')})"


def in_db(figure: float | None) -> str:
    """With a space before it."""
    return "" if figure is None else " exact" if figure >= EXACT else f" {round(figure)} dB"


class Inexact(NamedTuple):
    """An operator that loses accuracy or does not compile in a scheme for some inputs, and the command that
    shows it."""

    operator: str
    message: str
    command: str
    compiles: bool = True


def measured(operator: str, scheme: str) -> str:
    """The table's cell in words; empty if there is none."""
    name, chips = _row(operator)
    cell = _cell(chips, DEFAULT_SOC, scheme)
    return f"{name} at {scheme} on {DEFAULT_SOC}: {cell}" if cell else ""


def name_in_table(operator: str) -> str:
    """The name of its row; empty if it has none, or several."""
    return row_names().row_of(operator)


def _row(operator: str) -> tuple[str, Rows]:
    name = name_in_table(operator)
    return name, shipped().cells[name] if name else {}


def by_name(row: Row) -> Mapping[str, Cell]:
    """For schemes that may not be among the measured ones."""
    return dict[str, Cell](row.items())


def _cell(chips: Rows, soc: str, scheme: str) -> Cell | None:
    return by_name(chips.get(soc, {})).get(scheme)


def taken_at(operator: str, scheme: str, soc: str, refused: Collection[str] = ()) -> str:
    """The precision at which a chip takes an operator whole that it refuses at this one, and at none of
    `refused`; empty if none is known."""
    name, chips = _row(operator)
    good = [
        other
        for other in _better(scheme)
        if other not in refused and (cell := _cell(chips, soc, other)) and cell.good
    ]
    return f"--precision {good[0]}, at which {soc} takes {name} whole; or another chip" if good else ""


def better_than(operator: str, scheme: str, soc: str) -> str:
    """The scheme at which the chip is measured to compute the operator rightly; empty if none is known."""
    _, chips = _row(operator)
    return next((other for other in _better(scheme) if _is_good(chips, {soc}, other)), "")


def operators_in(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, set[int]]:
    """The operators of a program's nodes, with the ranks of their tensors; without those that lowering
    added."""
    operators: dict[str, set[int]] = {}
    for node in nodes.values():
        if not node.get("added"):
            operators.setdefault(node["operator"], set()).update(node.get("ranks", ()))
    return operators


SAID: Mapping[tuple[str, ...], str] = {
    ("wrong",): "loses accuracy on the emulator of",
    ("lost",): f"is below {LEAST_DB:g} dB of float once it is quantized, as seen for",
    NOT_COMPILED: "",
}
"""What is said of cases with these results; of the last, what they do."""


def inexact(
    operators: Iterable[str] | Mapping[str, Collection[int]], scheme: str, soc: str = DEFAULT_SOC
) -> Iterator[Inexact]:
    """Those of these operators that lose accuracy, then those that quantizing loses, then those that do not
    compile, with the scheme to use instead. Where all is well with a chip's own cases, those of SM8650 count:
    it has more. A mapping gives the ranks of their tensors: shapes of other ranks do not count."""
    ranks = operators if isinstance(operators, Mapping) else {}
    rows = {
        name: (operator, chips) for operator in sorted(set(operators)) for name, chips in [_row(operator)]
    }
    for results, verb in SAID.items():
        for name, (operator, chips) in rows.items():
            own, usual = _cell(chips, soc, scheme), _cell(chips, DEFAULT_SOC, scheme)
            place, cell, few = soc, own, ""
            if own is None or (set(FAILING).isdisjoint(own.results) and _says_more(usual, own)):
                few = f"{soc} was not measured" if own is None else f"{soc} was measured with fewer cases"
                place, cell = DEFAULT_SOC, _without_plain(usual) if own else usual
            words = cell and _where(cell, results, ranks.get(operator, ()))
            if cell is None or not words:
                continue
            better = next((name for name in _better(scheme) if _is_good(chips, {soc, place}, name)), "")
            instead = f": keep it at {better}" if better else ""
            measured_on = _place(place, shipped().measured, few)
            message = f"{name} at {scheme} {verb or f'{_failure(cell)} for'} {measured_on} {words}{instead}"
            compiles = results != NOT_COMPILED
            yield Inexact(operator, message, _command(name, scheme, soc, cell, results), compiles)


def inexact_onnx(operators: Iterable[str], precision: str, soc: str = DEFAULT_SOC) -> Iterator[Inexact]:
    """Those of these operators of ONNX that fail in ONNX Runtime, with the precision to use instead."""
    few = "" if soc == DEFAULT_SOC else f"{soc} was not measured"
    place = _place(DEFAULT_SOC, shipped().onnx.measured, few)
    for name in sorted(set(operators)):
        cells = dict[str, Cell](shipped().onnx.cells.get(name, {}).get(DEFAULT_SOC, {}).items())
        cell = cells.get(precision)
        if cell is None or cell.result not in FAILING:
            continue
        compiles = cell.result not in NOT_COMPILED
        verb = f"is wrong ({in_db(cell.sqnr_db).strip() or 'no figure'})" if compiles else _failure(cell)
        if cell.result == "lost":
            verb = f"is {in_db(cell.float_db).strip()} from float once it is quantized, as seen"
        order = ("16a8w", "8a8w", "fp16") if precision == "fp16" else ("8a8w", "16a8w", "fp16")
        better = next((name for name in order if name in cells and cells[name].good), "")
        instead = f": keep it at {better}" if better else ""
        message = f"{name} at {precision} {verb} on the emulator of {place}{instead}"
        words = ("--suite", "manifests/suites/onnx_operators.toml", "-k", f"{name}/{precision}/")
        yield Inexact(name, message, session("test_onnx", *words), compiles)


BUILD = re.compile(r"\bQNN v?\d+\.\d+\.\d+")


def _place(soc: str, versions: Mapping[str, str], few: str) -> str:
    """`SM8650 (QNN v2.49.40; SM8750 was not measured)`: your own QNN may be another one. Of several builds
    none is named."""
    builds = set(BUILD.findall(versions.get(soc, "")))
    notes = [*(builds if len(builds) == 1 else ()), *([few] if few else ())]
    return f"{soc} ({'; '.join(notes)})" if notes else soc


def _says_more(usual: Cell | None, own: Cell) -> bool:
    """Not where most cases fail on SM8650 and this chip is better."""
    return usual is not None and usual.models > own.models and usual.result not in FAILING


def _without_plain(cell: Cell | None) -> Cell | None:
    bad = (
        {} if cell is None else {name: case for name, case in cell.bad.items() if not name.startswith(PLAIN)}
    )
    return cell and cell.model_copy(update={"bad": bad})


IN_ALL = "in all its usual cases"


def _where(cell: Cell, results: tuple[str, ...], ranks: Collection[int] = ()) -> str:
    """The inputs and tests that gave one of these results; empty if none did."""
    cases = [
        f"{case}{f' ({figure})' if (figure := found.figures.strip(', ')) else ''}"
        for case, found in sorted(cell.bad.items())
        if found.result in results and not _is_of_another_model(case, ranks)
    ]
    tests = sorted(name for name, other in cell.others.items() if other in results and name != PLAIN)
    parts = [f"with inputs {', '.join(cases)}"] if cases else []
    if cell.result in results:
        parts.append("in {} of its {} usual cases".format(*cell.deciding) if cell.deciding else IN_ALL)
    elif tests and "lost" not in results:
        # What quantizing loses in a test comes of the test's values: of a model its own figures tell.
        parts.append(f"in ExecuTorch's tests {', '.join(tests)}")
    return " and ".join(parts)


def _is_of_another_model(case: str, ranks: Collection[int]) -> bool:
    """A shape of a rank that the model has not, or a form of the operator that it need not have."""
    kind, _, sizes = case.partition(" ")
    of_another_rank = bool(ranks) and kind == "shape" and sizes.count("x") + 1 not in ranks
    return of_another_rank or case.startswith(f"{IN_CHAIN}, ")


def _failure(cell: Cell) -> str:
    words = {"dies": "does not compile", "crash": "crashes"}
    return " or ".join(words[result] for result in NOT_COMPILED if result in cell.results)


def _better(scheme: str) -> Iterator[str]:
    """What to use instead: activations of the same width, then wider ones, then 8 bits, then float."""
    narrow = scheme.startswith("8a")
    order = ("8a8w", "16a8w", "16a16w", "fp16") if narrow else ("16a8w", "16a16w", "8a8w", "fp16")
    yield from (name for name in order if name != scheme)


def _is_good(chips: Rows, socs: Iterable[str], scheme: str) -> bool:
    """On each of these chips that was measured."""
    cells = [cell for soc in socs if (cell := _cell(chips, soc, scheme))]
    return bool(cells) and all(cell.good for cell in cells)


def _command(name: str, scheme: str, soc: str, cell: Cell, results: tuple[str, ...]) -> str:
    """Our own cases show it if there is one; else ExecuTorch's tests."""
    chip = [] if soc == DEFAULT_SOC else ["--soc", soc]
    if cell.newer:
        expression = " or ".join(f"{test}[" for test in cell.newer)
        return session("test_upstream", "rework-op", "-k", expression, *chip)
    own = [
        inputs
        for inputs, case in cell.bad.items()
        if case.result in results and not _is_of_another_model(inputs, ())
    ]
    suite, expression = ("values", f"*-{name}-*") if own else ("operators", f"test_{name}.")
    if own and all(inputs.startswith(IN_CHAIN) for inputs in own):
        suite = "chains"
    flow = scheme if suite == "chains" or not own else cell.tried_in or scheme
    return session("test_upstream", suite, "--flow", flow, "-k", expression, *chip)
