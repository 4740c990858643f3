"""Define the rewrites that keep a model out of a faulty step of ExecuTorch or torchao, by their names in
manifests/fixes.toml. The step takes the replaced operators for something that they are not; the operators
that replace them are computed correctly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional

from ci.explain.torch_rewrites import COPIES, RESHAPES, callable_of, reads_of, shape_of
from ci.explain.torch_rewriting import NodeMatch, Registry, RepairedModule
from ci.operators import Traits
from ci.operators.faults import normalizes_small_rows_of_an_image

aten: Any = torch.ops.aten
ESCAPES = Registry()
find_at, one = ESCAPES.find_at, ESCAPES.one

IMAGE = 4
"""A batch of images has so many dimensions."""


@one(
    "pool-of-images",
    aten.max_pool2d.default,
    when=lambda model, node: len(shape_of(model, node.args[0])) < IMAGE,
)
def pool_of_images(x: Tensor, *rest: Any) -> Tensor:
    result: Tensor = aten.max_pool2d.default(x.unsqueeze(0), *rest)
    return result.squeeze(0)


@find_at("cast-to-a-type", aten.type_as.default)
def cast_to_a_type(model: RepairedModule, node: Node) -> NodeMatch:
    kind = model.value(node).dtype
    return model.call(node, lambda x, *_: x.to(kind))


@find_at("amax-and-argmax", aten.max.dim, aten.min.dim)
def amax_and_argmax(model: RepairedModule, node: Node) -> NodeMatch | None:
    """Write `amax` and `argmax` for both results, or `argmax` alone if only the index is read."""
    reads = reads_of(node)
    if 1 not in reads:
        return None
    value_of, index_of = (
        (torch.amax, torch.argmax) if node.target is aten.max.dim else (torch.amin, torch.argmin)
    )

    def write(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor | None, Tensor]:
        value = value_of(x, dim, keepdim) if 0 in reads else None
        return value, index_of(x, dim, keepdim)

    return model.call(node, write)


one(
    "logical-not-of-a-boolean",
    aten.bitwise_not.default,
    when=lambda model, node: model.value(node).dtype == torch.bool,
)(torch.logical_not)


SQUARES = (aten.square.default, aten.pow.Tensor_Scalar, aten.mul.Tensor)


def _square_of(node: object) -> Node | None:
    """Return what a node squares; None if it is no square."""
    if not isinstance(node, Node) or node.target not in SQUARES:
        return None
    if node.target is aten.pow.Tensor_Scalar and node.args[1] != 2:
        return None
    if node.target is aten.mul.Tensor and node.args[0] is not node.args[1]:
        return None
    operand = node.args[0]
    return operand if isinstance(operand, Node) else None


@find_at("rms-norm-of-ones", aten.rsqrt.default)
def rms_norm_of_ones(model: RepairedModule, node: Node) -> NodeMatch | None:
    """Write an RMS norm without a weight as one operator: a step of ExecuTorch takes the next product,
    however far behind it that is, for the product with its weight."""
    total = node.args[0]
    if not isinstance(total, Node) or total.target is not aten.add.Tensor:
        return None
    mean, eps = total.args[:2]
    if not isinstance(mean, Node) or mean.target is not aten.mean.dim or not isinstance(eps, float):
        return None
    x = _square_of(mean.args[0])
    if x is None or not _is_along_the_last(model, x, mean):
        return None
    products = [user for user in node.users if user.target is aten.mul.Tensor and x in user.args]
    if len(products) != 1 or len(node.users) != 1 or _has_a_weight(products[0]):
        return None
    size = shape_of(model, x)[-1]
    return NodeMatch(
        products[0], (x,), lambda values: functional.rms_norm(values, (size,), torch.ones(size), eps)
    )


def _is_along_the_last(model: RepairedModule, x: Node, mean: Node) -> bool:
    axes, last = mean.args[1], len(shape_of(model, x)) - 1
    keeps = len(mean.args) > 2 and bool(mean.args[2])
    return (
        keeps and isinstance(axes, list | tuple) and [int(str(axis)) % (last + 1) for axis in axes] == [last]
    )


def _has_a_weight(product: Node) -> bool:
    """Whether its only reader multiplies it with a weight, as ExecuTorch expects."""
    readers = [user for user in product.users if user.target is aten.mul.Tensor]
    operands = [operand for user in readers for operand in user.all_input_nodes if operand is not product]
    return len(product.users) == 1 and any(operand.op == "get_attr" for operand in operands)


def _has_small_rows(model: RepairedModule, node: Node) -> bool:
    sizes: Any = node.args[1]
    return len(sizes) == 1 and normalizes_small_rows_of_an_image(Traits("", input=shape_of(model, node)))


@one("rms-norm-of-rows", aten.rms_norm.default, when=_has_small_rows)
def rms_norm_of_rows(x: Tensor, *rest: Any) -> Tensor:
    result: Tensor = aten.rms_norm.default(x.reshape(-1, x.shape[-1]), *rest)
    return result.reshape(x.shape)


# A convolution whose weight is a constant times factors that the input changes, as styles


MOVES = (
    *RESHAPES,
    *COPIES,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.transpose.int,
    aten.permute.default,
)


@dataclass(frozen=True)
class Modulated:
    """This weight is computed from a constant one, and from factors for channels."""

    constant: Tensor
    """It is the constant weight, laid out as the convolution reads it."""
    read: Sequence[Node]
    """They are the factors of the channels that are read."""
    given: Sequence[Node]
    """They are the factors of the channels that are given."""


def _take_weight_apart(model: RepairedModule, weight: Node, axes: tuple[int, int]) -> Modulated | None:
    """Take a computed weight apart; None if it is not computed so. `axes` are the weight's dimensions of the
    channels that are read, and of those that are given."""
    parts = _parts_of(model, weight)
    if parts is None:
        return None
    constant, factors = parts
    by_axis: dict[int, list[Node]] = {axis: [] for axis in axes}
    for factor in factors:
        alone = _laid_out(model, weight, {constant: torch.ones_like(model.value(constant))}, keeping=factor)
        axis = _axis_of(alone, model.value(factor), axes)
        if axis is None:
            return None
        by_axis[axis].append(factor)
    whole = _laid_out(model, weight, {}, keeping=None)
    return Modulated(whole, by_axis[axes[0]], by_axis[axes[1]])


def _parts_of(model: RepairedModule, weight: Node) -> tuple[Node, list[Node]] | None:
    """Return the constant that a weight is computed from, and the factors that it is multiplied with; None if
    it is computed in another way."""
    factors: list[Node] = []
    node = weight
    while model.varies(node):
        operands = node.all_input_nodes
        if node.target in MOVES:
            node = operands[0]
            continue
        if node.target is not aten.mul.Tensor or len(operands) != 2:
            return None
        size = model.value(node).numel()
        large = [operand for operand in operands if model.value(operand).numel() == size]
        if len(large) != 1:
            return None
        factors += [operand for operand in operands if operand is not large[0]]
        node = large[0]
    return node, factors


def _laid_out(
    model: RepairedModule, weight: Node, values: dict[Node, Tensor], keeping: Node | None
) -> Tensor:
    """Compute the weight with these values, and without factors except the one that is kept."""
    if weight in values:
        return values[weight]
    if weight is keeping or not model.varies(weight):
        value: Tensor = model.value(weight)
        return value
    operands = weight.all_input_nodes
    if weight.target in MOVES:
        moved: Tensor = callable_of(weight)(
            _laid_out(model, operands[0], values, keeping), *weight.args[1:], **weight.kwargs
        )
        return moved
    size = model.value(weight).numel()
    product = torch.ones_like(model.value(weight))
    for operand in operands:
        if operand is keeping or model.value(operand).numel() == size:
            product = product * _laid_out(model, operand, values, keeping)
    return product


def _axis_of(scales: Tensor, factor: Tensor, axes: tuple[int, int]) -> int | None:
    """Return the dimension of a weight along which a factor scales it; None if there is none."""
    flat = factor.flatten()
    for axis in axes:
        sizes = [1] * scales.dim()
        sizes[axis] = flat.numel()
        if flat.numel() == scales.shape[axis] and torch.equal(scales, flat.reshape(sizes).expand_as(scales)):
            return axis
    return None


GROUPS = 6
"""A convolution has this argument at this place."""


@find_at("styles-outside-the-convolution", aten.conv2d.default, aten.conv_transpose2d.input)
def styles_outside_the_convolution(model: RepairedModule, node: Node) -> NodeMatch | None:
    """Write a convolution with a constant weight, and multiply its input and output with the factors."""
    x, weight, *rest = node.args
    bias, *settings = rest or [None]
    groups = node.args[GROUPS] if len(node.args) > GROUPS else 1
    if not isinstance(x, Node) or not isinstance(weight, Node) or not model.varies(weight):
        return None
    if bias is not None or groups != 1:
        return None
    axes = (0, 1) if node.target is aten.conv_transpose2d.input else (1, 0)
    modulated = _take_weight_apart(model, weight, axes)
    if modulated is None:
        return None
    convolve, constant, count = callable_of(node), modulated.constant, len(modulated.read)
    epsilon = _epsilon_of(model, modulated)
    powers = constant.square().sum((2, 3))
    powers = powers if axes[0] == 0 else powers.t().contiguous()

    def write(values: Tensor, *factors: Tensor) -> Tensor:
        styles = [factor.reshape(1, -1) for factor in factors]
        for style in styles[:count]:
            values = values * style[..., None, None]
        result: Tensor = convolve(values, constant, None, *settings, **node.kwargs)
        if epsilon is not None:
            style = reduce(torch.mul, styles[:count])
            scale = torch.rsqrt(torch.matmul(style * style, powers) + epsilon)
            return result * scale[..., None, None]
        for style in styles[count:]:
            result = result * style[..., None, None]
        return result

    given = modulated.given if epsilon is None else ()
    return NodeMatch(node, (x, *modulated.read, *given), write)


def _epsilon_of(model: RepairedModule, modulated: Modulated) -> float | None:
    """Return what is added to the sum of the weight's squares before its root is taken, if the only factor of
    the given channels is the inverse of that root: it can then be computed from the factors of the others."""
    if len(modulated.given) != 1 or not modulated.read:
        return None
    node: Any = modulated.given[0]
    while node.target in MOVES:
        node = node.all_input_nodes[0]
    if node.target is not aten.rsqrt.default:
        return None
    total = node.args[0]
    if not isinstance(total, Node) or total.target is not aten.add.Tensor:
        return None
    power, epsilon = total.args[:2]
    if not isinstance(power, Node) or power.target is not aten.sum.dim_IntList:
        return None
    weight = _square_of(power.args[0])
    parts = _parts_of(model, weight) if weight is not None else None
    same = parts is not None and [*parts[1]] == [*modulated.read]
    return epsilon if same and isinstance(epsilon, float) else None
