"""Define the rewrites of layers: pools, pads, norms, convolutions, recurrent cells, by their names in
manifests/fixes.toml."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
    offsets = node.args[2]
    if not isinstance(offsets, Node) or model.varies(offsets) or reads_of(node) != {0}:
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


def _stands_alone(_: RepairedModule, node: Node) -> bool:
    """Whether no convolution absorbs the norm."""
    maker = node.args[0]
    absorbs = isinstance(maker, Node) and maker.target in CONVOLUTIONS and len(maker.users) == 1
    return not absorbs and node.args[5] is False


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
    """Reshape values by channel so that they are broadcast to x."""
    return [value.reshape(-1, *[1] * (x.dim() - 2)) for value in values]


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

    def value_of(place: Any) -> Any:
        return model.value(place) if isinstance(place, Node) else place

    scale, shift, mean, var = (value_of(place) for place in node.args[1:5])
    bias = value_of(conv.args[2]) if len(conv.args) > 2 else None
    weight, offset = fuse_conv_bn_weights(value_of(conv.args[1]), bias, mean, var, epsilon, scale, shift)
    rest, target = conv.args[3:], callable_of(conv)
    return NodeMatch(node, (conv.all_input_nodes[0],), lambda x: target(x, weight.data, offset.data, *rest))


@search("bias-for-each-call")
def bias_for_each_call(model: RepairedModule) -> Iterator[NodeMatch]:
    targets = set[Any]()
    for node in model.all_of(aten.linear.default, *CONVOLUTIONS):
        bias = node.args[2] if len(node.args) > 2 else None
        if not isinstance(bias, Node) or bias.op != "get_attr":
            continue
        if bias.target in targets:
            yield model.call(node, partial(_call_with_own_bias, node.target))
        targets.add(bias.target)


def _call_with_own_bias(
    target: Callable[..., Any], x: Tensor, weight: Tensor, bias: Tensor, *rest: Any
) -> Any:
    return target(x, weight, bias.clone(), *rest)


NEAREST = (aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)


@find_at("nearest-by-index", *NEAREST)
def nearest_by_index(model: RepairedModule, node: Node) -> NodeMatch | None:
    sizes = zip(shape_of(model, node)[2:], shape_of(model, node.args[0])[2:], strict=True)
    if not any(new % old for new, old in sizes):
        return None
    places = _places(model, node)

    def select(x: Tensor, *_: Any) -> Tensor:
        for axis, of_axis in enumerate(places, 2):
            x = torch.index_select(x, axis, of_axis)
        return x

    return model.call(node, select)


def _places(model: RepairedModule, node: Node) -> list[Tensor]:
    """Return for each dimension which places of the input the output has."""
    shape, target, places = shape_of(model, node.args[0]), node.target, []
    for axis in range(2, len(shape)):
        numbers = torch.arange(float(shape[axis])).reshape(
            [-1 if place == axis else 1 for place in range(len(shape))]
        )
        result: Any = target(numbers.expand(1, 1, *shape[2:]).contiguous(), *node.args[1:])
        places.append(result.movedim(axis, 0).reshape(result.shape[axis], -1)[:, 0].long())
    return places


def _pools_by_four(model: RepairedModule, node: Node) -> bool:
    inner, outer = (shape_of(model, place)[-2:] for place in (node.args[0], node))
    if any(old != 4 * new for old, new in zip(inner, outer, strict=True)):
        return False
    return node.target is not aten.avg_pool2d.default or node.args[1] in (4, [4, 4], (4, 4))


AVERAGES: dict[Any, tuple[int, Callable[..., Tensor]]] = {
    aten.avg_pool1d.default: (1, functional.conv1d),
    aten.avg_pool2d.default: (2, functional.conv2d),
}
"""It maps a pool to the number of its window's dimensions, and to the convolution with as many."""


def _for_each(value: Any, count: int) -> list[int]:
    """Return the size of a window for each dimension."""
    values = [value] if isinstance(value, int) else [*value]
    return values * count if len(values) == 1 else values


