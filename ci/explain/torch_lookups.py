"""Define the rewrites of reads and writes at places of a tensor, by their names in manifests/fixes.toml."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ci.explain.torch_rewrites import aten, callable_of, shape_of
from ci.explain.torch_rewriting import NodeMatch, Registry, RepairedModule

LOOKUPS = Registry()
find_at, search = LOOKUPS.find_at, LOOKUPS.search

MOST_COMPARED = 1 << 20
"""Each index is compared with each place; more comparisons than this cost too much."""
VIEWS = (aten.slice.Tensor, aten.select.int)
WRITES = (aten.fill_.Tensor, aten.fill_.Scalar, aten.copy_.default)


def _are_at(index: Tensor, dim: int, places: int, along: int) -> Tensor:
    """Compare each index with each place; the places have a dimension of their own."""
    shape = [1] * (index.dim() + 1)
    shape[along] = places
    return index.unsqueeze(dim).to(torch.int32) == torch.arange(places, dtype=torch.int32).reshape(shape)


@find_at("gather-by-comparison", aten.gather.default, aten.take_along_dim.default)
def gather_by_comparison(model: RepairedModule, node: Node) -> NodeMatch | None:
    if node.target is aten.gather.default:
        dim_number, index_node = node.args[1], node.args[2]
    else:
        index_node = node.args[1]
        dim_number = node.args[2] if len(node.args) > 2 else None
    shape, index_shape = shape_of(model, node.args[0]), shape_of(model, index_node)
    if dim_number is None or len(shape) != len(index_shape):
        return None
    dim = int(str(dim_number)) % len(shape)
    places = shape[dim]
    others = (size for axis, size in enumerate(shape) if axis != dim)
    index_others = (size for axis, size in enumerate(index_shape) if axis != dim)
    if tuple(others) != tuple(index_others) or places * model.value(index_node).numel() > MOST_COMPARED:
        return None

    def write(x: Tensor, *rest: Any, **more: Any) -> Tensor:
        index = next(value for value in (*rest, *more.values()) if isinstance(value, Tensor))
        chosen = _are_at(index, dim + 1, places, dim + 1)
        return torch.where(chosen, x.unsqueeze(dim), 0.0).sum(dim + 1)

    return model.call(node, write)


@find_at("scatter-by-comparison", aten.scatter_add.default)
def scatter_by_comparison(model: RepairedModule, node: Node) -> NodeMatch | None:
    shape, dim = shape_of(model, node.args[0]), int(str(node.args[1])) % len(shape_of(model, node.args[0]))
    index, source = model.value(node.args[2]), shape_of(model, node.args[3])
    places = shape[dim]
    same = all(
        size == index.shape[axis] for axis, size in enumerate(shape) if axis != dim
    ) and source == tuple(index.shape)
    if not same or places * index.numel() > MOST_COMPARED:
        return None

    def write(x: Tensor, _: int, index: Tensor, source: Tensor) -> Tensor:
        chosen = _are_at(index, dim, places, dim)
        return x + torch.where(chosen, source.unsqueeze(dim), 0.0).sum(dim + 1)

    return model.call(node, write)


@search("mask-for-a-slice")
def mask_for_a_slice(model: RepairedModule) -> Iterator[NodeMatch]:
    """Write a product with a mask for numbers that are written into slices of a tensor. The last write of a
    tensor stands for all of them."""
    writes: dict[Node, list[Node]] = {}
    for node in model.all_of(*WRITES):
        writes.setdefault(_base_of(node), []).append(node)
    for base, nodes in writes.items():
        if base in (node.args[0] for node in nodes) or not base.all_input_nodes:
            continue
        if any(model.varies(operand) for node in nodes for operand in node.all_input_nodes[1:]):
            continue
        if not model.value(base).is_floating_point() or _is_read_between(base, nodes):
            continue
        keep, added = torch.ones(shape_of(model, base)), torch.zeros(shape_of(model, base))
        for node in nodes:
            value = model.value(node.args[1]) if isinstance(node.args[1], Node) else node.args[1]
            _part_of(keep, node).fill_(0)
            _part_of(added, node).copy_(torch.as_tensor(value))
        yield NodeMatch(nodes[-1], (base,), _product_with(_narrow(keep), _narrow(added)))


def _product_with(mask: Tensor, offset: Tensor) -> Callable[[Tensor], Tensor]:
    if offset.any():
        return lambda x: x * mask + offset
    return lambda x: x * mask


def _base_of(write: Node) -> Node:
    """Return the tensor that a write into slices of it changes."""
    views = _views_of(write)
    source = views[0].args[0] if views else write.args[0]
    assert isinstance(source, Node)
    return source


def _views_of(write: Node) -> list[Node]:
    """Return the views through which a node writes, the one of the whole tensor first."""
    views, node = list[Node](), write.args[0]
    while isinstance(node, Node) and node.target in VIEWS:
        views.insert(0, node)
        node = node.args[0]
    return views


def _part_of(tensor: Tensor, write: Node) -> Tensor:
    """Return the slice of the tensor that the node writes to."""
    for view in _views_of(write):
        tensor = callable_of(view)(tensor, *view.args[1:])
    return tensor


def _is_read_between(base: Node, writes: Sequence[Node]) -> bool:
    """Whether anything but a write reads the tensor before the last write, after the first one."""
    order = {node: number for number, node in enumerate(base.graph.nodes)}
    views = {view for write in writes for view in _views_of(write)}
    readers = [user for user in base.users if user not in views]
    return any(order[writes[0]] < order[user] < order[writes[-1]] for user in readers)


def _narrow(tensor: Tensor) -> Tensor:
    """Return the tensor with one value for each dimension in which all are equal: it is broadcast."""
    for axis in range(tensor.dim()):
        first = tensor.narrow(axis, 0, 1)
        if bool((tensor == first).all()):
            tensor = first
    return tensor.contiguous()
