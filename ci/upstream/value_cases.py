"""Which values and shapes each operator is tried with: manifests/upstream/values.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ci.suites.precision import MeasuredScheme
from provisioning.base.documents import Model, load
from provisioning.base.settings import MANIFESTS

VALUES = MANIFESTS / "upstream" / "values.toml"

Range = Annotated[tuple[float, ...], Field(min_length=2, max_length=3)]
Shape = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
Shapes = Annotated[tuple[Shape, ...], Field(min_length=1)]


SAME_WITHOUT_WEIGHTS: Mapping[str, MeasuredScheme] = {
    "16a4w": "16a8w",
    "16a4w_block": "16a8w",
    "16a16w": "16a8w",
    "8a4w": "8a8w",
}
"""Schemes that differ from another one in the weights alone: what has none is tried in the other one."""


class Operator(Model):
    call: str = ""
    module: str = ""
    domain: str = "any"
    shapes: str | Shapes = "any"
    blocks: bool = False
    weights: bool = False
    integers: bool = False
    indices: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _one(self) -> Operator:
        if bool(self.call) == bool(self.module):
            raise ValueError("expected either call or module")
        return self


class Values(Model):
    """The file."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    seed: int
    domain: Mapping[str, Mapping[str, Range]]
    shapes: Mapping[str, Shapes]
    operators: Mapping[str, Operator]


@dataclass(frozen=True, slots=True)
class Case:
    """One operator with inputs from one range and of one shape."""

    operator: str
    name: str
    expression: str
    is_module: bool
    range: tuple[float, ...]
    shape: tuple[int, ...]
    seed: int
    blocks: bool
    weights: bool
    integers: bool
    indices: tuple[int, ...]

    @property
    def inputs(self) -> str:
        """`small [-0.01, 0.01]`, or `shape 3x7`."""
        return f"shape {self.name}" if self.name[0].isdigit() else f"{self.name} {list(self.range)}"

    def __str__(self) -> str:
        return f"{self.operator}-{self.name}"


@cache
def cases() -> tuple[Case, ...]:
    values = load(VALUES, Values)
    all_cases = []
    for name, operator in values.operators.items():
        ranges = values.domain[operator.domain]
        first, *others = (
            values.shapes[operator.shapes] if isinstance(operator.shapes, str) else operator.shapes
        )
        plain = next(iter(ranges.values()))
        rows = [(label, each, first) for label, each in ranges.items()]
        rows += [("x".join(map(str, shape)), plain, shape) for shape in others]
        for label, each, shape in rows:
            expression = operator.call or operator.module.replace("{n}", str(shape[1]))
            module = bool(operator.module)
            words = (expression, module, each, shape, values.seed, operator.blocks)
            all_cases.append(
                Case(name, label, *words, module or operator.weights, operator.integers, operator.indices)
            )
    return tuple(all_cases)
