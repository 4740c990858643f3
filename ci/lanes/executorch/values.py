"""The values that the nodes of a graph have for a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from ci.pipeline.models.factory import copied


class ValueRecorder(Interpreter):
    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.values: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        # What changes it in place later does not change what is kept; weights are not changed.
        copies = isinstance(value, Tensor) and n.op != "get_attr"
        self.values[n] = value.detach().clone() if copies else value
        return value


def values_of(module: GraphModule, sample: Sequence[Tensor]) -> dict[Node, Any]:
    recorder = ValueRecorder(module)
    with torch.no_grad():
        recorder.run(*copied(tuple(sample)))
    return recorder.values
