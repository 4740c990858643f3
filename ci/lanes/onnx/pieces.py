"""Pieces of an ONNX model: any set of its nodes as a model of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ci.pipeline.models.arrays import Array, Sample
from ci.pipeline.models.pieces import Border, NotAPiece, Pieces, changed_number, named
from ci.pipeline.reduce import Subgraph

SHAPES = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Resize": 3, "Tile": 1}
"""By operator, which input is a shape."""


class OnnxPieces(Pieces[onnx.ModelProto]):
    def __init__(self, model: onnx.ModelProto, samples: Sequence[Mapping[str, Array]]) -> None:
        self.model, self.samples = model, samples
        self.nodes = {node.name: node for node in model.graph.node}
        self.operators = tuple(self.nodes)
        self.weights = {tensor.name: tensor for tensor in model.graph.initializer}

    def border(self, piece: Subgraph) -> Border:
        nodes = [self.nodes[name] for name in piece.operators]
        computed = named(name for node in nodes for name in node.output)
        used = named(name for node in nodes for name in used_by(node))
        outside = [name for name in used if name not in {*computed}]
        own = {value.name for value in self.model.graph.output}
        return Border(
            tuple(name for name in outside if name not in self.weights),
            tuple(name for name in outside if name in self.weights),
            tuple(name for name in computed if name in own or name not in {*used}),
        )

    def weight(self, name: str) -> Array:
        array: Array = numpy_helper.to_array(self.weights[name])
        return array

    def built(self, piece: Subgraph) -> tuple[onnx.ModelProto, list[Sample]]:
        border = self.border(piece)
        if not border.inputs:
            raise NotAPiece("it has no input")
        weights, inputs = self.values(piece)
        nodes = [self._node(name, piece) for name in piece.operators]
        for name in self._shapes(piece):
            weights[name] = np.array(
                [changed_number(size, piece.sizes) for size in self.weight(name)], "int64"
            )
        try:
            inner = [self.samples[0][name] for name in border.outputs]
        except KeyError as unknown:
            raise NotAPiece(f"{unknown} has no values") from unknown
        graph = helper.make_graph(
            nodes,
            "reduced",
            [_value(name, array) for name, array in inputs[0].items()],
            [
                _value(name, array) if not piece.sizes else _value(name, array, shape=False)
                for name, array in zip(border.outputs, inner, strict=True)
            ],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        )
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )
        model.functions.extend(self.model.functions)
        if piece.sizes:
            model = _inferred(model)
        return model, inputs

    def _node(self, name: str, piece: Subgraph) -> onnx.NodeProto:
        node = onnx.NodeProto()
        node.CopyFrom(self.nodes[name])
        for attribute in node.attribute:
            if attribute.name == "group":
                attribute.i = changed_number(attribute.i, piece.sizes)
        return node

    def _shapes(self, piece: Subgraph) -> Iterator[str]:
        """Weights that are shapes."""
        for name in piece.operators if piece.sizes else ():
            node = self.nodes[name]
            place = SHAPES.get(node.op_type, len(node.input))
            if node.input[place : place + 1] and node.input[place] in self.weights:
                yield node.input[place]


def used_by(node: onnx.NodeProto) -> Iterator[str]:
    """What it takes, and what its own graphs take from outside."""
    yield from node.input
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            inner = {value.name for value in [*graph.input, *graph.initializer]}
            inner |= {name for maker in graph.node for name in maker.output}
            yield from (name for user in graph.node for name in used_by(user) if name not in inner)


def _value(name: str, array: Array, *, shape: bool = True) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape if shape else None)


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise NotAPiece(str(error)) from error
    for value in model.graph.output:
        dimensions = value.type.tensor_type
        if not dimensions.HasField("shape") or any(not size.dim_value for size in dimensions.shape.dim):
            raise NotAPiece(f"{value.name} has no fixed shape")
    return model
