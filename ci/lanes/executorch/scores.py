"""What quantizing an operator adds to the noise in the model's outputs, on the CPU, one group of operators at
a time: its own error is put into the float model, and the outputs are compared."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from ci.lanes.executorch.accuracy_losses import described
from ci.pipeline.models.factory import copied

DEQUANTIZE = "dequantize"


def units_of(
    floats: Any, quantized: Sequence[Any], sample: tuple[Tensor, ...], seconds: float = math.inf
) -> dict[str, Any]:
    """The groups, the noise of each quantized model as a whole, and how many groups the time did not suffice
    for: those that err least by themselves. `floats` has the names of the quantized models' nodes, and
    observers, which pass values on."""
    over = time.monotonic() + seconds
    with torch.no_grad():
        values = _Values(floats)
        wanted = values.outputs(sample)
        errors = [_own_errors(model, values.values, sample) for model in quantized]
        whole = [_noise(wanted, _outputs_of(model, sample)) for model in quantized]
        units: list[dict[str, Any]] = []
        groups = groups_of(floats.graph)
        grouped = {node for nodes in groups for node in nodes}
        if seconds < math.inf:
            groups.sort(key=lambda nodes: -max(_share(errors[0], values.values, node.name) for node in nodes))
        for nodes in groups:
            if time.monotonic() > over:
                break
            names = [node.name for node in nodes]
            operands = {_behind_observers(operand) for node in nodes for operand in node.all_input_nodes}
            read = sorted(operand.name for operand in operands & grouped - {*nodes})
            reads = {name: values.values[name].numel() for name in read if _is_float(values.values.get(name))}
            added = [
                _noise(wanted, _WithErrors(values, nodes, mine).outputs(sample)) if mine else 0.0
                for of_model in errors
                for mine in [{name: of_model[name] for name in names if name in of_model}]
            ]
            size = sum(values.values[name].numel() for name in names if _is_float(values.values.get(name)))
            units.append(
                {**described(nodes[0]), "nodes": names, "size": size, "noise": added, "reads": reads}
            )
    return {"units": units, "whole": whole, "left": len(groups) - len(units)}


def _share(errors: Mapping[str, Tensor], values: Mapping[str, Any], name: str) -> float:
    """An operator's own error, relative to what it gives."""
    return _noise([values[name].double()], [values[name].double() + errors[name]]) if name in errors else 0.0


def _outputs_of(model: Any, sample: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(model(*copied(sample)))
    return [leaf.double() for leaf in leaves if isinstance(leaf, Tensor)]


def groups_of(graph: Any) -> list[list[Node]]:
    """Operators with those behind them that only they feed, and that have no other operand or weights: a
    convolution with its activation, a product with its softmax. Nothing is gained by a conversion between
    them. A concatenation has its operands in its group: HTP computes one of 16 bits over operands of 8 bits
    wrongly."""
    group: dict[Node, list[Node]] = {}
    groups: list[list[Node]] = []
    for node in graph.nodes:
        if node.op != "call_function" or not _gives_floats(node):
            continue
        operands = {_behind_observers(operand) for operand in node.all_input_nodes}
        first = next(iter(operands), None)
        if len(operands) == 1 and first in group and set(_readers(first)) == {node}:
            group[node] = group[first]
        elif node.target is torch.ops.aten.cat.default and operands & group.keys():
            joined = [of_operand for of_operand in groups if operands & {*of_operand}]
            groups = [of_other for of_other in groups if of_other not in joined]
            groups.append([member for of_operand in joined for member in of_operand])
            group |= dict.fromkeys((*groups[-1], node), groups[-1])
        else:
            groups.append([])
            group[node] = groups[-1]
        group[node].append(node)
    return groups


def _gives_floats(node: Node) -> bool:
    value = node.meta.get("val")
    every = value if isinstance(value, tuple | list) else [value]
    return any(map(_is_float, every))


def _behind_observers(node: Node) -> Node:
    while node.op == "call_module":
        node = node.all_input_nodes[0]
    return node


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        yield from _readers(user) if user.op == "call_module" else [user]


class _Values(Interpreter):
    """The float model; observers pass values on. `values` are those of all nodes."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.model = model
        self.values: dict[str, Any] = {}

    def run_node(self, n: Node) -> Any:
        if n.op == "call_module":
            return self.fetch_args_kwargs_from_env(n)[0][0]
        value = super().run_node(n)
        # An operator behind it may change it in place.
        self.values[n.name] = value.clone() if isinstance(value, Tensor) else value
        return value

    def outputs(self, sample: tuple[Tensor, ...]) -> list[Tensor]:
        return _outputs_of(self.run, sample)


class _WithErrors(_Values):
    """The float model with errors at a group's nodes. What does not depend on them is not computed again."""

    def __init__(self, known: _Values, nodes: Sequence[Node], errors: Mapping[str, Tensor]) -> None:
        super().__init__(known.model)
        self.known, self.errors = known.values, errors
        self.changed = set(nodes)

    def run_node(self, n: Node) -> Any:
        if self.changed.intersection(n.all_input_nodes):
            self.changed.add(n)
            value = super().run_node(n)
        elif n.op == "call_function":
            value = self.known[n.name]
            value = value.clone() if isinstance(value, Tensor) else value
        else:
            value = super().run_node(n)
        return value + self.errors[n.name] if n.name in self.errors else value


class _OwnErrors(Interpreter):
    """The quantized model, in which each operator is given the float model's values."""

    def __init__(self, model: Any, values: Mapping[str, Any]) -> None:
        super().__init__(model)
        self.values = values
        self.errors: dict[str, Tensor] = {}
        self.rounded: set[str] = set()

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        wanted = self.values.get(n.name)
        if n.op == "call_function" and isinstance(wanted, Tensor) and _is_like(value, wanted):
            self.errors[n.name] = value - wanted
            return wanted.clone()
        if DEQUANTIZE in str(n.target) and isinstance(quantize := n.args[0], Node):
            maker = quantize.args[0] if quantize.args else None
            if isinstance(maker, Node) and maker.name in self.errors.keys() - self.rounded:
                # The rounding of its output, of which its readers have one each.
                self.rounded.add(maker.name)
                self.errors[maker.name] = self.errors[maker.name] + (value - self.values[maker.name])
        return value


def _own_errors(model: Any, values: Mapping[str, Any], sample: tuple[Tensor, ...]) -> dict[str, Tensor]:
    interpreter = _OwnErrors(model, values)
    interpreter.run(*copied(sample))
    return interpreter.errors


def _noise(wanted: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """Of the worst output, relative to its signal."""
    worst = 0.0
    for right, found in zip(wanted, outputs, strict=True):
        signal, noise = float((right**2).sum()), float(((found - right) ** 2).sum())
        worst = max(worst, noise / signal if signal else 0.0)
    return worst


def _is_like(value: Any, wanted: Tensor) -> bool:
    return _is_float(value) and _is_float(wanted) and value.shape == wanted.shape


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