@find_at("pool-as-convolution", *AVERAGES)
def pool_as_convolution(model: RepairedModule, node: Node) -> NodeMatch | None:
    """Write a pool whose windows reach over the edge as a convolution. Windows that move by one are right,
    unless padding does not count."""
    shape, rest, pool = shape_of(model, node.args[0]), [*node.args[2:]], callable_of(node)
    count, convolve = AVERAGES[pool]
    if len(shape) != count + 2:
        # There is no batch dimension: each channel would count as a sample.
        return None
    kernel = _for_each(node.args[1], count)
    stride = _for_each(rest[0], count) if rest and rest[0] else kernel
    padding = _for_each(rest[1], count) if len(rest) > 1 else [0] * count
    steps = zip(shape_of(model, node)[2:], stride, kernel, shape[2:], padding, strict=True)
    beyond = [(out - 1) * step + wide - old - pad for out, step, wide, old, pad in steps]
    counts = rest[3] if len(rest) > 3 else True
    if (max(stride) == 1 and counts) or not (any(padding) or max(beyond) > 0):
        return None
    ends = [end for pad, more in zip(padding, beyond, strict=True) for end in (max(more, 0), pad)]
    pads = ends[::-1]
    # A sum of each window, with a factor for each place: by how many values it is divided.
    ones, weight = torch.ones(1, 1, *shape[2:]), torch.ones(1, 1, *kernel)
    factor = pool(ones, *node.args[1:]) / convolve(functional.pad(ones, pads), weight, stride=stride)
    largest = float(factor.max())
    alike, channels = largest - float(factor.min()) < NEAR * largest, shape[1]

    def write(x: Tensor, *_: Any) -> Tensor:
        weights = torch.full((channels, 1, *kernel), largest)
        sums: Tensor = convolve(functional.pad(x, pads), weights, stride=stride, groups=channels)
        return sums if alike else sums * (factor / largest)

    return model.call(node, write)


