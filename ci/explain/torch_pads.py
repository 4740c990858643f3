"""Define the rewrites of pads, by their names in manifests/fixes.toml.

A pad's amounts come in pairs, before and after, for the last dimension first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.fx import Node

from ci.explain.torch_rewrites import CONVOLUTIONS, aten
from ci.explain.torch_rewriting import Registry, RepairedModule

PADS = Registry()
one = PADS.one


@dataclass(frozen=True)
class Ends:
    """Says how much one dimension is padded at each end; a negative amount cuts."""

    place: int
    """It is counted from the last dimension."""
    before: int
    after: int


def _amounts_of(pad: Node) -> Sequence[int]:
    return cast(Sequence[int], pad.args[1])


def _ends_of(pads: Sequence[int]) -> Iterator[Ends]:
    """Yield the amounts of each dimension that is padded or cut."""
    for place, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        if before or after:
            yield Ends(place, before, after)


def _pads_two_ends(_: RepairedModule, node: Node) -> bool:
    """Whether more than one dimension is padded, each only behind, and a convolution does not absorb it."""
    ends = list(_ends_of(_amounts_of(node)))
    feeds_convolutions = node.users and all(user.target in CONVOLUTIONS for user in node.users)
    only_behind = not any(end.before for end in ends)
    return len(ends) > 1 and only_behind and not feeds_convolutions


@one("pad-by-dimension", aten.pad.default, aten.constant_pad_nd.default, when=_pads_two_ends)
def pad_by_dimension(x: Tensor, pads: Sequence[int], *rest: object, **options: object) -> Tensor:
    for end in _ends_of(pads):
        alone = [0, 0] * end.place + [end.before, end.after]
        x = aten.pad.default(x, alone, *rest, **options)
    return x


def _cuts_and_adds(_: RepairedModule, node: Node) -> bool:
    """Whether a pad with a constant cuts in front, or adds in front and cuts behind."""
    mode = node.args[2] if node.target is aten.pad.default and len(node.args) > 2 else "constant"
    ends = _ends_of(_amounts_of(node))
    return mode == "constant" and any(end.before < 0 or end.before > 0 > end.after for end in ends)


@one("cut-before-pad", aten.pad.default, aten.constant_pad_nd.default, when=_cuts_and_adds)
def cut_before_pad(x: Tensor, pads: Sequence[int], *rest: object, **options: object) -> Tensor:
    for end in _ends_of(pads):
        axis = x.dim() - 1 - end.place
        before, after = max(-end.before, 0), max(-end.after, 0)
        if before or after:
            x = x.narrow(axis, before, x.shape[axis] - before - after)
    widths = [max(amount, 0) for amount in pads]
    if not any(widths):
        return x
    padded: Tensor = aten.pad.default(x, widths, *rest, **options)
    return padded


def _repeats_its_border(_: RepairedModule, node: Node) -> bool:
    has_mode = len(node.args) > 2 and node.args[2] in ("replicate", "circular")
    return has_mode and min(_amounts_of(node)) >= 0


@one("pad-by-slices", aten.pad.default, when=_repeats_its_border)
def pad_by_slices(x: Tensor, pads: Sequence[int], mode: str, *_: object) -> Tensor:
    for end in _ends_of(pads):
        # A negative dimension of a slice ends the builder.
        axis = x.dim() - 1 - end.place
        size = x.shape[axis]
        if mode == "replicate":
            before = [x.narrow(axis, 0, 1)] * end.before
            after = [x.narrow(axis, size - 1, 1)] * end.after
        else:
            before = [x.narrow(axis, size - end.before, end.before)] if end.before else []
            after = [x.narrow(axis, 0, end.after)] if end.after else []
        x = torch.cat([*before, x, *after], axis)
    return x
