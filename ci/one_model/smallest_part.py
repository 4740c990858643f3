"""Find the smallest part of several things that still shows an outcome, by Zeller's delta debugging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def smallest(
    items: Sequence[T],
    first: Callable[[Iterable[tuple[T, ...]]], tuple[T, ...] | None],
    late: Callable[[], bool] = lambda: False,
) -> tuple[T, ...]:
    """Return a part of `items`, in their order, from which no single item can be left out (Zeller's delta
    debugging).

    `first` receives several parts and returns the first that still shows the outcome, or None."""
    now, parts = tuple(items), 2
    while (count := len(now)) > 1:
        cuts = [count * number // parts for number in range(parts + 1)]
        chunks = [now[low:high] for low, high in pairwise(cuts)]
        complements = [(*now[:low], *now[high:]) for low, high in pairwise(cuts)]
        # Of two parts, each is what the other leaves.
        candidates = chunks if parts == 2 else [*(chunks if parts < count else ()), *complements]
        if part := first(candidates):
            parts = 2 if len(part) <= count // 2 else max(parts - 1, 2)
            now = part
        elif parts < count and not late():
            parts = min(2 * parts, count)
        else:
            break
    return now
