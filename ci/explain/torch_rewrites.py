"""Define the rewrites of an exported PyTorch model, by their names in manifests/fixes.toml.

Each function finds the places in a model where its rewrite applies, and gives what to write there: another
computation of the same values that the NPU takes, or computes correctly. `torch_rewriting` proves each on the
model's own samples before it replaces anything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import Argument
from torch.nn import functional

from ci.explain.einsum import product_of
from ci.explain.permutation import HTP_DIMENSIONS, merge_dimensions
from ci.explain.torch_rewriting import NodeMatch, Registry, RepairedModule

aten: Any = torch.ops.aten
REWRITES = Registry()
"""The rewrites of operators."""
find_at, one, search = REWRITES.find_at, REWRITES.one, REWRITES.search

TRANSPOSED = (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
CONVOLUTIONS = (
    *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
    *(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding),
    *TRANSPOSED,
)
CASTS = (aten.to.dtype, aten._to_copy.default)
NO_WORK = (aten.lift_fresh_copy.default, aten.detach.default, aten.detach_.default, aten.alias.default)
SMALL = 0.1
"""Values within it are small for 16 bits."""
NEAR = 1e-4
MASKED = -1e4


def shape_of(model: RepairedModule, node: Argument) -> tuple[int, ...]:
    return tuple(model.value(node).shape)


def callable_of(node: Node) -> Any:
    return node.target


def maker_of(node: Node) -> Any:
    return node.args[0].target if isinstance(node.args[0], Node) else None


def _largest(model: RepairedModule, node: Any) -> float:
    return max(float(values[node].abs().max()) for values in model.values)


def reads_of(node: Node) -> set[object]:
    return {user.args[1] if len(user.args) > 1 else None for user in node.users}


SQUARES = (aten.square.default, aten.pow.Tensor_Scalar, aten.mul.Tensor)


def square_of(node: object) -> Node | None:
    """Return what a node squares; None if it is no square."""
    if not isinstance(node, Node) or node.target not in SQUARES:
        return None
    if node.target is aten.pow.Tensor_Scalar and node.args[1] != 2:
        return None
    if node.target is aten.mul.Tensor and node.args[0] is not node.args[1]:
        return None
    operand = node.args[0]
    return operand if isinstance(operand, Node) else None


def _sizes(arguments: Sequence[Any]) -> Sequence[int]:
    return arguments[0] if arguments else ()


@find_at("gelu-for-erf", aten.erf.default)
def gelu_for_erf(model: RepairedModule, erf: Node) -> NodeMatch | None:
    scaler = erf.args[0]
    if not isinstance(scaler, Node) or scaler.target not in (aten.div.Tensor, aten.mul.Tensor):
        return None
    x = scaler.args[0]
    if not isinstance(x, Node):
        return None
    ends = [end for end in _readers_of(erf, 4) if model.only_of(end, x)]
    for end in reversed(ends):
        gelu, value = functional.gelu(model.value(x)), model.value(end)
        if value.shape == gelu.shape and torch.allclose(value, gelu, rtol=0, atol=NEAR):
            return NodeMatch(end, (x,), functional.gelu)
    return None


def _readers_of(node: Node, steps: int) -> list[Node]:
    """Return the nodes that read its value, at most so many steps behind it, the nearest first."""
    readers: dict[Node, None] = {}
    now = [node]
    for _ in range(steps):
        now = [user for reader in now for user in reader.users]
        readers |= dict.fromkeys(user for user in now if user.op == "call_function")
    return list(readers)


POSITIVE = (aten.exp.default, aten.sigmoid.default, aten.softmax.int)


def _is_positive(_: RepairedModule, node: Node) -> bool:
    maker = node.args[0]
    if isinstance(maker, Node) and maker.target is aten.add.Tensor and maker.args[1:]:
        amount, maker = maker.args[1], maker.args[0]
        if not isinstance(amount, int | float) or amount < 0:
            return False
    return isinstance(maker, Node) and maker.target in POSITIVE


def _softplus(x: Tensor) -> Tensor:
    return torch.relu(x) + torch.log1p(torch.exp(-torch.clamp(x.abs(), max=20)))


def _is_along_another(model: RepairedModule, node: Node) -> bool:
    dimension = int(str(node.args[1])) if len(node.args) > 1 else -1
    return dimension not in (-1, len(shape_of(model, node.args[0])) - 1)


LARGER_BY = 64.0
LOGARITHMS = {
    aten.log.default: (torch.log, math.log(LARGER_BY)),
    aten.log2.default: (torch.log2, math.log2(LARGER_BY)),
    aten.log10.default: (torch.log10, math.log10(LARGER_BY)),
}


@find_at("log-of-larger", *LOGARITHMS)
def log_of_larger(model: RepairedModule, node: Node) -> NodeMatch | None:
    x, (log, offset) = node.all_input_nodes[0], LOGARITHMS[callable_of(node)]
    if x.target is aten.mul.Tensor and x.args[1] == LARGER_BY:
        return None
    return model.call(node, lambda x: log(x * LARGER_BY) - offset)


def _is_of_two(model: RepairedModule, node: Node) -> bool:
    values: Any = model.value(node)
    return reads_of(node) == {0} and values[0].dim() > 0 and values[0].shape[0] == 2


@find_at("matmul-for-einsum", aten.einsum.default)
def matmul_for_einsum(model: RepairedModule, node: Node) -> NodeMatch | None:
    tensors: Any = node.args[1]
    shapes = [shape_of(model, operand) for operand in tensors]
    if len(shapes) != 2 or not (product := product_of(str(node.args[0]), shapes)):
        return None

    def write(_equation: str, operands: Sequence[Tensor], *_: object) -> Tensor:
        parts = []
        for x, part in zip(operands, product.parts, strict=True):
            total = x.sum(part.summed) if part.summed else x
            tensor = total if part.order == sorted(part.order) else total.permute(part.order)
            parts.append(tensor if part.sizes == [*tensor.shape] else tensor.reshape(part.sizes))
        result = torch.matmul(*parts)
        result = result if product.sizes == [*result.shape] else result.reshape(product.sizes)
        return result if product.order == sorted(product.order) else result.permute(product.order)

    return model.call(node, write)


def _is_by_condition(model: RepairedModule, node: Node) -> bool:
    indices: Any = node.args[1]
    if len(indices) != 1 or indices[0] is None or (len(node.args) > 3 and node.args[3]):
        return False
    mask, value = model.value(indices[0]), model.value(node.args[2])
    same = mask.shape == model.value(node.args[0]).shape
    return bool(same and mask.dtype == torch.bool and value.numel() == 1)


@one(
    "mask-as-constant",
    aten.scaled_dot_product_attention.default,
    when=lambda _, node: bool(node.kwargs.get("is_causal") or any(node.args[5:6])),
)
def mask_as_constant(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *_: object,
    scale: float | None = None,
    enable_gqa: bool = False,
    **_more: object,
) -> Tensor:
    mask = torch.full((q.shape[-2], k.shape[-2]), MASKED).triu(1)
    result: Tensor = aten.scaled_dot_product_attention.default(
        q, k, v, mask, scale=scale, enable_gqa=enable_gqa
    )
    return result


@one("cosine-in-parts", aten.cosine_similarity.default)
def cosine_in_parts(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Write the cosine in parts: its decomposition hands a constant from a delegate to the CPU."""
    units = (part / torch.sqrt((part * part).sum(dim, keepdim=True)).clamp(min=eps) for part in (x, y))
    return torch.mul(*units).sum(dim)


