"""An .onnx as the provider and the quantizer take it: each node has a name, and each constant is a weight."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

CONSTANT_TYPES = {"value_float": "f4", "value_floats": "f4", "value_int": "i8", "value_ints": "i8"}
"""By attribute the type of a Constant that is written as numbers."""


def make_plain(model: onnx.ModelProto) -> bool:
    """Name nodes without a name, make weights of Constant nodes and of the Identity nodes by which exporters
    share equal ones, and take weights out of the inputs; returns whether that changes the model.

    The provider keeps its verdicts by the nodes' names, creates no tensor for a quantized Constant, and
    cannot load a context with weights for inputs. The quantizer leaves a bias of an Identity in float."""
    graph = model.graph
    unnamed = [node for node in graph.node if not node.name]
    for node in unnamed:
        node.name = node.output[0]
    folded = _fold_constants(graph)
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    listed = len(inputs) < len(graph.input)
    if listed:
        del graph.input[:]
        graph.input.extend(inputs)
    if folded or listed:
        # Older versions want every weight among the inputs.
        model.ir_version = max(model.ir_version, 4)
    return bool(unnamed or folded or listed)


def _fold_constants(graph: onnx.GraphProto) -> bool:
    """A Constant that is an output of the graph stays a node, and so does one of text or a sparse one."""
    outputs = {value.name for value in graph.output}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for value in graph.input:
        # A caller may replace it.
        weights.pop(value.name, None)
    kept, before = [], len(graph.node)
    for node in graph.node:
        tensor = None
        if node.output[0] not in outputs:
            shared = weights.get(node.input[0]) if node.op_type == "Identity" else None
            tensor = shared or _constant(node)
        if tensor is None:
            kept.append(node)
        else:
            weight = graph.initializer.add()
            weight.CopyFrom(tensor)
            weight.name = node.output[0]
            weights[weight.name] = weight
    if len(kept) < before:
        del graph.node[:]
        graph.node.extend(kept)
    return len(kept) < before


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The value of a Constant node, if a weight can have it."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    (attribute,) = node.attribute
    if attribute.name == "value":
        return attribute.t
    if attribute.name not in CONSTANT_TYPES:
        return None
    value = np.asarray(helper.get_attribute_value(attribute), CONSTANT_TYPES[attribute.name])
    return numpy_helper.from_array(value)
