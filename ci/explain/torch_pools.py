"""Define the rewrites of pools, and of resizes to the nearest value, by their names in
manifests/fixes.toml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional

from ci.explain.torch_rewrites import NEAR, aten, callable_of, reads_of, shape_of
from ci.explain.torch_rewriting import NodeMatch, Registry, RepairedModule

POOLS = Registry()
find_at, one = POOLS.find_at, POOLS.one

NEAREST = (aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)


@find_at("nearest-by-index", *NEAREST)
def nearest_by_index(model: RepairedModule, node: Node) -> NodeMatch | None:
    sizes = zip(shape_of(model, node)[2:], shape_of(model, node.args[0])[2:], strict=True)
    if not any(new % old for new, old in sizes):
        return None
    indices = _indices_of_resize(model, node)

    def select(x: Tensor, *_: object) -> Tensor:
        for axis, places in enumerate(indices, 2):
            x = torch.index_select(x, axis, places)
        return x

    return model.call(node, select)


def _indices_of_resize(model: RepairedModule, node: Node) -> list[Tensor]:
    """Return, for each dimension that is resized, the places of the input that the output has: what the
    resize makes of the input's own indices."""
    shape, resize, indices = shape_of(model, node.args[0]), callable_of(node), []
    for axis in range(2, len(shape)):
        along_axis = [1] * len(shape)
        along_axis[axis] = shape[axis]
        numbers = torch.arange(float(shape[axis])).reshape(along_axis)
        resized = resize(numbers.expand(1, 1, *shape[2:]).contiguous(), *node.args[1:])
        rows = resized.movedim(axis, 0).reshape(resized.shape[axis], -1)
        indices.append(rows[:, 0].long())
    return indices


def _pools_by_four(model: RepairedModule, node: Node) -> bool:
    inner, outer = shape_of(model, node.args[0])[-2:], shape_of(model, node)[-2:]
    if any(old != 4 * new for old, new in zip(inner, outer, strict=True)):
        return False
    return node.target is not aten.avg_pool2d.default or node.args[1] in (4, [4, 4], (4, 4))


@one("pool-by-two-twice", aten.avg_pool2d.default, aten.adaptive_avg_pool2d.default, when=_pools_by_four)
def pool_by_two_twice(x: Tensor, *_: object) -> Tensor:
    return functional.avg_pool2d(functional.avg_pool2d(x, 2, 2), 2, 2)


AVERAGES: dict[object, tuple[int, Callable[..., Tensor]]] = {
    aten.avg_pool1d.default: (1, functional.conv1d),
    aten.avg_pool2d.default: (2, functional.conv2d),
}
"""Maps a pool to the number of its window's dimensions, and to the convolution with as many."""


@dataclass(frozen=True)
class Windows:
    """Describes the windows of a pool, with a number for each dimension."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    beyond: Sequence[int]
    """The last window reaches so far over the padded input's end; a negative number stays within."""
    counts_padding: bool

    @classmethod
    def of(cls, node: Node, count: int, old: Sequence[int], new: Sequence[int]) -> Windows:
        """Read the arguments of a pool that makes the sizes `new` of `old`."""
        arguments: list[Any] = [*node.args[1:], None, None, None, None][:5]
        kernel = _for_each_dimension(arguments[0], count)
        stride = _for_each_dimension(arguments[1], count) if arguments[1] else kernel
        padding = [0] * count if arguments[2] is None else _for_each_dimension(arguments[2], count)
        beyond = []
        for size, result, step, wide, pad in zip(old, new, stride, kernel, padding, strict=True):
            beyond.append((result - 1) * step + wide - size - pad)
        return cls(kernel, stride, padding, beyond, arguments[4] is None or bool(arguments[4]))

    @property
    def reach_over_the_edge(self) -> bool:
        return any(self.padding) or max(self.beyond) > 0

    @property
    def pads(self) -> list[int]:
        """The amounts that `pad` adds so that all windows are within the input, for the last dimension
        first."""
        pads = []
        for padding, beyond in zip(reversed(self.padding), reversed(self.beyond), strict=True):
            pads += [padding, max(beyond, 0)]
        return pads


