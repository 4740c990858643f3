"""Show the graph that a step of the compiler leaves as a Graph: it has the weights that it reads, and is
computed without the rounding of quantizers. Only workers import this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node

from ci.explain.graph import NOTHING, Arrays
from ci.explain.replay import Unrunnable
from ci.explain.torch_graph import TorchGraph, maker_of
from ci.explain.torch_values import Passing, Tensors, copy_of, is_float
from ci.models.inputs import Array
from ci.models.model_lines import OperatorAt
from ci.operators.partition import operator_name

Weights = Mapping[str, Tensor]
"""Maps the name of a placeholder to the weight that it stands for."""

QUANTIZERS = ("quantize_per_tensor", "quantize_per_channel", "quantize_affine")
"""The names of quantizers and dequantizers have one of these in them."""


class Unrounded(Passing):
    """Quantizers pass floats on. What is stored as integers, such as a weight, is dequantized."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, Any] = {}
        self.current = ""
        """The node that is computed, or at which computing ended."""

    def run_node(self, n: Node) -> Any:
        self.current = n.name
        operand = self.env.get(n.args[0]) if n.args and isinstance(n.args[0], Node) else None
        # A quantizer gives a new tensor: what is written into one is not in the other.
        value = copy_of(operand) if is_float(operand) and _quantizes(n) else super().run_node(n)
        # Weights are not changed; anything else, a later node may change in place.
        self.values[n.name] = value if n.op == "get_attr" else copy_of(value)
        return value


def _quantizes(node: Node) -> bool:
    return node.op == "call_function" and any(name in operator_name(node) for name in QUANTIZERS)


class StepGraph(TorchGraph):
    def __init__(
        self, module: GraphModule, samples: Sequence[Tensors], weights: Weights, outputs: int
    ) -> None:
        """`samples` are the model's, and `outputs` is how many it has: a program returns the buffers that it
        changes before them. The module is copied, as the next step may change it."""
        self.undefined, self.output_count = _undefined_operand(module.graph), outputs
        super().__init__(module if self.undefined else copy_with_own_weights(module, weights), samples)

    def operator_at(self, name: str) -> OperatorAt:
        return replace(super().operator_at(name), operator=operator_name(maker_of(self.nodes_by_name[name])))

    @cached_property
    def results(self) -> Sequence[str]:
        return super().results[-self.output_count :]

    @cached_property
    def _runs(self) -> list[tuple[Mapping[str, Any], list[Tensor]]]:
        """It has the values of nodes, and the outputs, for each sample."""
        if self.undefined:
            raise Unrunnable(*self.undefined)
        return [self._run(sample) for sample in self.samples]

    def _run(self, sample: Tensors) -> tuple[Mapping[str, Any], list[Tensor]]:
        interpreter = Unrounded(self.module)
        try:
            outputs = interpreter.of(sample)
        except Exception as error:
            reason = next(iter(str(error).splitlines()), "")
            raise Unrunnable(interpreter.current, f"{type(error).__name__}: {reason}") from error
        return interpreter.values, outputs[-self.output_count :]

    def outputs(self, replaced: Arrays = NOTHING) -> list[list[Array]]:
        assert not replaced, "the model after a step is computed as it is"
        rows = []
        for _, outputs in self._runs:
            rows.append([tensor.numpy() for tensor in outputs])
        return rows

    def values(self, sample: int) -> dict[str, Array]:
        values, _ = self._runs[sample]
        return {name: value.numpy() for name, value in values.items() if is_float(value)}


def _undefined_operand(graph: FxGraph) -> tuple[str, str] | None:
    """Return a node that reads another one before that is computed, and a sentence about it; None if there is
    none."""
    defined = set[Node]()
    for node in graph.nodes:
        for operand in node.all_input_nodes:
            if operand not in defined:
                return node.name, f"{node.name} reads {operand.name}, which comes behind it"
        defined.add(node)
    return None


def copy_with_own_weights(module: GraphModule, weights: Weights) -> GraphModule:
    """Copy the module: only inputs stay placeholders, and observing modules are left out."""
    root, graph, copies = nn.Module(), FxGraph(), dict[Node, Node]()
    works_in_place = any(map(_works_in_place, module.graph.nodes))
    for node in module.graph.nodes:
        held = _weight_of(node, weights) if node.op == "placeholder" else None
        if node.op == "get_attr":
            held = attrgetter(str(node.target))(module)
        if held is not None:
            # The model keeps its own weights.
            setattr(
                root,
                node.name,
                held.detach().clone() if works_in_place and isinstance(held, Tensor) else held,
            )
            copies[node] = graph.create_node("get_attr", node.name, name=node.name)
            copies[node].meta = dict(node.meta)
        elif node.op == "call_module" and node.all_input_nodes:
            copies[node] = copies[node.all_input_nodes[0]]
        elif node.op != "call_module":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return GraphModule(root, graph)


def _weight_of(placeholder: Node, weights: Weights) -> Tensor | None:
    """Return the weight that a placeholder stands for; None for an input."""
    constant = getattr(placeholder.meta.get("val"), "constant", None)
    return weights.get(placeholder.name, constant)


def _works_in_place(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable
