"""What a rewrite of an exported PyTorch model writes, by its name in manifests/fixes.toml."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

from ci.lanes.executorch.rewriting import Exported, NodeMatch
from ci.pipeline.rewriting import HTP_DIMENSIONS, merged, product_of

aten: Any = torch.ops.aten
Find = Callable[[Exported], Iterator[NodeMatch]]
Match = Callable[[Exported, Node], NodeMatch | None]
When = Callable[[Exported, Node], bool]

REWRITES: dict[str, list[Find]] = {}
"""By name: what finds the places."""

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


def search(name: str) -> Callable[[Find], Find]:
    def register(find: Find) -> Find:
        REWRITES.setdefault(name, []).append(find)
        return find

    return register


def each(name: str, *targets: Any) -> Callable[[Match], Match]:
    """For a rewrite of single nodes."""

    def register(match: Match) -> Match:
        search(name)(lambda model: filter(None, (match(model, node) for node in model.all_of(*targets))))
        return match

    return register


def one(
    name: str, *targets: Any, when: When = lambda *_: True, low: float = float("-inf")
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For one of which the function takes the node's arguments."""

    def register(write: Callable[..., Any]) -> Callable[..., Any]:
        each(name, *targets)(lambda model, node: model.call(node, write, low) if when(model, node) else None)
        return write

    return register


def _shape(model: Exported, node: Any) -> tuple[int, ...]:
    return tuple(model.value(node).shape)


def _callable(node: Node) -> Any:
    return node.target


def _maker(node: Node) -> Any:
    return node.args[0].target if isinstance(node.args[0], Node) else None


def _largest(model: Exported, node: Any) -> float:
    return max(float(values[node].abs().max()) for values in model.values)


def _reads(node: Node) -> set[Any]:
    return {user.args[1] if len(user.args) > 1 else None for user in node.users}


@each("gelu-for-erf", aten.erf.default)
def gelu_for_erf(model: Exported, erf: Node) -> NodeMatch | None:
    scaled = erf.args[0]
    if not isinstance(scaled, Node) or scaled.target not in (aten.div.Tensor, aten.mul.Tensor):
        return None
    x = scaled.args[0]
    ends = [end for end in _following(erf, 4) if isinstance(x, Node) and model.only_of(end, x)]
    for end in reversed(ends):
        gelu, value = functional.gelu(model.value(x)), model.value(end)
        if value.shape == gelu.shape and torch.allclose(value, gelu, rtol=0, atol=NEAR):
            return NodeMatch(end, (x,), functional.gelu)
    return None


def _following(node: Node, steps: int) -> list[Node]:
    """The nodes that read its value, in the order of the graph."""
    found: dict[Node, None] = {}
    now = [node]
    for _ in range(steps):
        now = [user for reader in now for user in reader.users]
        found |= dict.fromkeys(user for user in now if user.op == "call_function")
    return list(found)


POSITIVE = (aten.exp.default, aten.sigmoid.default, aten.softmax.int)


def _is_positive(_: Exported, node: Node) -> bool:
    maker = node.args[0]
    if isinstance(maker, Node) and maker.target is aten.add.Tensor and maker.args[1:]:
        amount, maker = maker.args[1], maker.args[0]
        if not isinstance(amount, int | float) or amount < 0:
            return False
    return isinstance(maker, Node) and maker.target in POSITIVE


def _has_equal_bags(model: Exported, node: Node) -> bool:
    offsets = node.args[2]
    if not isinstance(offsets, Node) or model.varies(offsets) or _reads(node) != {0}:
        return False
    begins, count = model.value(offsets).tolist(), model.value(node.args[1]).numel()
    last = bool(node.args[7]) if len(node.args) > 7 else False
    sizes = {
        end - begin for begin, end in zip(begins, [*begins[1:], *([] if last else [count])], strict=not last)
    }
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
    *_rest: Any,
) -> Any:
    bags = offsets.numel() - int(include_last)
    rows = functional.embedding(indices.reshape(bags, -1), weight)
    if weights is not None:
        rows = rows * weights.reshape(bags, -1, 1)
    return (rows.sum(1), rows.mean(1), rows.amax(1))[mode], None, None, None


