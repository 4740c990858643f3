"""Describe the operators of a program, in a delegate or on the CPU, as plain values: what the modules of this
package and the lanes tell each other about operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ci.models.model_lines import OperatorAt
from provisioning.known_faults import Suggestion, fix_for


@dataclass(frozen=True, slots=True)
class CpuOperator(OperatorAt):
    node: str
    reason: str
    kernel: bool
    """Whether the runtime has a CPU kernel for it. Without one the program cannot run at all."""

    @property
    def fix(self) -> Suggestion:
        """Suggest what to write instead."""
        return fix_for(self.operator, self.code, self.source, reason=self.reason)

    @property
    def message(self) -> str:
        source = f" at {self.source}" if self.source else ""
        code = f" `{self.code}`" if self.code else ""
        lacks = "" if self.kernel else ", but ExecuTorch has no CPU kernel for it: the program will not run"
        return f"{self.operator}{source}{code} stays on the CPU{lacks}: {self.reason}"


@dataclass(frozen=True, slots=True)
class GraphPart:
    """A run of operators that follow each other in the lowered graph, in one delegate or on the CPU."""

    where: str
    count: int
    operators: Mapping[str, int]

    @property
    def is_on_cpu(self) -> bool:
        return self.where == "cpu"


@dataclass(frozen=True, slots=True)
class TensorEnds:
    """The shape, and the least and largest value, of one of the model's own tensors; a computed tensor has
    neither."""

    shape: tuple[int, ...] = ()
    least: float | None = None
    largest: float | None = None


Argument: TypeAlias = TensorEnds | bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Traits:
    """These traits of a node decide whether a known fault concerns it."""

    operator: str
    line: str = ""
    module: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    """The shapes of its operands and its result."""
    kinds: tuple[str, ...] = ()
    """A cast has the types of its operands here; other nodes have none."""
    again: bool = False
    """Whether its module was called before."""
    of_number: bool = False
    """Whether its first operand is one number."""
    arguments: Mapping[str, Argument | tuple[Argument, ...]] = field(default_factory=dict)
    """The arguments that are plain values or tensors of the model's own, by their names in the
    operator's schema."""
    input: tuple[int, ...] | None = None
    output: tuple[int, ...] | None = None
    range: tuple[float, float] | None = None
    """The range of its first operand, as quantized."""
    maker: str = ""
    """This operator computes its first operand."""
    readers: tuple[str, ...] = ()
    added: bool = False
    """Whether lowering added it."""
