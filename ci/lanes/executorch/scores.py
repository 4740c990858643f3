"""What quantizing an operator adds to the noise in the model's outputs, on the CPU, one group of operators at
a time: its own error is put into the float model, and the outputs are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from ci.lanes.executorch.accuracy_losses import outputs_of
from ci.partition.decisions import module_of
from ci.pipeline.models.factory import copied
from ci.pipeline.models.model_lines import source_of

DEQUANTIZE = "dequantize"


def units_of(floats: Any, quantized: Sequence[Any], sample: tuple[Tensor, ...]) -> list[dict[str, Any]]:
    """`floats` has the names of the quantized models' nodes, and observers, which pass values on."""
    with torch.no_grad():
        values = outputs_of(floats, copied(sample))
        wanted = _outputs(floats, {}, sample)
        errors = [_own_errors(model, values, sample) for model in quantized]
        units = []
        for nodes in groups_of(floats.graph):
            names = [node.name for node in nodes]
            added = [
                _noise(wanted, _outputs(floats, mine, sample)) if mine else 0.0
                for of_model in errors
                for mine in [{name: of_model[name] for name in names if name in of_model}]
            ]
            size = sum(values[name].numel() for name in names if name in values)
            first, (source, code) = nodes[0], source_of(nodes[0])
            row = {"operator": str(first.target), "module": module_of(first), "source": source, "code": code}
            units.append({**row, "nodes": names, "size": size, "noise": added})
    return units


def groups_of(graph: Any) -> list[list[Node]]:
    """Operators with those behind them that only they feed, and that have no other operand or weights: a
    convolution with its activation, a product with its softmax. Nothing is gained by a conversion between
    them."""
    group: dict[Node, list[Node]] = {}
    groups: list[list[Node]] = []
    for node in graph.nodes:
        if node.op != "call_function" or not _gives_floats(node):
            continue
        operands = {_behind_observers(operand) for operand in node.all_input_nodes}
        first = next(iter(operands), None)
        if len(operands) == 1 and first in group and set(_readers(first)) == {node}:
            group[node] = group[first]
        else:
            groups.append([])
            group[node] = groups[-1]
        group[node].append(node)
    return groups


def _gives_floats(node: Node) -> bool:
    value = node.meta.get("val")
    every = value if isinstance(value, tuple | list) else [value]
    return any(isinstance(part, Tensor) and part.is_floating_point() for part in every)


def _behind_observers(node: Node) -> Node:
    while node.op == "call_module":
        node = node.all_input_nodes[0]
    return node


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        yield from _readers(user) if user.op == "call_module" else [user]


class _OwnErrors(Interpreter):
    """The quantized model, in which each operator is given the float model's values."""

    def __init__(self, model: Any, values: Mapping[str, Tensor]) -> None:
        super().__init__(model)
        self.values = values
        self.errors: dict[str, Tensor] = {}
        self.rounded: set[str] = set()

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        wanted = self.values.get(n.name)
        if n.op == "call_function" and wanted is not None and _like(value, wanted):
            self.errors[n.name] = value - wanted
            return wanted
        if DEQUANTIZE in str(n.target) and isinstance(quantize := n.args[0], Node):
            maker = quantize.args[0] if quantize.args else None
            if isinstance(maker, Node) and maker.name in self.errors.keys() - self.rounded:
                # The rounding of its output, of which its readers have one each.
                self.rounded.add(maker.name)
                wanted = self.values[maker.name]
                self.errors[maker.name] = self.errors[maker.name] + (value - wanted)
        return value


def _own_errors(model: Any, values: Mapping[str, Tensor], sample: tuple[Tensor, ...]) -> dict[str, Tensor]:
    interpreter = _OwnErrors(model, values)
    interpreter.run(*copied(sample))
    return interpreter.errors


class _WithErrors(Interpreter):
    def __init__(self, model: Any, errors: Mapping[str, Tensor]) -> None:
        super().__init__(model)
        self.errors = errors

    def run_node(self, n: Node) -> Any:
        if n.op == "call_module":
            return self.fetch_args_kwargs_from_env(n)[0][0]
        value = super().run_node(n)
        return value + self.errors[n.name] if n.name in self.errors else value


def _outputs(model: Any, errors: Mapping[str, Tensor], sample: tuple[Tensor, ...]) -> list[Tensor]:
    outputs = _WithErrors(model, errors).run(*copied(sample))
    leaves = torch.utils._pytree.tree_leaves(outputs)
    return [leaf.double() for leaf in leaves if isinstance(leaf, Tensor)]


def _noise(wanted: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """Of the worst output, relative to its signal."""
    worst = 0.0
    for right, found in zip(wanted, outputs, strict=True):
        signal, noise = float((right**2).sum()), float(((found - right) ** 2).sum())
        worst = max(worst, noise / signal if signal else 0.0)
    return worst


def _like(value: Any, wanted: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == wanted.shape and value.is_floating_point()
