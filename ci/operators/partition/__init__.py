"""What the partitioner decides of a model, and which operators a partition fails at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ci.models.model_lines import OperatorAt


@dataclass(frozen=True, slots=True)
class CpuOperator(OperatorAt):
    node: str
    reason: str
    kernel: bool
    """Whether the runtime has a CPU kernel for it. Without one the program cannot run at all."""


@dataclass(frozen=True, slots=True)
class GraphPart:
    """Operators that follow each other in the lowered graph, in one delegate or on the CPU."""

    where: str
    count: int
    operators: Mapping[str, int]

    @property
    def on_cpu(self) -> bool:
        return self.where == "cpu"