@one(
    "pool-with-kernel",
    aten.adaptive_max_pool3d.default,
    when=lambda model, node: (
        reads_of(node) == {0}
        and all(
            old % new == 0
            for old, new in zip(
                shape_of(model, node.args[0])[-3:], tuple(model.value(node)[0].shape)[-3:], strict=True
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
    when=lambda model, node: model.value(node.args[1]).numel() > 1 and maker_of(node) not in CONVOLUTIONS,
)
def prelu_by_relus(x: Tensor, weight: Tensor) -> Tensor:
    (by_channel,) = _constants([weight], x)
    return torch.relu(x) - by_channel * torch.relu(-x)


def _pads_two_ends(_: RepairedModule, node: Node) -> bool:
    pads: Any = node.args[1]
    ends = [(before, after) for before, after in zip(pads[::2], pads[1::2], strict=True) if before or after]
    feeds_convolutions = node.users and all(user.target in CONVOLUTIONS for user in node.users)
    return len(ends) > 1 and not any(before for before, _after in ends) and not feeds_convolutions


@one("pad-by-dimension", aten.pad.default, aten.constant_pad_nd.default, when=_pads_two_ends)
def pad_by_dimension(x: Tensor, pads: Sequence[int], *rest: Any, **more: Any) -> Tensor:
    for place in range(0, len(pads), 2):
        if pads[place] or pads[place + 1]:
            x = aten.pad.default(x, [0] * place + [*pads[place : place + 2]], *rest, **more)
    return x


def _cuts_and_adds(_: RepairedModule, node: Node) -> bool:
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
    widths = [max(amount, 0) for amount in pads]
    return aten.pad.default(x, widths, *rest, **more) if any(widths) else x


def _repeats_its_border(_: RepairedModule, node: Node) -> bool:
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


@one(
    "pool-as-mean",
    aten.adaptive_avg_pool1d.default,
    when=lambda model, node: shape_of(model, node.args[0])[-1] % shape_of(model, node)[-1] == 0,
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


@one("group-norm-for-instance-norm", aten.instance_norm.default)
def group_norm_for_instance_norm(
    x: Tensor, w: Any, b: Any, mean: Any, var: Any, of_input: bool, momentum: float, eps: float, *_: Any
) -> Tensor:
    if of_input:
        return functional.group_norm(x, x.shape[1], w, b, eps)
    scale, shift = _constants(_scale_and_shift(w, b, mean, var, eps), x)
    return x * scale + shift


def _is_depthwise(model: RepairedModule, node: Node) -> bool:
    weight, rest = shape_of(model, node.args[1]), [*node.args[3:]]
    plain = all(
        value in default
        for value, default in zip(rest, ((1, [1, 1]), (0, [0, 0]), (1, [1, 1])), strict=False)
    )
    return plain and len(rest) > 3 and rest[3] == weight[0] and weight[1:] == (1, 1, 1)


@one("depthwise-as-product", aten.conv2d.default, when=_is_depthwise)
def depthwise_as_product(x: Tensor, weight: Tensor, bias: Tensor | None, *_: Any) -> Tensor:
    product = x * weight.detach().clone().reshape(-1, 1, 1)
    return product if bias is None else product + bias.detach().clone().reshape(-1, 1, 1)


@find_at("recurrent-cell-by-cell", aten.lstm.input, aten.gru.input)
def recurrent_cell_by_cell(model: RepairedModule, node: Node) -> NodeMatch:
    state: Any = node.args[1]
    first = state if isinstance(state, list | tuple) else [state]
    empty = not any(model.varies(tensor) or model.value(tensor).any() for tensor in first)
    return model.call(node, _recurrent(node.target is aten.lstm.input, empty, reads_of(node)))


@find_at("recurrent-cell-by-cell", aten.lstm_cell.default, aten.gru_cell.default)
def cell_in_parts(model: RepairedModule, node: Node) -> NodeMatch:
    return model.call(node, partial(_cell, node.target is aten.lstm_cell.default, reads_of(node)))


def _cell(is_lstm: bool, reads: set[Any], x: Tensor, state: Any, *weights: Tensor | None) -> Any:
    """Write a cell in parts: the quantizer has no rule for it, and what it is lowered to stays in float."""
    tensors = [tensor for tensor in weights if tensor is not None]
    _, last = _steps(is_lstm, [x], list(state) if is_lstm else [state], tensors)
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
                hiddens, last = _steps(is_lstm, steps, begin, weights[place * count : (place + 1) * count])
                outputs.append(torch.stack(hiddens[:: -1 if way else 1]))
                for row, tensor in zip(lasts, last, strict=True):
                    row.append(tensor)
            x = torch.cat(outputs, -1) if two_ways else outputs[0]
        results = [x.transpose(0, 1) if batch_first else x, *(torch.stack(row) for row in lasts)]
        return tuple(result if number in reads else None for number, result in enumerate(results))

    return write


def _steps(
    is_lstm: bool, steps: Sequence[Tensor], begin: Sequence[Tensor] | None, weights: Sequence[Tensor]
) -> tuple[list[Tensor], Sequence[Tensor]]:
    """Return the outputs and the last state of one layer in one direction. The first step from an empty state
    reads no state: a program may not hand out its zeros."""
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
    gate = torch.sigmoid(update + of_update)
    cell = torch.tanh(new + torch.sigmoid(reset + of_reset) * of_new)
    return [cell - gate * cell if state is None else cell - gate * cell + gate * state[0]]


# Rewrites of single nodes that one expression says.

one("stride-written", aten.max_pool2d.default, when=lambda _, node: len(node.args) < 3 or not node.args[2])(
    lambda x, kernel, stride=(), *rest: aten.max_pool2d.default(x, kernel, kernel, *rest)
)
one("pool-by-two-twice", aten.avg_pool2d.default, aten.adaptive_avg_pool2d.default, when=_pools_by_four)(
    lambda x, *_: functional.avg_pool2d(functional.avg_pool2d(x, 2, 2), 2, 2)
)
one("bias-added-alone", aten.linear.default, when=lambda _, node: len(node.args) > 2 and bool(node.args[2]))(
    lambda x, weight, bias: functional.linear(x, weight) + bias
)
one(
    "product-for-linear",
    aten.linear.default,
    when=lambda model, node: model.value(node.args[1]).numel() == 1 and len(node.args) < 3,
)(lambda x, weight: x * weight.reshape(1).clone())
