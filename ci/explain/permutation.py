"""Merge dimensions of a permutation: HTP permutes only a few."""

from __future__ import annotations

import math
from collections.abc import Sequence

HTP_DIMENSIONS = 5
"""HTP permutes at most so many dimensions."""


def merge_dimensions(shape: Sequence[int], order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return sizes and order of the same permutation with fewer dimensions: those of size one are left out,
    and those that stay neighbours become one."""
    order = [axis for axis in order if shape[axis] > 1]
    groups: list[list[int]] = []
    axes = sorted(order)
    for axis in order:
        place = axes.index(axis)
        if groups and place and groups[-1][-1] == axes[place - 1]:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    by_begin = sorted(groups)
    sizes = []
    for group in by_begin:
        sizes.append(math.prod(shape[axis] for axis in group))
    return sizes, [by_begin.index(group) for group in groups]