def _for_each_dimension(value: int | Sequence[int], count: int) -> list[int]:
    values = [value] if isinstance(value, int) else [*value]
    return values * count if len(values) == 1 else values


@find_at("pool-as-convolution", *AVERAGES)
def pool_as_convolution(model: RepairedModule, node: Node) -> NodeMatch | None:
    """Write a pool whose windows reach over the edge as a convolution. Windows that move by one are right,
    unless padding does not count."""
    shape, pool = shape_of(model, node.args[0]), callable_of(node)
    count, convolve = AVERAGES[pool]
    if len(shape) != count + 2:
        # There is no batch dimension: each channel would count as a sample.
        return None
    channels, sizes = shape[1], shape[2:]
    windows = Windows.of(node, count, sizes, shape_of(model, node)[2:])
    is_right = max(windows.stride) == 1 and windows.counts_padding
    if is_right or not windows.reach_over_the_edge:
        return None
    # A sum of each window, with a factor for each place: by how many values it is divided.
    ones = torch.ones(1, 1, *sizes)
    sums_of_ones = convolve(
        functional.pad(ones, windows.pads), torch.ones(1, 1, *windows.kernel), stride=windows.stride
    )
    factor = pool(ones, *node.args[1:]) / sums_of_ones
    largest = float(factor.max())
    is_one_factor = largest - float(factor.min()) < NEAR * largest

    def write(x: Tensor, *_: object) -> Tensor:
        weights = torch.full((channels, 1, *windows.kernel), largest)
        padded = functional.pad(x, windows.pads)
        sums = convolve(padded, weights, stride=windows.stride, groups=channels)
        return sums if is_one_factor else sums * (factor / largest)

    return model.call(node, write)


def _has_equal_windows(model: RepairedModule, node: Node) -> bool:
    if reads_of(node) != {0}:
        return False
    old, new = shape_of(model, node.args[0])[-3:], tuple(model.value(node)[0].shape)[-3:]
    return all(size % result == 0 for size, result in zip(old, new, strict=True))


@one("pool-with-kernel", aten.adaptive_max_pool3d.default, when=_has_equal_windows)
def pool_with_kernel(x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, None]:
    kernel = [old // new for old, new in zip(x.shape[-3:], sizes, strict=True)]
    return functional.max_pool3d(x, kernel, kernel), None


def _divides_evenly(model: RepairedModule, node: Node) -> bool:
    return shape_of(model, node.args[0])[-1] % shape_of(model, node)[-1] == 0


@one("pool-as-mean", aten.adaptive_avg_pool1d.default, when=_divides_evenly)
def pool_as_mean(x: Tensor, sizes: Sequence[int]) -> Tensor:
    if sizes[0] == 1:
        return x.mean(-1, keepdim=True)
    return x.reshape(*x.shape[:-1], sizes[0], -1).mean(-1)


def _has_no_stride(_: RepairedModule, node: Node) -> bool:
    return len(node.args) < 3 or not node.args[2]


@one("stride-written", aten.max_pool2d.default, when=_has_no_stride)
def stride_written(x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), *rest: object) -> Tensor:
    pooled: Tensor = aten.max_pool2d.default(x, kernel, kernel, *rest)
    return pooled


def _divides_unevenly(model: RepairedModule, node: Node) -> bool:
    sizes = zip(shape_of(model, node.args[0])[-2:], shape_of(model, node)[-2:], strict=True)
    return any(old % new for old, new in sizes)


@one("pool-by-matrices", aten.adaptive_avg_pool2d.default, when=_divides_unevenly)
def pool_by_matrices(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Write two linear layers, whose weights are what the pool makes of the unit vectors."""
    for size in reversed(sizes):
        units = torch.eye(x.shape[-1])
        weights = functional.adaptive_avg_pool1d(units[None], size)[0].T.contiguous()
        x = functional.linear(x, weights).transpose(-1, -2)
    return x
