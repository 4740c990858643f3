"""Define the rewrites of layers with weights: embeddings, norms, convolutions, linear layers, by their names
in manifests/fixes.toml. Pools, pads and recurrent layers have modules of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

from ci.explain.torch_rewrites import (
    CONVOLUTIONS,
    NEAR,
    TRANSPOSED,
    aten,
    callable_of,
    maker_of,
    reads_of,
    shape_of,
)
from ci.explain.torch_rewriting import NodeMatch, Registry, RepairedModule

LAYERS = Registry()
find_at, one, search = LAYERS.find_at, LAYERS.one, LAYERS.search


def _has_equal_bags(model: RepairedModule, node: Node) -> bool:
    """Whether all bags have as many indices, and only their sums are read."""
    offsets = node.args[2]
    if not isinstance(offsets, Node) or model.varies(offsets) or reads_of(node) != {0}:
        return False
    bounds = model.value(offsets).tolist()
    has_last_bound = len(node.args) > 7 and bool(node.args[7])
    if not has_last_bound:
        bounds.append(model.value(node.args[1]).numel())
    sizes = {end - begin for begin, end in pairwise(bounds)}
    return len(sizes) == 1 and 0 not in sizes


@one("embedding-and-sum", aten.embedding_bag.default, aten.embedding_bag.padding_idx, when=_has_equal_bags)
def embedding_and_sum(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Tensor | None = None,
    include_last: bool = False,
    *_: object,
) -> tuple[Tensor, None, None, None]:
    bags = offsets.numel() - int(include_last)
    rows = functional.embedding(indices.reshape(bags, -1), weight)
    if weights is not None:
        rows = rows * weights.reshape(bags, -1, 1)
    reduced = (rows.sum(1), rows.mean(1), rows.amax(1))[mode]
    return reduced, None, None, None


def _stands_alone(_: RepairedModule, node: Node) -> bool:
    """Whether no convolution absorbs the norm."""
    maker = node.args[0]
    absorbs = isinstance(maker, Node) and maker.target in CONVOLUTIONS and len(maker.users) == 1
    return not absorbs and node.args[5] is False


def _spread_channels(values: Tensor, x: Tensor) -> Tensor:
    """Reshape values by channel so that they are broadcast to x."""
    return values.reshape(-1, *[1] * (x.dim() - 2))


def _scale_and_shift(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, epsilon: float
) -> Tensor:
    """Compute a norm by the mean and variance that it has learned."""
    scale = torch.rsqrt(variance.double() + epsilon)
    if weight is not None:
        scale = weight * scale
    shift = (0.0 if bias is None else bias) - mean.double() * scale
    return x * _spread_channels(scale.float(), x) + _spread_channels(shift.float(), x)


@one("norm-as-scale-and-shift", aten.batch_norm.default, when=_stands_alone)
def norm_as_scale_and_shift(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    momentum: float,
    epsilon: float,
    *_: object,
) -> Tensor:
    return _scale_and_shift(x, weight, bias, mean, variance, epsilon)


@one("group-norm-for-instance-norm", aten.instance_norm.default)
def group_norm_for_instance_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    by_input: bool,
    momentum: float,
    epsilon: float,
    *_: object,
) -> Tensor:
    if by_input:
        return functional.group_norm(x, x.shape[1], weight, bias, epsilon)
    return _scale_and_shift(x, weight, bias, mean, variance, epsilon)


@find_at("norm-folded", aten.batch_norm.default)
def norm_folded(model: RepairedModule, node: Node) -> NodeMatch | None:
    """Fold a norm into the convolution before it, or write it as scale and shift: QNN computes a large
    epsilon as a smaller one."""
    conv, epsilon = node.args[0], float(str(node.args[7]))
    if epsilon < NEAR:
        return None
    if _stands_alone(model, node):
        return model.call(node, norm_as_scale_and_shift)
    if not isinstance(conv, Node) or "transpose" in str(conv.target):
        return None

    def value_of(operand: object) -> Any:
        return model.value(operand) if isinstance(operand, Node) else None

    scale, shift, mean, variance = map(value_of, node.args[1:5])
    bias = value_of(conv.args[2]) if len(conv.args) > 2 else None
    weight, offset = fuse_conv_bn_weights(value_of(conv.args[1]), bias, mean, variance, epsilon, scale, shift)
    rest, convolve = conv.args[3:], callable_of(conv)

    def write(x: Tensor) -> Tensor:
        folded: Tensor = convolve(x, weight.data, offset.data, *rest)
        return folded

    return NodeMatch(node, (conv.all_input_nodes[0],), write)


@search("bias-for-each-call")
def bias_for_each_call(model: RepairedModule) -> Iterator[NodeMatch]:
    """Yield the calls whose bias an earlier call has, too."""
    biases = set[str]()
    for node in model.all_of(aten.linear.default, *CONVOLUTIONS):
        bias = node.args[2] if len(node.args) > 2 else None
        if not isinstance(bias, Node) or bias.op != "get_attr":
            continue
        if bias.target in biases:
            yield model.call(node, partial(_call_with_own_bias, callable_of(node)))
        biases.add(str(bias.target))


def _call_with_own_bias(
    layer: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor, *rest: object
) -> Tensor:
    return layer(x, weight, bias.clone(), *rest)


def _has_bias(_: RepairedModule, node: Node) -> bool:
    return len(node.args) > 2 and bool(node.args[2])


@one("bias-added-alone", aten.linear.default, when=_has_bias)
def bias_added_alone(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.linear(x, weight) + bias


def _multiplies_by_one_number(model: RepairedModule, node: Node) -> bool:
    return model.value(node.args[1]).numel() == 1 and len(node.args) < 3


@one("product-for-linear", aten.linear.default, when=_multiplies_by_one_number)
def product_for_linear(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight.reshape(1).clone()


def _is_prelu_by_channel(model: RepairedModule, node: Node) -> bool:
    """Whether each channel has its own slope, and no convolution absorbs it."""
    return model.value(node.args[1]).numel() > 1 and maker_of(node) not in CONVOLUTIONS


@one("prelu-by-relus", aten.prelu.default, when=_is_prelu_by_channel)
def prelu_by_relus(x: Tensor, weight: Tensor) -> Tensor:
    return torch.relu(x) - _spread_channels(weight, x) * torch.relu(-x)


def _has_groups(_: RepairedModule, node: Node) -> bool:
    return len(node.args) > 6 and int(str(node.args[6])) > 1


TRANSPOSED_BY_DIMENSIONS: dict[int, Callable[..., Tensor]] = {
    3: functional.conv_transpose1d,
    4: functional.conv_transpose2d,
    5: functional.conv_transpose3d,
}


@one("transposed-convolution-by-group", *TRANSPOSED, when=_has_groups)
def transposed_convolution_by_group(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    *rest: object,
) -> Tensor:
    convolve = TRANSPOSED_BY_DIMENSIONS[x.dim()]
    weights = weight.chunk(groups)
    biases = [None] * groups if bias is None else bias.chunk(groups)
    results = []
    for part, own_weight, own_bias in zip(x.chunk(groups, 1), weights, biases, strict=True):
        constants = own_weight.clone(), None if own_bias is None else own_bias.clone()
        results.append(convolve(part, *constants, stride, padding, output_padding, 1, *rest))
    return torch.cat(results, 1)


def _is_depthwise(model: RepairedModule, node: Node) -> bool:
    """Whether each channel is multiplied by one number: one group a channel, and a window of one value."""
    if len(node.args) < 7:
        return False
    weight = shape_of(model, node.args[1])
    stride, padding, dilation, groups = node.args[3:7]
    is_plain = stride in (1, [1, 1]) and padding in (0, [0, 0]) and dilation in (1, [1, 1])
    return is_plain and bool(groups == weight[0]) and weight[1:] == (1, 1, 1)


@one("depthwise-as-product", aten.conv2d.default, when=_is_depthwise)
def depthwise_as_product(x: Tensor, weight: Tensor, bias: Tensor | None, *_: object) -> Tensor:
    product = x * weight.detach().clone().reshape(-1, 1, 1)
    if bias is None:
        return product
    return product + bias.detach().clone().reshape(-1, 1, 1)


@one("bilinear-as-linear", aten.bilinear.default)
def bilinear_as_linear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Write a linear layer of the first input, and a product with the second."""
    outputs, inner, other = weight.shape
    rows = weight.permute(0, 2, 1).reshape(outputs * other, inner)
    parts = functional.linear(x, rows).reshape(*x.shape[:-1], outputs, other)
    total = (parts * y.unsqueeze(-2)).sum(-1)
    return total if bias is None else total + bias
