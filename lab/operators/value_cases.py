"""Which values and shapes each operator is tried with: manifests/upstream/values.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ci.operators.table import IN_CHAIN
from provisioning.base.documents import Model, load
from provisioning.base.settings import MANIFESTS

DRAWS = 5
"""How many inputs a plain case, one in a chain and one of ONNX run with, and are calibrated with."""

PROGRAMS = 3
"""How many programs a plain case has where scales make the difference."""

SAME_WITHOUT_WEIGHTS: Mapping[str, str] = {
    "16a4w": "16a8w",
    "16a4w_block": "16a8w",
    "16a16w": "16a8w",
    "8a4w": "8a8w",
}
"""Schemes that differ from another one in the weights alone: what has none is tried in the other one."""

VALUES = MANIFESTS / "upstream" / "values.toml"

Range = Annotated[tuple[float, ...], Field(min_length=2, max_length=3)]
Shape = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
Shapes = Annotated[tuple[Shape, ...], Field(min_length=1)]


class TestedOperator(Model):
    call: str = ""
    module: str = ""
    domain: str = "any"
    shapes: str | Shapes = "any"
    blocks: bool = False
    weights: bool = False
    integers: bool = False
    indices: tuple[int, ...] = ()
    chained: str = ""
    """The call in a chain, if it is another."""
    alone: bool = True
    """Whether it is tried alone too."""
    form: str = ""
    """The name of this form, if the first of the others is the one that models have."""
    forms: Mapping[str, str] = {}
    """Others that are tried in the chain, by name: calls, or modules."""

    @model_validator(mode="after")
    def _one(self) -> TestedOperator:
        if bool(self.call) == bool(self.module):
            raise ValueError("expected either call or module")
        if self.form and not self.forms:
            raise ValueError("expected forms beside form: another one decides")
        return self

    def chained_forms(self) -> Mapping[str, str]:
        """Each form by name, the one that decides first."""
        own = {self.form or USUAL: self.chained or self.call or self.module}
        return {**self.forms, **own} if self.form else {**own, **self.forms}


CHAIN = "chain"
"""A case between two layers with weights; `chain-NAME`: in another form than the deciding one."""

USUAL = "usual"
"""The form that has no name of its own."""


class ValueTable(Model):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    seed: int
    domain: Mapping[str, Mapping[str, Range]]
    shapes: Mapping[str, Shapes]
    operators: Mapping[str, TestedOperator]


@dataclass(frozen=True, slots=True)
class ValueCase:
    """One operator with inputs from one range and of one shape, alone or in a chain."""

    operator: str
    name: str
    settings: TestedOperator
    range: tuple[float, ...]
    shape: tuple[int, ...]
    seed: int
    form: str = ""
    """What is tried, if it is not the operator's own call or module."""

    @property
    def expression(self) -> str:
        """`{n}` stands for the number of channels, `{last}` for the size of the last dimension."""
        text = self.form or self.settings.call or self.settings.module
        dimensions = {"{n}": 1, "{last}": -1}
        return re.sub(r"\{n\}|\{last\}", lambda found: str(self.shape[dimensions[found[0]]]), text)

    @property
    def chain(self) -> bool:
        return self.name.partition("-")[0] == CHAIN

    @property
    def is_module(self) -> bool:
        return re.search(r"\bx\b", self.expression) is None

    @property
    def weights(self) -> bool:
        return bool(self.settings.module) or self.settings.weights

    @property
    def inputs(self) -> str:
        """`small [-0.01, 0.01]`, `shape 3x7`, or `in a chain, scalar`."""
        if self.chain:
            return ", ".join([IN_CHAIN, *self.name.replace("_", " ").split("-")[1:]])
        return f"shape {self.name}" if self.name[0].isdigit() else f"{self.name} {list(self.range)}"

    def __str__(self) -> str:
        return f"{self.operator}-{self.name}"


@cache
def chains() -> tuple[ValueCase, ...]:
    """Each operator in a chain, in each of its forms: the first shape, and values of the first range."""
    values = load(VALUES, ValueTable)
    found = []
    for operator, settings in values.operators.items():
        sizes, drawn = settings.shapes, next(iter(values.domain[settings.domain].values()))
        shape = (values.shapes[sizes] if isinstance(sizes, str) else sizes)[0]
        for number, (form, text) in enumerate(settings.chained_forms().items()):
            name = f"{CHAIN}-{form}" if number else CHAIN
            found.append(ValueCase(operator, name, settings, drawn, shape, values.seed, text))
    return tuple(found)


@cache
def cases() -> tuple[ValueCase, ...]:
    """Each operator alone."""
    values = load(VALUES, ValueTable)
    all_cases = []
    for operator, settings in values.operators.items():
        if not settings.alone:
            continue
        ranges, shapes = values.domain[settings.domain], settings.shapes
        first, *others = values.shapes[shapes] if isinstance(shapes, str) else shapes
        plain = next(iter(ranges.values()))
        rows = [(name, range_, first) for name, range_ in ranges.items()]
        rows += [("x".join(map(str, shape)), plain, shape) for shape in others]
        all_cases += [
            ValueCase(operator, name, settings, row, shape, values.seed) for name, row, shape in rows
        ]
    return tuple(all_cases)