def _stands_alone(_: Exported, node: Node) -> bool:
    """Whether no convolution absorbs the norm."""
    maker = node.args[0]
    folded = isinstance(maker, Node) and maker.target in CONVOLUTIONS and len(maker.users) == 1
    return not folded and node.args[5] is False


def _scale_and_shift(w: Any, b: Any, mean: Tensor, var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    scale = (1.0 if w is None else w) * torch.rsqrt(var.double() + eps)
    return scale.float(), ((0.0 if b is None else b) - mean.double() * scale).float()


@one("norm-as-scale-and-shift", aten.batch_norm.default, when=_stands_alone)
def norm_as_scale_and_shift(
    x: Tensor, w: Any, b: Any, mean: Tensor, var: Tensor, training: bool, momentum: float, eps: float, *_: Any
) -> Tensor:
    scale, shift = _constants(_scale_and_shift(w, b, mean, var, eps), x)
    return x * scale + shift


def _constants(values: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """By channel, as they are broadcast to x."""
    return [value.reshape(-1, *[1] * (x.dim() - 2)) for value in values]


@each("norm-folded", aten.batch_norm.default)
def norm_folded(model: Exported, node: Node) -> NodeMatch | None:
    """QNN takes a larger epsilon for a smaller one."""
    conv, epsilon = node.args[0], float(str(node.args[7]))
    if _stands_alone(model, node) or not isinstance(conv, Node) or epsilon < NEAR:
        return None
    if "transpose" in str(conv.target):
        return None

    def known(place: Any) -> Any:
        return model.value(place) if isinstance(place, Node) else place

    scale, shift, mean, var = (known(place) for place in node.args[1:5])
    bias = known(conv.args[2]) if len(conv.args) > 2 else None
    weight, added = fuse_conv_bn_weights(known(conv.args[1]), bias, mean, var, epsilon, scale, shift)
    rest, target = conv.args[3:], _callable(conv)
    return NodeMatch(node, (conv.all_input_nodes[0],), lambda x: target(x, weight.data, added.data, *rest))


@search("bias-for-each-call")
def bias_for_each_call(model: Exported) -> Iterator[NodeMatch]:
    seen = set[Any]()
    for node in model.all_of(aten.linear.default, *CONVOLUTIONS):
        bias = node.args[2] if len(node.args) > 2 else None
        if not isinstance(bias, Node) or bias.op != "get_attr":
            continue
        if bias.target in seen:
            yield model.call(node, partial(_with_own_bias, node.target))
        seen.add(bias.target)


def _with_own_bias(target: Callable[..., Any], x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Any:
    return target(x, weight, bias.clone(), *rest)


NEAREST = (aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)


@each("nearest-by-index", *NEAREST)
def nearest_by_index(model: Exported, node: Node) -> NodeMatch | None:
    sizes = zip(_shape(model, node)[2:], _shape(model, node.args[0])[2:], strict=True)
    if not any(new % old for new, old in sizes):
        return None
    places = _places(model, node)

    def taken(x: Tensor, *_: Any) -> Tensor:
        for axis, of_axis in enumerate(places, 2):
            x = torch.index_select(x, axis, of_axis)
        return x

    return model.call(node, taken)


def _places(model: Exported, node: Node) -> list[Tensor]:
    """By dimension: which places of the input the output has."""
    shape, target, places = _shape(model, node.args[0]), node.target, []
    for axis in range(2, len(shape)):
        numbers = torch.arange(float(shape[axis])).reshape(
            [-1 if place == axis else 1 for place in range(len(shape))]
        )
        every: Any = target(numbers.expand(1, 1, *shape[2:]).contiguous(), *node.args[1:])
        places.append(every.movedim(axis, 0).reshape(every.shape[axis], -1)[:, 0].long())
    return places


def _pools_by_four(model: Exported, node: Node) -> bool:
    inner, outer = (_shape(model, place)[-2:] for place in (node.args[0], node))
    if any(old != 4 * new for old, new in zip(inner, outer, strict=True)):
        return False
    return node.target is not aten.avg_pool2d.default or node.args[1] in (4, [4, 4], (4, 4))


AVERAGES: dict[Any, tuple[int, Callable[..., Tensor]]] = {
    aten.avg_pool1d.default: (1, functional.conv1d),
    aten.avg_pool2d.default: (2, functional.conv2d),
}
"""By pool, the dimensions of its window, and the convolution of as many."""


def _for_each(value: Any, count: int) -> list[int]:
    """A size of a window, for each dimension."""
    values = [value] if isinstance(value, int) else [*value]
    return values * count if len(values) == 1 else values


@each("pool-as-convolution", *AVERAGES)
def pool_as_convolution(model: Exported, node: Node) -> NodeMatch | None:
    """Of windows that reach over the edge. Those that move by one are right."""
    given, rest, pool = _shape(model, node.args[0]), [*node.args[2:]], _callable(node)
    count, convolve = AVERAGES[pool]
    if len(given) != count + 2:
        # Without a dimension of the batch, in which each channel would be one.
        return None
    kernel = _for_each(node.args[1], count)
    stride = _for_each(rest[0], count) if rest and rest[0] else kernel
    padding = _for_each(rest[1], count) if len(rest) > 1 else [0] * count
    steps = zip(_shape(model, node)[2:], stride, kernel, given[2:], padding, strict=True)
    beyond = [(out - 1) * step + wide - old - pad for out, step, wide, old, pad in steps]
    if max(stride) == 1 or not (any(padding) or max(beyond) > 0):
        return None
    ends = [end for pad, more in zip(padding, beyond, strict=True) for end in (max(more, 0), pad)]
    pads = ends[::-1]
    # A sum of each window, with a factor for each place: by how many values it is divided.
    ones, weight = torch.ones(1, 1, *given[2:]), torch.ones(1, 1, *kernel)
    factor = pool(ones, *node.args[1:]) / convolve(functional.pad(ones, pads), weight, stride=stride)
    largest = float(factor.max())
    alike, channels = largest - float(factor.min()) < NEAR * largest, given[1]

    def write(x: Tensor, *_: Any) -> Tensor:
        weights = torch.full((channels, 1, *kernel), largest)
        sums: Tensor = convolve(functional.pad(x, pads), weights, stride=stride, groups=channels)
        return sums if alike else sums * (factor / largest)

    return model.call(node, write)


@one(
    "pool-with-kernel",
    aten.adaptive_max_pool3d.default,
    when=lambda model, node: (
        _reads(node) == {0}
        and all(
            old % new == 0
            for old, new in zip(
                _shape(model, node.args[0])[-3:], tuple(model.value(node)[0].shape)[-3:], strict=True
            )
        )
    ),
)
def pool_with_kernel(x: Tensor, sizes: Sequence[int]) -> Any:
    kernel = [old // new for old, new in zip(x.shape[-3:], sizes, strict=True)]
    return functional.max_pool3d(x, kernel, kernel), None


@one(
    "prelu-by-relus",
    aten.prelu.default,
    when=lambda model, node: model.value(node.args[1]).numel() > 1 and _maker(node) not in CONVOLUTIONS,
)
def prelu_by_relus(x: Tensor, weight: Tensor) -> Tensor:
    (by_channel,) = _constants([weight], x)
    return torch.relu(x) - by_channel * torch.relu(-x)


def _pads_two_ends(_: Exported, node: Node) -> bool:
    pads: Any = node.args[1]
    ends = [(before, after) for before, after in zip(pads[::2], pads[1::2], strict=True) if before or after]
    convolved = node.users and all(user.target in CONVOLUTIONS for user in node.users)
    return len(ends) > 1 and not any(before for before, _after in ends) and not convolved


@one("pad-by-dimension", aten.pad.default, aten.constant_pad_nd.default, when=_pads_two_ends)
def pad_by_dimension(x: Tensor, pads: Sequence[int], *rest: Any, **more: Any) -> Tensor:
    for place in range(0, len(pads), 2):
        if pads[place] or pads[place + 1]:
            x = aten.pad.default(x, [0] * place + [*pads[place : place + 2]], *rest, **more)
    return x


def _cuts_and_adds(_: Exported, node: Node) -> bool:
    pads: Any = node.args[1]
    ends = zip(pads[::2], pads[1::2], strict=True)
    mode = node.args[2] if node.target is aten.pad.default and len(node.args) > 2 else "constant"
    return mode == "constant" and any(before < 0 or before > 0 > after for before, after in ends)


@one("cut-before-pad", aten.pad.default, aten.constant_pad_nd.default, when=_cuts_and_adds)
def cut_before_pad(x: Tensor, pads: Sequence[int], *rest: Any, **more: Any) -> Tensor:
    for place in range(0, len(pads), 2):
        axis = x.dim() - 1 - place // 2
        before, after = (max(-amount, 0) for amount in pads[place : place + 2])
        if before or after:
            x = x.narrow(axis, before, x.shape[axis] - before - after)
    added = [max(amount, 0) for amount in pads]
    return aten.pad.default(x, added, *rest, **more) if any(added) else x


def _repeats_its_border(_: Exported, node: Node) -> bool:
    pads: Any = node.args[1]
    return len(node.args) > 2 and node.args[2] in ("replicate", "circular") and min(pads) >= 0


@one("pad-by-slices", aten.pad.default, when=_repeats_its_border)
def pad_by_slices(x: Tensor, pads: Sequence[int], mode: str, *_: Any) -> Tensor:
    for place in range(0, len(pads), 2):
        # A negative dimension of a slice ends the builder.
        axis, (before, after) = x.dim() - 1 - place // 2, pads[place : place + 2]
        size = x.shape[axis]
        first, last = (0, size - 1) if mode == "replicate" else (size - before, 0)
        width = (1, 1) if mode == "replicate" else (before, after)
        count = (before, after) if mode == "replicate" else (bool(before), bool(after))
        ends = [x.narrow(axis, begin, wide) for begin, wide in zip((first, last), width, strict=True)]
        parts = [*[ends[0]] * count[0], x, *[ends[1]] * count[1]]
        x = torch.cat(parts, axis) if len(parts) > 1 else x
    return x


def _sizes(arguments: Sequence[Any]) -> Sequence[int]:
    return arguments[0] if arguments else ()


@one(
    "pool-as-mean",
    aten.adaptive_avg_pool1d.default,
    when=lambda model, node: _shape(model, node.args[0])[-1] % _shape(model, node)[-1] == 0,
)
def pool_as_mean(x: Tensor, sizes: Sequence[int]) -> Tensor:
    if sizes[0] == 1:
        return x.mean(-1, keepdim=True)
    return x.reshape(*x.shape[:-1], sizes[0], -1).mean(-1)


@one(
    "transposed-convolution-by-group",
    *TRANSPOSED,
    when=lambda _, node: len(node.args) > 6 and int(str(node.args[6])) > 1,
)
def transposed_convolution_by_group(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    more: Any,
    groups: int,
    *rest: Any,
) -> Tensor:
    calls: Any = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
    call = calls[x.dim() - 3]
    biases = [None] * groups if bias is None else [part.clone() for part in bias.chunk(groups)]
    parts = zip(x.chunk(groups, 1), weight.chunk(groups), biases, strict=True)
    results = [call(part, w.clone(), b, stride, padding, more, 1, *rest) for part, w, b in parts]
    return torch.cat(results, 1)


def _softplus(x: Tensor) -> Tensor:
    return torch.relu(x) + torch.log1p(torch.exp(-torch.clamp(x.abs(), max=20)))


@one("group-norm-for-instance-norm", aten.instance_norm.default)
def group_norm_for_instance_norm(
    x: Tensor, w: Any, b: Any, mean: Any, var: Any, of_input: bool, momentum: float, eps: float, *_: Any
) -> Tensor:
    if of_input:
        return functional.group_norm(x, x.shape[1], w, b, eps)
    scale, shift = _constants(_scale_and_shift(w, b, mean, var, eps), x)
    return x * scale + shift


def _is_along_another(model: Exported, node: Node) -> bool:
    return int(str(node.args[1])) not in (-1, len(_shape(model, node)) - 1)


LARGER_BY = 64.0
LOGARITHMS = {
    aten.log.default: (torch.log, math.log(LARGER_BY)),
    aten.log2.default: (torch.log2, math.log2(LARGER_BY)),
    aten.log10.default: (torch.log10, math.log10(LARGER_BY)),
}


@each("log-of-larger", *LOGARITHMS)
def log_of_larger(model: Exported, node: Node) -> NodeMatch | None:
    x, (log, added) = node.all_input_nodes[0], LOGARITHMS[_callable(node)]
    if x.target is aten.mul.Tensor and x.args[1] == LARGER_BY:
        return None
    return model.call(node, lambda x: log(x * LARGER_BY) - added)


def _is_depthwise(model: Exported, node: Node) -> bool:
    weight, rest = _shape(model, node.args[1]), [*node.args[3:]]
    plain = all(
        value in default
        for value, default in zip(rest, ((1, [1, 1]), (0, [0, 0]), (1, [1, 1])), strict=False)
    )
    return plain and len(rest) > 3 and rest[3] == weight[0] and weight[1:] == (1, 1, 1)


@one("depthwise-as-product", aten.conv2d.default, when=_is_depthwise)
def depthwise_as_product(x: Tensor, weight: Tensor, bias: Tensor | None, *_: Any) -> Tensor:
    product = x * weight.detach().clone().reshape(-1, 1, 1)
    return product if bias is None else product + bias.detach().clone().reshape(-1, 1, 1)


def _is_of_two(model: Exported, node: Node) -> bool:
    values: Any = model.value(node)
    return _reads(node) == {0} and values[0].dim() > 0 and values[0].shape[0] == 2


@each("matmul-for-einsum", aten.einsum.default)
def matmul_for_einsum(model: Exported, node: Node) -> NodeMatch | None:
    taken: Any = node.args[1]
    shapes = [_shape(model, operand) for operand in taken]
    if len(shapes) != 2 or not (product := product_of(str(node.args[0]), shapes)):
        return None

    def write(_equation: str, operands: Sequence[Tensor], *_: Any) -> Tensor:
        parts = []
        for x, part in zip(operands, product.parts, strict=True):
            whole = x.sum(part.summed) if part.summed else x
            turned = whole if part.order == sorted(part.order) else whole.permute(part.order)
            parts.append(turned if part.sizes == [*turned.shape] else turned.reshape(part.sizes))
        result = torch.matmul(*parts)
        result = result if product.sizes == [*result.shape] else result.reshape(product.sizes)
        return result if product.order == sorted(product.order) else result.permute(product.order)

    return model.call(node, write)


def _is_by_condition(model: Exported, node: Node) -> bool:
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
    q: Tensor, k: Tensor, v: Tensor, *_: Any, scale: Any = None, enable_gqa: bool = False, **_more: Any
) -> Tensor:
    mask = torch.full((q.shape[-2], k.shape[-2]), MASKED).triu(1)
    result: Tensor = aten.scaled_dot_product_attention.default(
        q, k, v, mask, scale=scale, enable_gqa=enable_gqa
    )
    return result


@one("cosine-in-parts", aten.cosine_similarity.default)
def cosine_in_parts(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """What it is decomposed to hands a constant from a delegate to the CPU."""
    units = (part / torch.sqrt((part * part).sum(dim, keepdim=True)).clamp(min=eps) for part in (x, y))
    return torch.mul(*units).sum(dim)


@one("convolution-for-unfold", aten.im2col.default)
def convolution_for_unfold(x: Tensor, kernel: list[int], dilation: Any, padding: Any, stride: Any) -> Tensor:
    channels = x.shape[-3]
    windows = torch.eye(channels * math.prod(kernel)).view(-1, channels, *kernel)
    return functional.conv2d(x, windows, None, stride, padding, dilation).flatten(-2)


@search("constants-folded")
def constants_folded(model: Exported) -> Iterator[NodeMatch]:
    """What no input changes, where something reads it that an input changes."""
    for node in list(model.module.graph.nodes):
        if node.op != "call_function" or not isinstance(model.value(node), Tensor) or model.varies(node):
            continue
        works = node.target not in NO_WORK or not all(
            operand.op == "get_attr" for operand in node.all_input_nodes
        )
        if works and any(model.varies(user) for user in node.users):
            yield NodeMatch(node, (), partial(torch.clone, model.value(node).detach()))


@each("recurrent-cell-by-cell", aten.lstm.input, aten.gru.input)
def recurrent_cell_by_cell(model: Exported, node: Node) -> NodeMatch:
    state: Any = node.args[1]
    first = state if isinstance(state, list | tuple) else [state]
    empty = not any(model.varies(tensor) or model.value(tensor).any() for tensor in first)
    return model.call(node, _recurrent(node.target is aten.lstm.input, empty, _reads(node)))


@each("recurrent-cell-by-cell", aten.lstm_cell.default, aten.gru_cell.default)
def cell_in_parts(model: Exported, node: Node) -> NodeMatch:
    return model.call(node, partial(_cell, node.target is aten.lstm_cell.default, _reads(node)))


def _cell(is_lstm: bool, reads: set[Any], x: Tensor, state: Any, *weights: Tensor | None) -> Any:
    """The quantizer has no rule for it, and what it becomes when lowered stays in float."""
    given = [tensor for tensor in weights if tensor is not None]
    _, last = _steps(is_lstm, [x], list(state) if is_lstm else [state], given)
    return (
        tuple(part if number in reads else None for number, part in enumerate(last)) if is_lstm else last[0]
    )


def _recurrent(is_lstm: bool, empty: bool, reads: set[Any]) -> Callable[..., Any]:
    def write(
        x: Tensor,
        state: Any,
        weights: Sequence[Tensor],
        biased: bool,
        layers: int,
        dropout: float,
        train: bool,
        two_ways: bool,
        batch_first: bool,
    ) -> Any:
        x, ways, count = (x.transpose(0, 1) if batch_first else x), 1 + two_ways, 4 if biased else 2
        states = list(state) if is_lstm else [state]
        lasts: list[list[Tensor]] = [[] for _ in states]
        for layer in range(layers):
            outputs = []
            for way in range(ways):
                place = layer * ways + way
                begin = None if empty else [tensor[place] for tensor in states]
                steps = x.unbind(0)[:: -1 if way else 1]
                given, last = _steps(is_lstm, steps, begin, weights[place * count : (place + 1) * count])
                outputs.append(torch.stack(given[:: -1 if way else 1]))
                for kept, tensor in zip(lasts, last, strict=True):
                    kept.append(tensor)
            x = torch.cat(outputs, -1) if two_ways else outputs[0]
        results = [x.transpose(0, 1) if batch_first else x, *(torch.stack(kept) for kept in lasts)]
        return tuple(result if number in reads else None for number, result in enumerate(results))

    return write


def _steps(
    is_lstm: bool, steps: Sequence[Tensor], begin: Sequence[Tensor] | None, weights: Sequence[Tensor]
) -> tuple[list[Tensor], Sequence[Tensor]]:
    """The outputs and the last state of one layer in one direction. The first step of an empty state reads
    none: a program may not hand out its zeros."""
    of_input, of_state, *biases = weights
    state, outputs = begin, []
    for x in steps:
        inner = functional.linear(x, of_input, biases[0].clone() if biases else None)
        if state is None:
            hidden = biases[1].clone() if biases else torch.zeros(of_state.shape[0])
        else:
            hidden = functional.linear(state[0], of_state, biases[1].clone() if biases else None)
        state = _lstm(inner + hidden, state) if is_lstm else _gru(inner, hidden, state)
        outputs.append(state[0])
    assert state is not None
    return outputs, state


def _lstm(gates: Tensor, state: Sequence[Tensor] | None) -> list[Tensor]:
    enter, forget, new, leave = gates.chunk(4, -1)
    cell = torch.sigmoid(enter) * torch.tanh(new)
    cell = cell if state is None else torch.sigmoid(forget) * state[1] + cell
    return [torch.sigmoid(leave) * torch.tanh(cell), cell]


def _gru(inner: Tensor, hidden: Tensor, state: Sequence[Tensor] | None) -> list[Tensor]:
    (reset, update, new), (of_reset, of_update, of_new) = inner.chunk(3, -1), hidden.chunk(3, -1)
    kept = torch.sigmoid(update + of_update)
    made = torch.tanh(new + torch.sigmoid(reset + of_reset) * of_new)
    return [made - kept * made if state is None else made - kept * made + kept * state[0]]


RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
COPIES = (aten.contiguous.default, aten.clone.default)


@each("fewer-dimensions", *RESHAPES)
def fewer_dimensions(model: Exported, node: Node) -> NodeMatch | None:
    permuted = node.args[0]
    while isinstance(permuted, Node) and permuted.target in COPIES:
        permuted = permuted.args[0]
    if not isinstance(permuted, Node) or permuted.target is not aten.permute.default:
        return None
    axes: Any = permuted.args[1]
    first, order = permuted.args[0], [axis % len(axes) for axis in axes]
    if not isinstance(first, Node) or len(order) <= HTP_DIMENSIONS or first.target not in RESHAPES:
        return None
    (sizes, fewer), shape = merged(_shape(model, first), order), _shape(model, node)
    operands = (first.all_input_nodes[0],)
    return NodeMatch(node, operands, lambda x: x.reshape(sizes).permute(fewer).reshape(shape))


MOST_OF_ACTIVATIONS = 4
"""Dimensions that QNN takes of these."""
IMAGE = 4
"""Dimensions of a batch of images."""


@each(
    "activation-of-fewer-dimensions",
    *(aten.elu.default, aten.hardswish.default, aten.log_sigmoid.default, aten.rms_norm.default),
)
def activation_of_fewer_dimensions(model: Exported, node: Node) -> NodeMatch | None:
    target = _callable(node)
    by_row = target is not aten.rms_norm.default or len(_sizes(node.args[1:])) == 1
    if not by_row or len(_shape(model, node)) <= MOST_OF_ACTIVATIONS:
        return None
    return model.call(node, lambda x, *rest: target(x.reshape(-1, x.shape[-1]), *rest).reshape(x.shape))


@one(
    "activation-of-fewer-dimensions",
    aten.group_norm.default,
    when=lambda model, node: len(_shape(model, node)) > MOST_OF_ACTIVATIONS,
)
def group_norm_of_fewer_dimensions(x: Tensor, *rest: Any) -> Tensor:
    result: Tensor = aten.group_norm.default(x.flatten(2, -2), *rest)
    return result.reshape(x.shape)


@one(
    "group-norm-of-images", aten.group_norm.default, when=lambda model, node: len(_shape(model, node)) < IMAGE
)
def group_norm_of_images(x: Tensor, *rest: Any) -> Tensor:
    place = (..., *[None] * (IMAGE - x.dim()))
    result: Tensor = aten.group_norm.default(x[place], *rest)
    return result.reshape(x.shape)


@each("selects-for-unbind", aten.unbind.int)
def selects_for_unbind(model: Exported, node: Node) -> NodeMatch | None:
    dim, reads = int(str(node.args[1])) if len(node.args) > 1 else 0, _reads(node)
    several = _shape(model, node.args[0])[1:2] not in ((), (1,))
    if _maker(node) is not aten.permute.default or dim or not several:
        return None
    return model.call(node, lambda x, *_: tuple(x[i] if i in reads else None for i in range(len(x))))


OF_INDICES = (aten.topk.default, aten.sort.default, aten.max.dim, aten.min.dim)
MOVES = (
    *(aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.view.default, aten.reshape.default),
    *(aten.select.int, aten.slice.Tensor, aten.permute.default, aten.transpose.int),
)
"""What moves integers without computing, and is refused for indices of int64."""


@each("indices-as-int32", *MOVES)
def indices_as_int32(model: Exported, node: Node) -> NodeMatch | None:
    part, move = node.args[0], _callable(node)
    if not isinstance(part, Node) or part.target is not getitem:
        return None
    if _maker(part) not in OF_INDICES or part.args[1] != 1:
        return None
    return model.call(node, lambda x, *rest: move(x.to(torch.int32).to(torch.int64), *rest))


WEIGHTS = "weights-made-constant"
"""The rewrite of weights that are computed in each run, which an export cannot show."""
INPUTS = {
    "input-in-int32": ((torch.uint8,), torch.int32),
    "input-in-float32": ((torch.int32, torch.int64), torch.float32),
}
"""By rewrite: the types of an input that is only moved, cast and compared, and the one that it gets."""
COMPARISONS = (
    *(aten.eq.Scalar, aten.ne.Scalar, aten.gt.Scalar, aten.ge.Scalar, aten.lt.Scalar, aten.le.Scalar),
)


def retyped(model: Exported, name: str) -> Iterator[Node]:
    """The inputs whose type is to change."""
    kinds, _ = INPUTS[name]
    for node in model.module.graph.find_nodes(op="placeholder"):
        value = model.value(node)
        if not isinstance(value, Tensor) or value.dtype not in kinds:
            continue
        readers = _readers_behind_moves(node)
        casts = [reader for reader in readers if _is_cast_to_float(model, reader)]
        # ExecuTorch casts an input of int64 by itself.
        wrong = [cast for cast in casts if value.dtype != torch.int64 or cast.args[0] is not node]
        if wrong and all(reader in casts or reader.target in COMPARISONS for reader in readers):
            yield node


def _readers_behind_moves(node: Node) -> list[Node]:
    found, todo = list[Node](), list(node.users)
    while todo:
        user = todo.pop()
        if user.target in MOVES:
            todo += user.users
        else:
            found.append(user)
    return found


def _is_cast_to_float(model: Exported, node: Node) -> bool:
    return node.target in CASTS and bool(model.value(node).is_floating_point())


@each("cast-before-moves", *CASTS)
def cast_before_moves(model: Exported, node: Node) -> NodeMatch | None:
    """Of an input of int64: a program moves it as int32."""
    source, moves = node.args[0], list[Node]()
    while isinstance(source, Node) and source.target in MOVES and len(source.all_input_nodes) == 1:
        moves.insert(0, source)
        source = source.args[0]
    if not moves or not isinstance(source, Node) or source.op != "placeholder":
        return None
    if model.value(source).dtype != torch.int64 or not _is_cast_to_float(model, node):
        return None
    kind = model.value(node).dtype

    def write(x: Tensor) -> Tensor:
        x = x.to(kind)
        for move in moves:
            x = _callable(move)(x, *move.args[1:], **move.kwargs)
        return x

    return NodeMatch(node, (source,), write)


# Rewrites of single nodes that one expression says.

one("stride-written", aten.max_pool2d.default, when=lambda _, node: len(node.args) < 3 or not node.args[2])(
    lambda x, kernel, stride=(), *rest: aten.max_pool2d.default(x, kernel, kernel, *rest)
)
one("cumprod-as-sum", aten.cumprod.default, when=_is_positive, low=1e-6)(
    lambda x, dim: torch.exp(torch.cumsum(torch.log(x), dim))
)
one("pool-by-two-twice", aten.avg_pool2d.default, aten.adaptive_avg_pool2d.default, when=_pools_by_four)(
    lambda x, *_: functional.avg_pool2d(functional.avg_pool2d(x, 2, 2), 2, 2)
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
        and _maker(node) is not aten.trunc.default
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
one("exp-of-clamped", aten.exp.default, when=lambda _, node: _maker(node) is not aten.clamp.default)(
    lambda x: torch.exp(x.clamp(min=-80))
)
one("softmax-along-the-last", aten.softmax.int, aten._softmax.default, when=_is_along_another)(
    lambda x, dim, *_: torch.softmax(x.transpose(dim, -1), -1).transpose(dim, -1)
)
one("cumsum-along-the-last", aten.cumsum.default, when=_is_along_another)(
    lambda x, dim, **more: torch.cumsum(x.transpose(dim, -1), -1, **more).transpose(dim, -1)
)
one("bias-added-alone", aten.linear.default, when=lambda _, node: len(node.args) > 2 and bool(node.args[2]))(
    lambda x, weight, bias: functional.linear(x, weight) + bias
)
one(
    "product-for-linear",
    aten.linear.default,
    when=lambda model, node: model.value(node.args[1]).numel() == 1 and len(node.args) < 3,
)(lambda x, weight: x * weight.reshape(1).clone())
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
