"""Define the rewrite of a convolution whose weight is a constant times factors that the input changes, as the
styles of a generator are. The constant weight stays in the convolution, and its input and output are
multiplied with the factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.fx import Node

from ci.explain.torch_rewrites import COPIES, RESHAPES, aten, callable_of, square_of
from ci.explain.torch_rewriting import NodeMatch, Registry, RepairedModule

STYLES = Registry()
find_at = STYLES.find_at

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
    """The constant weight, laid out as the convolution reads it."""
    read: Sequence[Node]
    """The factors of the channels that are read."""
    given: Sequence[Node]
    """The factors of the channels that are given."""


def _take_weight_apart(model: RepairedModule, weight: Node, axes: tuple[int, int]) -> Modulated | None:
    """Take a computed weight apart; None if it is not computed so. `axes` are the weight's dimensions of the
    channels that are read, and of those that are given."""
    parts = _parts_of(model, weight)
    if parts is None:
        return None
    constant, factors = parts
    by_axis: dict[int, list[Node]] = {axis: [] for axis in axes}
    for factor in factors:
        # With ones in place of the constant, what is left is the factor, spread along its dimension.
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
        # A factor is smaller than the product, and the weight is not.
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
            # StyleGAN2 divides each channel that it gives by sqrt(sum((constant * style) ** 2) + epsilon).
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
    node = modulated.given[0]
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
    weight = square_of(power.args[0])
    parts = _parts_of(model, weight) if weight is not None else None
    same = parts is not None and [*parts[1]] == [*modulated.read]
    return epsilon if same and isinstance(epsilon, float) else None
