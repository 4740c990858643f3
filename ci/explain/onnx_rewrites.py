"""Define the rewrites of an ONNX model, by their names in manifests/fixes.toml."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx

from ci.explain.einsum import Factor, product_of
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
from ci.models.inputs import Array

REWRITES: dict[str, Find] = {}
"""Maps the name of a rewrite to what finds its places."""

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
    """Write a product with a reciprocal as a division."""
    for name, other in (node.input, reversed(node.input)):
        maker = model.maker(name)
        if maker is not None and maker.op_type == "Reciprocal":
            return _match_of_division(model, node, other, maker.input[0])
    return None


def _match_of_division(model: RepairedOnnx, node: onnx.NodeProto, dividend: str, divisor: str) -> OnnxMatch:
    operands = variables_of(model, (dividend, divisor))
    return OnnxMatch(node, operands, lambda put: [put("Div", dividend, divisor)])


@search("norm-as-scale-and-shift", "BatchNormalization")
def norm_as_scale_and_shift(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    """Write a norm as scale and shift. Behind a convolution it goes into the weights, because no quantizer
    folds it there."""
    x, *names = node.input
    values = _constants(model, names)
    if values is None:
        return None
    weight, bias, mean, variance = (value.astype("f8") for value in values)
    scale = weight / np.sqrt(variance + attributes_of(node).get("epsilon", 1e-5))
    shift = bias - mean * scale
    conv = model.maker(x)
    if conv is not None and conv.op_type == "Conv" and len(model.users(x)) == 1:
        weights = _constants(model, conv.input[1:])
        if weights is not None:
            return _fold_into(conv, weights, node, scale, shift)
    shape = model.shape(x)
    if not shape:
        return None
    by_channel = [1, -1, *[1] * (len(shape) - 2)]

    def write(put: Writer) -> list[str]:
        scaled = put("Mul", x, put.constant(scale.reshape(by_channel)))
        return [put("Add", scaled, put.constant(shift.reshape(by_channel)))]

    return OnnxMatch(node, (x,), write)


def _constants(model: RepairedOnnx, names: Sequence[str]) -> list[Array] | None:
    """Return the values of constants; None if one of them is none."""
    values = []
    for name in names:
        value = model.constant(name)
        if value is None:
            return None
        values.append(value)
    return values


def _fold_into(
    conv: onnx.NodeProto, weights: Sequence[Array], norm: onnx.NodeProto, scale: Array, shift: Array
) -> OnnxMatch:
    """Fold a norm's scale and shift into the weight and the bias of the convolution before it."""
    weight, *biases = weights
    scaled_weight = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    bias = shift + (biases[0] * scale if biases else 0)

    def write(put: Writer) -> list[str]:
        inputs = conv.input[0], put.constant(scaled_weight), put.constant(bias)
        return [put("Conv", *inputs, **attributes_of(conv))]

    return OnnxMatch(norm, (conv.input[0],), write)


MOST_STEPS = 4
"""A GELU ends at most so many operators behind its erf."""


@search("gelu-for-erf", "Erf")
def gelu_for_erf(model: RepairedOnnx, erf: onnx.NodeProto) -> OnnxMatch | None:
    """Write what computes a GELU of x, by its values, as one operator."""
    scaler = model.maker(erf.input[0])
    if scaler is None or scaler.op_type not in ("Div", "Mul"):
        return None
    x = next((name for name in scaler.input if model.constant(name) is None), "")
    ends = [end for end in _readers_of(model, erf, MOST_STEPS) if _depends_only_on(model, end, x)]
    if not x or not ends:
        return None
    values = model.values([x, *(end.output[0] for end in ends)])[0]
    for end in reversed(ends):
        if _is_gelu(values[x], values[end.output[0]]):
            return OnnxMatch(end, (x,), lambda put: [put("Gelu", x, domain=MICROSOFT)])
    return None


def _is_gelu(x: Array, values: Array) -> bool:
    from math import erf

    gelu = x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    return bool(values.shape == gelu.shape and np.allclose(gelu, values, rtol=0, atol=NEAR))


def _readers_of(model: RepairedOnnx, node: onnx.NodeProto, steps: int) -> list[onnx.NodeProto]:
    """Return the nodes that read its value, at most so many steps behind it, the nearest first."""
    readers: dict[str, onnx.NodeProto] = {}
    nearest = [node]
    for _ in range(steps):
        nearest = [user for reader in nearest for user in model.users(reader.output[0])]
        readers |= {user.output[0]: user for user in nearest}
    return list(readers.values())


def _depends_only_on(model: RepairedOnnx, node: onnx.NodeProto, operand: str) -> bool:
    """Whether a node depends on no input except through the operand."""
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
    """Write a convolution that multiplies each channel by one number as a product."""
    x, weight = node.input[0], model.constant(node.input[1])
    if weight is None or weight.ndim != 4 or weight.shape[1:] != (1, 1, 1):
        return None
    attributes = attributes_of(node)
    has_stride = set(attributes.get("strides", [1])) != {1}
    if has_stride or any(attributes.get("pads", [0])) or attributes.get("group", 1) != weight.shape[0]:
        return None
    bias = model.constant(node.input[2]) if len(node.input) > 2 else None
    by_channel = (1, -1, 1, 1)

    def write(put: Writer) -> list[str]:
        product = put("Mul", x, put.constant(weight.reshape(by_channel)))
        if bias is None:
            return [product]
        return [put("Add", product, put.constant(bias.reshape(by_channel)))]

    return OnnxMatch(node, (x,), write)


@search("fewer-dimensions", "Reshape")
def fewer_dimensions(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    """Write a permutation between two reshapes with as many dimensions as HTP permutes."""
    transpose = model.maker(node.input[0])
    if transpose is None or transpose.op_type != "Transpose":
        return None
    first = model.maker(transpose.input[0])
    if first is None or first.op_type != "Reshape":
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
    if len(shapes) != 2 or not all(shapes):
        return None
    product = product_of(attributes_of(node)["equation"].decode(), shapes)
    if product is None:
        return None

    def write(put: Writer) -> list[str]:
        matrices = []
        for x, shape, factor in zip(node.input, shapes, product.parts, strict=True):
            matrices.append(_write_matrix(put, x, shape, factor))
        result = _write_reshape(put, put("MatMul", *matrices), product.matrix, product.sizes)
        return [_write_permutation(put, result, product.order)]

    return OnnxMatch(node, variables_of(model, node.input), write)


def _write_matrix(put: Writer, x: str, shape: Sequence[int], factor: Factor) -> str:
    """Sum, permute and reshape an operand to matrices."""
    if factor.summed:
        x = put("ReduceSum", x, put.constant(factor.summed, np.int64), keepdims=0)
        shape = [size for axis, size in enumerate(shape) if axis not in factor.summed]
    x = _write_permutation(put, x, factor.order)
    return _write_reshape(put, x, [shape[axis] for axis in factor.order], factor.sizes)


def _write_permutation(put: Writer, x: str, order: Sequence[int]) -> str:
    return x if order == sorted(order) else put("Transpose", x, perm=order)


def _write_reshape(put: Writer, x: str, before: Sequence[int], sizes: Sequence[int]) -> str:
    return x if [*before] == [*sizes] else put("Reshape", x, put.constant(sizes, np.int64))
