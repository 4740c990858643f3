"""Define the rewrites that keep a model out of a faulty step of ExecuTorch or torchao, by their names in
manifests/fixes.toml. The step takes the replaced operators for something that they are not; the operators
that replace them are computed correctly."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional

from ci.explain.torch_rewrites import aten, reads_of, shape_of, square_of
from ci.explain.torch_rewriting import NodeMatch, Registry, RepairedModule
from ci.operators import Traits
from ci.operators.faults import normalizes_small_rows_of_an_image

ESCAPES = Registry()
find_at, one = ESCAPES.find_at, ESCAPES.one

IMAGE = 4
"""A batch of images has so many dimensions."""


def _has_no_batch(model: RepairedModule, node: Node) -> bool:
    return len(shape_of(model, node.args[0])) < IMAGE


@one("pool-of-images", aten.max_pool2d.default, when=_has_no_batch)
def pool_of_images(x: Tensor, *rest: object) -> Tensor:
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
    is_max = node.target is aten.max.dim
    value_of, index_of = (torch.amax, torch.argmax) if is_max else (torch.amin, torch.argmin)

    def write(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor | None, Tensor]:
        value = value_of(x, dim, keepdim) if 0 in reads else None
        return value, index_of(x, dim, keepdim)

    return model.call(node, write)


def _is_boolean(model: RepairedModule, node: Node) -> bool:
    return bool(model.value(node).dtype == torch.bool)


one("logical-not-of-a-boolean", aten.bitwise_not.default, when=_is_boolean)(torch.logical_not)


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
    x = square_of(mean.args[0])
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
    """Whether a mean is of the last dimension alone, which it keeps."""
    axes, dimensions = mean.args[1], len(shape_of(model, x))
    keeps_dimension = len(mean.args) > 2 and bool(mean.args[2])
    if not keeps_dimension or not isinstance(axes, list | tuple) or len(axes) != 1:
        return False
    return int(str(axes[0])) % dimensions == dimensions - 1


def _has_a_weight(product: Node) -> bool:
    """Whether its only reader multiplies it with a weight, as ExecuTorch expects."""
    readers = [user for user in product.users if user.target is aten.mul.Tensor]
    operands = [operand for user in readers for operand in user.all_input_nodes if operand is not product]
    return len(product.users) == 1 and any(operand.op == "get_attr" for operand in operands)


def _has_small_rows(model: RepairedModule, node: Node) -> bool:
    sizes = node.args[1]
    return (
        isinstance(sizes, list)
        and len(sizes) == 1
        and normalizes_small_rows_of_an_image(Traits("", input=shape_of(model, node)))
    )


@one("rms-norm-of-rows", aten.rms_norm.default, when=_has_small_rows)
def rms_norm_of_rows(x: Tensor, *rest: object) -> Tensor:
    result: Tensor = aten.rms_norm.default(x.reshape(-1, x.shape[-1]), *rest)
    return result.reshape(x.shape)
