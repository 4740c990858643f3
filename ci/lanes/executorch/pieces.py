"""Pieces of an exported PyTorch model: any set of its operators as a module of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from ci.lanes.executorch.suite import chosen_for, parse_request
from ci.lanes.executorch.values import values_of
from ci.pipeline.models.arrays import Array, Sample
from ci.pipeline.models.factory import copied, make
from ci.pipeline.models.pieces import Border, NotAPiece, Pieces, changed_number, named
from ci.pipeline.models.samples import inputs_named
from ci.pipeline.reduce import Subgraph

BASE, OBSERVED = "model.pt2", "samples.pt"
CALIBRATING = 4
"""Of the samples to calibrate by, those that the pieces of a model are calibrated by."""
SHAPED = ("view", "reshape", "expand", "full", "zeros", "ones", "layer_norm", "split_with_sizes", "repeat")
"""Operators with arguments that are sizes."""
GROUPS = {"conv2d": 6, "conv1d": 6, "conv_transpose2d": 6, "conv_transpose1d": 6}
"""By operator, which argument is the number of groups, which may be a size too."""


class TorchPieces(Pieces[GraphModule]):
    def __init__(self, module: GraphModule, samples: Sequence[tuple[Tensor, ...]]) -> None:
        self.module = module
        self.nodes: dict[str, list[Node]] = {}
        for node in module.graph.nodes:
            if node.op == "call_function" and node.meta.get("val") is not None:
                self.nodes.setdefault(_unit(node).name, []).append(node)
        self.operators = tuple(self.nodes)
        self.samples = [recorded(module, sample) for sample in samples]

    def border(self, piece: Subgraph) -> Border:
        nodes = self._nodes(piece)
        used = [taken for node in nodes for taken in node.all_input_nodes if taken not in {*nodes}]
        ends = [node for node in nodes if not any(user in {*nodes} for user in node.users)]
        (output,) = self.module.graph.find_nodes(op="output")
        ends += [node for node in nodes if node in output.all_input_nodes and node not in ends]
        return Border(
            named(node.name for node in used if node.op != "get_attr"),
            named(node.name for node in used if node.op == "get_attr"),
            named(node.name for node in nodes if node in ends and isinstance(node.meta["val"], Tensor)),
        )

    def weight(self, name: str) -> Array:
        node = next(node for node in self.module.graph.nodes if node.name == name)
        value: Tensor = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        array: Array = value.detach().numpy()
        return array

    def built(self, piece: Subgraph) -> tuple[GraphModule, list[Sample]]:
        border = self.border(piece)
        if not border.inputs or not border.outputs:
            raise NotAPiece("it has no input, or no output")
        unknown = [name for name in border.inputs if name not in self.samples[0]]
        if unknown:
            raise NotAPiece(f"{unknown[0]} is no tensor")
        weights, inputs = self.values(piece)
        root, graph, nodes = nn.Module(), Graph(), dict[str, Node]()
        for index, name in enumerate(border.inputs):
            nodes[name] = graph.placeholder(f"x{index}")
        for index, name in enumerate(border.weights):
            value = nn.Parameter(torch.from_numpy(weights[name].copy()), requires_grad=False)
            root.register_parameter(f"w{index}", value)
            nodes[name] = graph.get_attr(f"w{index}")
        for node in self._nodes(piece):
            new = graph.node_copy(node, lambda taken: nodes[taken.name])
            new.args = self._arguments(new, piece)
            new.meta = {}
            nodes[node.name] = new
        ends = tuple(nodes[name] for name in border.outputs)
        graph.output(ends[0] if len(ends) == 1 else ends)
        module = GraphModule(root, graph)
        if piece.sizes or piece.values:
            self._require_runs(module, inputs[0])
        return module, inputs

    def _require_runs(self, module: GraphModule, sample: Sample) -> None:
        try:
            with torch.no_grad():
                module(*tensors_of(sample))
        except Exception as error:
            raise NotAPiece(str(error)) from error

    def _nodes(self, piece: Subgraph) -> list[Node]:
        return [node for name in piece.operators for node in self.nodes[name]]

    def _arguments(self, node: Node, piece: Subgraph) -> tuple[Any, ...]:
        kind, args = kind_of(node), [*node.args]
        if kind in SHAPED:
            return tuple(
                [changed_number(size, piece.sizes) for size in arg] if isinstance(arg, list) else arg
                for arg in args
            )
        if (place := GROUPS.get(kind, len(args))) < len(args):
            args[place] = changed_number(args[place], piece.sizes)
        return tuple(args)


def exported(order: dict[str, Any], into: Path) -> dict[str, Any]:
    """In the worker: the model that pieces are taken of, and inputs beside it."""
    case, run, _, place = parse_request(order)
    loaded = make(case.factory, case.arguments, place, inputs_named(case.samples, case.inputs, place))
    compared, calibrating, _ = chosen_for(loaded, case, run)
    samples = [*compared, *calibrating[:CALIBRATING]]
    torch.set_grad_enabled(False)
    loaded.model.requires_grad_(False)
    torch.save(samples, into / OBSERVED)
    torch.export.save(torch.export.export(loaded.model, copied(samples[0]), strict=True), into / BASE)
    return {}


def recorded(module: GraphModule, sample: tuple[Tensor, ...]) -> Mapping[str, Array]:
    """By node, what it computes."""
    values = values_of(module, sample).items()
    return {
        node.name: value.numpy()
        for node, value in values
        if isinstance(value, Tensor) and node.op != "get_attr"
    }


def tensors_of(sample: Sample) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(array.copy()) for array in sample.values())


def kind_of(node: Node) -> str:
    """`conv2d` of aten.conv2d.default."""
    return str(node.target).removeprefix("aten.").partition(".")[0]


def _unit(node: Node) -> Node:
    """The operator whose result it is part of."""
    while node.target is getitem:
        node = node.args[0]
    return node
