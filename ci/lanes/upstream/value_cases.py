"""Which values and shapes each operator is tried with: manifests/upstream/values.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ci.pipeline.precision import MeasuredScheme
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


class TestedOperator(Model):
    call: str = ""
    module: str = ""
    domain: str = "any"
    shapes: str | Shapes = "any"
    blocks: bool = False
    weights: bool = False
    integers: bool = False
    indices: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _one(self) -> TestedOperator:
        if bool(self.call) == bool(self.module):
            raise ValueError("expected either call or module")
        return self


class ValueTable(Model):
    """The file."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    seed: int
    domain: Mapping[str, Mapping[str, Range]]
    shapes: Mapping[str, Shapes]
    operators: Mapping[str, TestedOperator]


@dataclass(frozen=True, slots=True)
class ValueCase:
    """One operator with inputs from one range and of one shape."""

    operator: str
    name: str
    settings: TestedOperator
    range: tuple[float, ...]
    shape: tuple[int, ...]
    seed: int

    @property
    def expression(self) -> str:
        """`{n}` stands for the number of channels."""
        return self.settings.call or self.settings.module.replace("{n}", str(self.shape[1]))

    @property
    def is_module(self) -> bool:
        return bool(self.settings.module)

    @property
    def weights(self) -> bool:
        return self.is_module or self.settings.weights

    @property
    def inputs(self) -> str:
        """`small [-0.01, 0.01]`, or `shape 3x7`."""
        return f"shape {self.name}" if self.name[0].isdigit() else f"{self.name} {list(self.range)}"

    def __str__(self) -> str:
        return f"{self.operator}-{self.name}"


@cache
def cases() -> tuple[ValueCase, ...]:
    values = load(VALUES, ValueTable)
    all_cases = []
    for operator, settings in values.operators.items():
        ranges, shapes = values.domain[settings.domain], settings.shapes
        first, *others = values.shapes[shapes] if isinstance(shapes, str) else shapes
        plain = next(iter(ranges.values()))
        rows = [(name, range_, first) for name, range_ in ranges.items()]
        rows += [("x".join(map(str, shape)), plain, shape) for shape in others]
        all_cases += [
            ValueCase(operator, name, settings, row, shape, values.seed) for name, row, shape in rows
        ]
    return tuple(all_cases)
