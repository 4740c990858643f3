"""Compute the values of a PyTorch model's nodes on the CPU: as they are, or with some of them changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from ci.models.inference import copy_sample

Tensors = tuple[Tensor, ...]


def leaves_of(values: object) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def copy_of(value: Any) -> Any:
    """Copy a value, because an operator behind it may change it in place."""
    return value.detach().clone() if isinstance(value, Tensor) else value


class Passing(Interpreter):
    """It runs an exported model on the CPU. Modules inside it only observe or check: they pass values on."""

    def run_node(self, n: Node) -> Any:
        if n.op == "call_module":
            operands = self.fetch_args_kwargs_from_env(n)[0]
            return operands[0] if operands else None
        return super().run_node(n)

    def of(self, sample: Tensors) -> list[Tensor]:
        with torch.no_grad():
            return leaves_of(self.run(*copy_sample(sample)))


class Replaced(Passing):
    """Some nodes have given values."""

    def __init__(self, module: GraphModule, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(module)
        self.tensors = tensors

    def run_node(self, n: Node) -> Any:
        return self.tensors[n.name].clone() if n.name in self.tensors else super().run_node(n)


class ValueRecorder(Passing):
    """It keeps what each node computes. Nodes in `tensors` have these values for all that reads them."""

    def __init__(self, module: GraphModule, tensors: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        super().__init__(module)
        self.tensors = tensors
        self.values: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        # Weights are not changed.
        self.values[n] = value if n.op == "get_attr" else copy_of(value)
        return self.tensors[n.name].clone() if n.name in self.tensors else value


def values_of(
    module: GraphModule, sample: Sequence[Tensor], tensors: Mapping[str, Tensor] = MappingProxyType({})
) -> dict[Node, Any]:
    recorder = ValueRecorder(module, tensors)
    recorder.of(tuple(sample))
    return recorder.values


class WithErrors(Passing):
    """Errors are added at nodes. What does not depend on them is not computed again."""

    def __init__(self, module: GraphModule, values: Mapping[Node, Any], errors: Mapping[str, Tensor]) -> None:
        super().__init__(module)
        self.values, self.errors = values, errors
        self.wrong_nodes = set[Node]()

    def run_node(self, n: Node) -> Any:
        changes = not self.wrong_nodes.isdisjoint(n.all_input_nodes)
        is_known = n.op == "call_function" and not changes
        value = copy_of(self.values[n]) if is_known else super().run_node(n)
        if changes or n.name in self.errors:
            self.wrong_nodes.add(n)
        return value + self.errors[n.name] if n.name in self.errors else value


class OwnErrors(Passing):
    """It runs the quantized model, in which each operator gets the float model's values."""

    def __init__(self, module: GraphModule, values: Mapping[str, object]) -> None:
        super().__init__(module)
        self.values = values
        self.errors: dict[str, Tensor] = {}
        self.rounded: set[str] = set()

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        exact: Any = self.values.get(n.name)
        alike = is_float(value) and is_float(exact) and value.shape == exact.shape
        if n.op == "call_function" and alike:
            self.errors[n.name] = value - exact
            return exact.clone()
        if "dequantize" in str(n.target) and isinstance(quantize := n.args[0], Node):
            maker = quantize.args[0] if quantize.args else None
            if isinstance(maker, Node) and maker.name in self.errors.keys() - self.rounded:
                # Its output's rounding counts once, though each reader has one.
                self.rounded.add(maker.name)
                self.errors[maker.name] = self.errors[maker.name] + (value - self.values[maker.name])
        return value
