"""Define the rewrites of an ONNX model, by their names in manifests/fixes.toml."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx

from ci.explain.einsum import product_of
from ci.explain.onnx_recurrent import recurrent_cell_by_cell
from ci.explain.onnx_rewriting import (
    MICROSOFT,
    Find,
    OnnxMatch,
    RepairedOnnx,
    Writer,
    attributes_of,
    variables_of,
)
from ci.explain.permutation import HTP_DIMENSIONS, merge_dimensions

REWRITES: dict[str, Find] = {}
"""It maps the name of a rewrite to what finds its places."""

NEAR = 1e-4

FindAt = Callable[[RepairedOnnx, onnx.NodeProto], OnnxMatch | None]


def search(name: str, *operators: str) -> Callable[[FindAt], FindAt]:
    """Register a rewrite of nodes of these operators."""

    def register(match: FindAt) -> FindAt:
        def find(model: RepairedOnnx) -> Iterator[OnnxMatch]:
            for node in model.all_of(*operators):
                if found := match(model, node):
                    yield found

        REWRITES[name] = find
        return match

    return register


search("recurrent-cell-by-cell", "GRU", "LSTM")(recurrent_cell_by_cell)


@search("division-by-root", "Mul")
def division_by_root(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    makers = [(model.maker(name), place) for place, name in enumerate(node.input)]
    roots = [(maker.input[0], place) for maker, place in makers if maker and maker.op_type == "Reciprocal"]
    if not roots:
        return None
    by, of = roots[0][0], node.input[1 - roots[0][1]]
    return OnnxMatch(node, variables_of(model, (of, by)), lambda put: [put("Div", of, by)])


@search("norm-as-scale-and-shift", "BatchNormalization")
def norm_as_scale_and_shift(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    """Write a norm as scale and shift. Behind a convolution it goes into the weights, because no quantizer
    folds it there."""
    x, *names = node.input
    values = [model.constant(name) for name in names]
    if any(value is None for value in values):
        return None
    scale, shift, mean, variance = (np.asarray(value, "f8") for value in values)
    factor = scale / np.sqrt(variance + attributes_of(node).get("epsilon", 1e-5))
    offset = shift - mean * factor
    conv = model.maker(x)
    if conv is not None and conv.op_type == "Conv" and len(model.users(x)) == 1:
        weights: list[Any] = [model.constant(name) for name in conv.input[1:]]
        if all(weight is not None for weight in weights):
            weight = weights[0] * factor.reshape(-1, *[1] * (weights[0].ndim - 1))
            bias = offset + (weights[1] * factor if len(weights) > 1 else 0)

            def write(put: Writer) -> list[str]:
                inputs = conv.input[0], put.constant(weight), put.constant(bias)
                return [put("Conv", *inputs, **attributes_of(conv))]

            return OnnxMatch(node, (conv.input[0],), write)
    if not (shape := model.shape(x)):
        return None
    sizes = [1, -1, *[1] * (len(shape) - 2)]
    by, shifts = factor.reshape(sizes), offset.reshape(sizes)
    return OnnxMatch(
        node, (x,), lambda put: [put("Add", put("Mul", x, put.constant(by)), put.constant(shifts))]
    )


@search("gelu-for-erf", "Erf")
def gelu_for_erf(model: RepairedOnnx, erf: onnx.NodeProto) -> OnnxMatch | None:
    scaler = model.maker(erf.input[0])
    x = next((name for name in scaler.input if model.constant(name) is None), "") if scaler else ""
    if not x or scaler is None or scaler.op_type not in ("Div", "Mul"):
        return None
    ends = [end for end in _readers_of(model, erf, 4) if _only_of(model, end, x)]
    names = [end.output[0] for end in ends]
    values = model.values([x, *names])[0] if ends else {}
    for end in reversed(ends):
        if _is_gelu(values[x], values[end.output[0]]):
            return OnnxMatch(end, (x,), lambda put: [put("Gelu", x, domain=MICROSOFT)])
    return None


def _is_gelu(x: Any, y: Any) -> bool:
    from math import erf

    gelu = x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    return bool(y.shape == gelu.shape and np.allclose(gelu, y, rtol=0, atol=NEAR))


def _readers_of(model: RepairedOnnx, node: onnx.NodeProto, steps: int) -> list[onnx.NodeProto]:
    readers: dict[str, onnx.NodeProto] = {}
    now = [node]
    for _ in range(steps):
        now = [user for reader in now for user in model.users(reader.output[0])]
        readers |= {user.output[0]: user for user in now}
    return list(readers.values())


def _only_of(model: RepairedOnnx, node: onnx.NodeProto, operand: str) -> bool:
    todo, names = [*node.input], {operand}
    while todo:
        name = todo.pop()
        if name in names or model.constant(name) is not None:
            continue
        names.add(name)
        maker = model.maker(name)
        if maker is None:
            return False
        todo += maker.input
    return True


@search("depthwise-as-product", "Conv")
def depthwise_as_product(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    attributes, weight = attributes_of(node), model.constant(node.input[1])
    if weight is None or weight.ndim != 4 or weight.shape[1:] != (1, 1, 1):
        return None
    resizes = set(attributes.get("strides", [1])) != {1} or any(attributes.get("pads", [0]))
    if attributes.get("group", 1) != weight.shape[0] or resizes:
        return None
    bias = model.constant(node.input[2]) if len(node.input) > 2 else None

    def write(put: Writer) -> list[str]:
        product = put("Mul", node.input[0], put.constant(weight.reshape(1, -1, 1, 1)))
        return [product if bias is None else put("Add", product, put.constant(bias.reshape(1, -1, 1, 1)))]

    return OnnxMatch(node, (node.input[0],), write)


@search("fewer-dimensions", "Reshape")
def fewer_dimensions(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    transpose = model.maker(node.input[0])
    first = model.maker(transpose.input[0]) if transpose is not None else None
    if transpose is None or first is None or (transpose.op_type, first.op_type) != ("Transpose", "Reshape"):
        return None
    x, shape, last = first.input[0], model.shape(first.output[0]), model.shape(node.output[0])
    permutation = list(attributes_of(transpose)["perm"])
    if len(permutation) <= HTP_DIMENSIONS or not (shape and last):
        return None
    sizes, order = merge_dimensions(shape, permutation)

    def write(put: Writer) -> list[str]:
        tensor = put("Reshape", x, put.constant(sizes, np.int64))
        return [put("Reshape", put("Transpose", tensor, perm=order), put.constant(last, np.int64))]

    return OnnxMatch(node, (x,), write)


@search("matmul-for-einsum", "Einsum")
def matmul_for_einsum(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    """Write an einsum as a product of matrices: the provider takes few forms of einsum."""
    shapes = [model.shape(name) for name in node.input]
    equation = attributes_of(node)["equation"].decode()
    if len(shapes) != 2 or not all(shapes) or not (product := product_of(equation, shapes)):
        return None

    def write(put: Writer) -> list[str]:
        def turn(x: str, order: Sequence[int]) -> str:
            return x if order == sorted(order) else put("Transpose", x, perm=order)

        def reshape(x: str, before: Sequence[int], sizes: Sequence[int]) -> str:
            return x if [*before] == [*sizes] else put("Reshape", x, put.constant(sizes, np.int64))

        parts = []
        for x, shape, part in zip(node.input, shapes, product.parts, strict=True):
            axes = put.constant(part.summed, np.int64) if part.summed else ""
            total = put("ReduceSum", x, axes, keepdims=0) if axes else x
            rest = [size for axis, size in enumerate(shape) if axis not in part.summed]
            parts.append(reshape(turn(total, part.order), [rest[axis] for axis in part.order], part.sizes))
        result = reshape(put("MatMul", *parts), product.matrix, product.sizes)
        return [turn(result, product.order)]

    return OnnxMatch(node, variables_of(model, node.input), write)