@one("convolution-for-unfold", aten.im2col.default)
def convolution_for_unfold(
    x: Tensor, kernel: list[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Tensor:
    channels = x.shape[-3]
    windows = torch.eye(channels * math.prod(kernel)).view(-1, channels, *kernel)
    return functional.conv2d(x, windows, None, stride, padding, dilation).flatten(-2)


@search("constants-folded")
def constants_folded(model: RepairedModule) -> Iterator[NodeMatch]:
    """Find what no input changes, if something reads it that an input changes."""
    for node in list(model.module.graph.nodes):
        if node.op != "call_function" or not isinstance(model.value(node), Tensor) or model.varies(node):
            continue
        works = node.target not in NO_WORK or not all(
            operand.op == "get_attr" for operand in node.all_input_nodes
        )
        if works and any(model.varies(user) for user in node.users):
            yield NodeMatch(node, (), partial(torch.clone, model.value(node).detach()))


RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
COPIES = (aten.contiguous.default, aten.clone.default)


@find_at("fewer-dimensions", *RESHAPES)
def fewer_dimensions(model: RepairedModule, node: Node) -> NodeMatch | None:
    transpose = node.args[0]
    while isinstance(transpose, Node) and transpose.target in COPIES:
        transpose = transpose.args[0]
    if not isinstance(transpose, Node) or transpose.target is not aten.permute.default:
        return None
    axes: Any = transpose.args[1]
    first, order = transpose.args[0], [axis % len(axes) for axis in axes]
    if not isinstance(first, Node) or len(order) <= HTP_DIMENSIONS or first.target not in RESHAPES:
        return None
    (sizes, fewer), shape = merge_dimensions(shape_of(model, first), order), shape_of(model, node)
    operands = (first.all_input_nodes[0],)
    return NodeMatch(node, operands, lambda x: x.reshape(sizes).permute(fewer).reshape(shape))


MOST_OF_ACTIVATIONS = 4
"""QNN takes at most so many dimensions of these operators."""
IMAGE = 4
"""A batch of images has so many dimensions."""


@find_at(
    "activation-of-fewer-dimensions",
    *(aten.elu.default, aten.hardswish.default, aten.log_sigmoid.default, aten.rms_norm.default),
)
def activation_of_fewer_dimensions(model: RepairedModule, node: Node) -> NodeMatch | None:
    target = callable_of(node)
    by_row = target is not aten.rms_norm.default or len(_sizes(node.args[1:])) == 1
    if not by_row or len(shape_of(model, node)) <= MOST_OF_ACTIVATIONS:
        return None
    return model.call(node, lambda x, *rest: target(x.reshape(-1, x.shape[-1]), *rest).reshape(x.shape))


@one(
    "activation-of-fewer-dimensions",
    aten.group_norm.default,
    when=lambda model, node: len(shape_of(model, node)) > MOST_OF_ACTIVATIONS,
)
def group_norm_of_fewer_dimensions(x: Tensor, *rest: object) -> Tensor:
    result: Tensor = aten.group_norm.default(x.flatten(2, -2), *rest)
    return result.reshape(x.shape)


@one(
    "group-norm-of-images",
    aten.group_norm.default,
    when=lambda model, node: len(shape_of(model, node)) < IMAGE,
)
def group_norm_of_images(x: Tensor, *rest: object) -> Tensor:
    place = (..., *[None] * (IMAGE - x.dim()))
    result: Tensor = aten.group_norm.default(x[place], *rest)
    return result.reshape(x.shape)


@find_at("selects-for-unbind", aten.unbind.int)
def selects_for_unbind(model: RepairedModule, node: Node) -> NodeMatch | None:
    dim, reads = int(str(node.args[1])) if len(node.args) > 1 else 0, reads_of(node)
    several = shape_of(model, node.args[0])[1:2] not in ((), (1,))
    if maker_of(node) is not aten.permute.default or dim or not several:
        return None
    return model.call(node, lambda x, *_: tuple(x[i] if i in reads else None for i in range(len(x))))


@find_at("sort-along-the-last", aten.sort.default)
def sort_along_the_last(model: RepairedModule, node: Node) -> NodeMatch | None:
    reads = reads_of(node)

    def write(x: Tensor, dim: int, *more: bool) -> tuple[Tensor | None, ...]:
        parts = torch.sort(x.transpose(dim, -1), -1, *more)
        return tuple(part.transpose(dim, -1) if i in reads else None for i, part in enumerate(parts))

    return model.call(node, write) if _is_along_another(model, node) else None


OF_INDICES = (aten.topk.default, aten.sort.default, aten.max.dim, aten.min.dim)
MOVES = (
    *(aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.view.default, aten.reshape.default),
    *(aten.select.int, aten.slice.Tensor, aten.permute.default, aten.transpose.int),
)
"""These move integers without computing, and are refused for indices of int64."""


@find_at("indices-as-int32", *MOVES)
def indices_as_int32(model: RepairedModule, node: Node) -> NodeMatch | None:
    part, move = node.args[0], callable_of(node)
    if not isinstance(part, Node) or part.target is not getitem:
        return None
    if maker_of(part) not in OF_INDICES or part.args[1] != 1:
        return None
    return model.call(node, lambda x, *rest: move(x.to(torch.int32).to(torch.int64), *rest))


def is_cast_to_float(model: RepairedModule, node: Node) -> bool:
    return node.target in CASTS and bool(model.value(node).is_floating_point())


@find_at("cast-before-moves", *CASTS)
def cast_before_moves(model: RepairedModule, node: Node) -> NodeMatch | None:
    """Cast an input of int64 before it is moved: a program moves it as int32."""
    source, moves = node.args[0], list[Node]()
    while isinstance(source, Node) and source.target in MOVES and len(source.all_input_nodes) == 1:
        moves.insert(0, source)
        source = source.args[0]
    if not moves or not isinstance(source, Node) or source.op != "placeholder":
        return None
    if model.value(source).dtype != torch.int64 or not is_cast_to_float(model, node):
        return None
    kind = model.value(node).dtype

    def write(x: Tensor) -> Tensor:
        x = x.to(kind)
        for move in moves:
            x = callable_of(move)(x, *move.args[1:], **move.kwargs)
        return x

    return NodeMatch(node, (source,), write)


# Rewrites of single nodes that one expression says.

one("cumprod-as-sum", aten.cumprod.default, when=_is_positive, low=1e-6)(
    lambda x, dim: torch.exp(torch.cumsum(torch.log(x), dim))
)
one(
    "roll-by-positive-dimensions",
    aten.roll.default,
    when=lambda _, node: any(dim < 0 for dim in _sizes(node.args[2:3])),
)(lambda x, shifts, dims: torch.roll(x, tuple(shifts), tuple(dim % x.dim() for dim in dims)))
one("slice-by-positive-dimension", aten.narrow.default, when=lambda _, node: int(str(node.args[1])) < 0)(
    lambda x, dim, start, length: torch.narrow(x, dim % x.dim(), start, length)
)
one("root-of-variance", aten.std.default, aten.std.dim, aten.std.correction)(
    lambda x, *rest, **more: torch.sqrt(torch.var(x, *rest, **more))
)
one("root-of-squares", aten.hypot.default)(lambda x, y: torch.sqrt(x * x + y * y))
one(
    "truncated-before-cast",
    aten.to.dtype,
    when=lambda model, node: (
        node.args[1] in (torch.int64, torch.int32)
        and model.value(node.args[0]).is_floating_point()
        and maker_of(node) is not aten.trunc.default
    ),
)(lambda x, kind, *_: torch.trunc(x).to(kind))
one(
    "where-for-cast",
    aten.to.dtype,
    when=lambda model, node: (
        node.args[1] == torch.float32
        and model.value(node.args[0]).dtype == torch.bool
        and any(user.target is aten.linear.default for user in node.users)
    ),
)(lambda x, *_: torch.where(x, 1.0, 0.0))
one("softplus-by-absolute", aten.softplus.default, when=lambda _, node: len(node.args) == 1)(_softplus)
one("softplus-by-absolute", aten.mish.default)(lambda x: x * torch.tanh(_softplus(x)))
one("exp-of-clamped", aten.exp.default, when=lambda _, node: maker_of(node) is not aten.clamp.default)(
    lambda x: torch.exp(x.clamp(min=-80))
)
one("softmax-along-the-last", aten.softmax.int, aten._softmax.default, when=_is_along_another)(
    lambda x, dim, *_: torch.softmax(x.transpose(dim, -1), -1).transpose(dim, -1)
)
one("cumsum-along-the-last", aten.cumsum.default, when=_is_along_another)(
    lambda x, dim, **more: torch.cumsum(x.transpose(dim, -1), -1, **more).transpose(dim, -1)
)
one("ceil-by-floor", aten.ceil.default)(lambda x: -torch.floor(-x))
one(
    "floor-of-quotient",
    aten.floor_divide.default,
    when=lambda model, node: model.value(node).is_floating_point(),
)(lambda x, y: torch.floor(x / y))
one("small-values-apart", aten.softmax.int, when=lambda model, node: _largest(model, node.args[0]) < SMALL)(
    lambda x, dim, *_: torch.softmax(x + 1, dim)
)
one(
    "small-values-apart",
    aten.elu.default,
    when=lambda model, node: node.args[1:] in ((), (1.0,)) and _largest(model, node.args[0]) < SMALL,
)(lambda x, *_: torch.relu(x) + torch.exp(x.clamp(max=0)) - 1)
one("power-as-exp", aten.pow.Scalar, when=lambda _, node: float(str(node.args[0])) > 0)(
    lambda base, x: torch.exp(x * math.log(base))
)
one(
    "product-for-square",
    aten.square.default,
    aten.pow.Tensor_Scalar,
    when=lambda _, node: node.target is aten.square.default or bool(node.args[1] == 2),
)(lambda x, *_: x * x)
one("scatter-of-a-tensor", aten.scatter.value)(
    lambda x, dim, index, value: torch.scatter(x, dim, index, torch.full(index.shape, value, dtype=x.dtype))
)
one(
    "second-input-alone",
    aten.matmul.default,
    when=lambda model, node: (
        isinstance(node.args[1], Node)
        and model.varies(node.args[1])
        and (len(node.args[1].users) > 1 or node.args[0] is node.args[1])
    ),
)(lambda x, y: torch.matmul(x, y * 1.0))
one("amax-for-max", aten.max.dim, when=_is_of_two)(
    lambda x, dim, keepdim=False: (torch.amax(x, dim, keepdim), None)
)
one("amax-for-max", aten.min.dim, when=_is_of_two)(
    lambda x, dim, keepdim=False: (torch.amin(x, dim, keepdim), None)
)
one("where-for-assignment", aten.index_put.default, aten.index_put_.default, when=_is_by_condition)(
    lambda x, indices, value, *_: torch.where(indices[0], value, x)
)
