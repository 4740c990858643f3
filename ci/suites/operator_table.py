"""The operator table: how each operator works on HTP in each scheme, as measured on the emulator.

`nox -s test_upstream -- operators values --table` writes it; docs/operators.md shows it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from ci.suites.accuracy import LEAST_DB
from ci.suites.precision import MEASURED_SCHEMES
from provisioning.base.commands import session
from provisioning.base.documents import Model
from provisioning.base.errors import ManifestError
from provisioning.base.settings import DEFAULT_SOC, MANIFESTS

TABLE = MANIFESTS / "upstream" / "operators" / "table.json"

Result = Literal["crash", "dies", "wrong", "bad_test", "no_kernel", "cpu", "part", "float", "whole"]

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
    "wrong": ("WRONG", f"lowers and runs, and its outputs are wrong or below {LEAST_DB:g} dB"),
    "dies": ("DIES", "the partitioner takes it, and lowering fails"),
    "crash": ("CRASHES", "the process that lowers or runs it ends by a signal"),
}
"""The word and the meaning of a result."""


class Cell(Model):
    """One operator in one scheme on one chip."""

    result: Result
    """Of most of its cases."""
    sqnr_db: float | None = None
    """The least of the cases with that result, compared with the quantized model on the CPU."""
    models: Annotated[int, Field(ge=1)] = 1
    """How many cases were tried."""
    cpu: tuple[str, ...] = ()
    """The operators that stayed on the CPU."""
    others: Mapping[str, Result] = {}
    """Cases with another result: tests of ExecuTorch's suite, and our own plain one."""
    bad: Mapping[str, float | None] = {}
    """Cases of manifests/upstream/values.toml that are wrong, die or crash, with their SQNR in dB. A case is
    named with its range or shape of inputs."""

    def __str__(self) -> str:
        """`whole 58 dB`, `whole 43 dB (1 DIES)`, or `part 38 dB: unsqueeze_copy`."""
        exact = self.sqnr_db is not None and self.sqnr_db >= EXACT
        figure = "" if self.sqnr_db is None else " exact" if exact else f" {self.sqnr_db:.0f} dB"
        names = ", ".join(name.removeprefix("aten::") for name in self.cpu)
        beside = f": {names}" if names and self.result in ("part", "cpu", "no_kernel") else ""
        counts = Counter[str](self.others.values())
        words = [f"{counts[each]} {word}" for each, (word, _) in MEANINGS.items() if each in counts]
        others = f" ({', '.join(words)})" if words else ""
        return f"{MEANINGS[self.result][0]}{figure}{others}{beside}"


EXACT = 200.0
"""The SQNR in dB of outputs that are equal."""


class Table(Model):
    """The file."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    measured: Mapping[str, str] = {}
    """What each chip was measured with."""
    upstream: Mapping[str, tuple[Literal["lowers", "quantizes"], ...]] = {}
    """What ExecuTorch's files have for an operator: a builder, a rule of the quantizer."""
    cells: Mapping[str, Mapping[str, Mapping[str, Cell]]] = {}
    """By operator, chip and scheme. What ONNX Runtime compiled is under `SM8650 onnx`."""

    def as_json(self) -> str:
        head = self.model_dump(mode="json", by_alias=True, exclude={"cells"})
        rows = [
            f"  {json.dumps(name)}: {json.dumps(chips)}"
            for name, chips in sorted(self.model_dump(mode="json", exclude_defaults=True)["cells"].items())
        ]
        fields = [f" {json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in head.items()]
        return "{\n" + ",\n".join([*fields, ' "cells": {\n' + ",\n".join(rows) + "\n }"]) + "\n}\n"


def read(path: Path = TABLE) -> Table:
    if not path.is_file():
        return Table()
    try:
        return Table.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ManifestError(
            path,
            "cells",
            expected="a table of operators",
            found=str(error).splitlines()[0],
            remedy="nox -s test_upstream -- operators values --table writes it again",
        ) from error


@cache
def _shipped() -> Table:
    return read()


BETTER = ("16a8w", "16a16w", "8a8w", "fp16")
"""What to use instead of a scheme that loses accuracy, the first that does not."""


def in_db(figure: float | None) -> str:
    """Of a bad case."""
    return "fails" if figure is None else f"{figure:.0f} dB"


def key_of(operator: str) -> str:
    """The same for `aten.adaptive_avg_pool2d.default` and `adaptive_avgpool2d`."""
    name = operator.removeprefix("aten.").partition(".")[0].removesuffix("_copy")
    return name.replace("_", "")


class Inexact(NamedTuple):
    """An operator that loses accuracy or fails in a scheme for some inputs, and the command that shows it."""

    operator: str
    message: str
    command: str


DELEGATED = re.compile(r"\[Q(?:NN|nn) ?Partitioner(?: Op Support)?\]:? (aten\.\w+)\S* \| True")
SCHEME = re.compile(rf"(?<![a-z0-9])(?:{'|'.join(sorted(MEASURED_SCHEMES, reverse=True))})(?![a-z0-9])")


def inexact_in(log: str) -> list[Inexact]:
    """Those that a log of the partitioner delegates, in the schemes that it names."""
    operators = DELEGATED.findall(log)
    return [each for scheme in sorted(set(SCHEME.findall(log))) for each in inexact(operators, scheme)]


def measured(operator: str, scheme: str) -> str:
    """The table's cell in words; empty if there is none."""
    name, chips = _row(operator)
    cell = chips.get(DEFAULT_SOC, {}).get(scheme)
    return f"{name} at {scheme} on {DEFAULT_SOC}: {cell}" if cell else ""


def _row(operator: str) -> tuple[str, Mapping[str, Mapping[str, Cell]]]:
    wanted = key_of(operator)
    rows = ((name, chips) for name, chips in _shipped().cells.items() if key_of(name) == wanted)
    return next(rows, ("", {}))


def inexact(operators: Iterable[str], scheme: str, soc: str = DEFAULT_SOC) -> Iterator[Inexact]:
    """Those of these operators, with the scheme to use instead."""
    for operator in sorted(set(operators)):
        name, chips = _row(operator)
        row = chips.get(soc) or chips.get(DEFAULT_SOC, {})
        if scheme not in row or not row[scheme].bad:
            continue
        exact = (each for each in BETTER if each in row and row[each].result == "whole" and not row[each].bad)
        better = next(exact, "")
        instead = f": keep it at {better}" if better else ""
        cases = ", ".join(f"{case} ({in_db(figure)})" for case, figure in sorted(row[scheme].bad.items()))
        message = f"{name} at {scheme} loses accuracy on the emulator with inputs {cases}{instead}"
        yield Inexact(
            operator, message, session("test_upstream", "values", "--flow", scheme, "-k", f"*-{name}-*")
        )
