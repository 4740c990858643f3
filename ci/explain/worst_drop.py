"""Find the operator that adds most of a program's error, with few programs.

The operators are a list, in which each stands behind what it reads, and the error of a program that ends at
one of them is known once it is measured. Between two of them the error rises by what the operators between
them add, so the interval with the largest rise is halved, again and again, until it holds one operator.

Neighbours in the list need not be each other's operands, so from a bad operator the search also goes on to
its operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ci.explain.cuts import Cuts, Worst

SMALL = 1 / 16
"""A smaller share of the whole program's error is not searched for."""
MOST_STEPS = 60

INPUTS = -1
"""The place before all operators: there is no error yet."""

Stops = Callable[[str, str, Worst | None], bool]
"""It gets the two operators between which the search goes on (the first may be empty), and the worst operator
so far. It says whether the search ends there."""


@dataclass(frozen=True, order=True, slots=True)
class _Interval:
    """Two places in the list of operators, between which the error rises."""

    rise: float
    low: int
    high: int


class _DropSearch:
    def __init__(self, cuts: Cuts) -> None:
        self.cuts = cuts
        self.names = [*cuts.graph.operators]
        self.places = {name: place for place, name in enumerate(self.names)}
        self.worst: Worst | None = None
        self.todo: list[_Interval] = []
        self.done: set[tuple[int, int]] = set()

    def run(self, stops: Stops) -> Worst | None:
        ends = [self.places[name] for name in self.cuts.graph.ends if name in self.places]
        last = max(ends, key=self._error, default=INPUTS)
        total = self._error(last)
        if not total:
            return None
        self.todo.append(_Interval(total, INPUTS, last))
        while self.todo and len(self.done) < MOST_STEPS:
            interval = max(self.todo)
            self.todo.remove(interval)
            if self._is_enough(interval, total):
                break
            low = "" if interval.low == INPUTS else self.names[interval.low]
            if stops(low, self.names[interval.high], self.worst):
                break
            self._search(interval)
        return self.worst

    def _error(self, place: int) -> float:
        if place == INPUTS:
            return 0.0
        return self.cuts.error(self.names[place]) or 0.0

    def _is_enough(self, interval: _Interval, total: float) -> bool:
        """Whether no operator of the interval is worse than the worst so far, or worth a search."""
        if self.worst is None:
            return False
        enough = self.worst.adds
        if enough >= total:
            # What comes after an operator that ruins all may add as much to what is ruined already.
            enough = math.nextafter(enough, 0)
        return interval.rise <= max(enough, total * SMALL)

    def _search(self, interval: _Interval) -> None:
        """Halve the interval; if it holds one operator, measure what that adds."""
        low, high = interval.low, interval.high
        if (low, high) in self.done:
            return
        self.done.add((low, high))
        if high - low == 1:
            self._measure(high)
            return
        middle = (low + high) // 2
        before, behind = self._error(low), self._error(high)
        error = self.cuts.error(self.names[middle])
        if error is None:
            # Where a program has no figure, the rise is behind it.
            error = before
        self.todo.append(_Interval(error - before, low, middle))
        self.todo.append(_Interval(behind - error, middle, high))

    def _measure(self, place: int) -> None:
        """Measure what an operator adds, and go on to its operands."""
        name = self.names[place]
        for operand in self.cuts.graph.operands_of(name):
            high = self.places[operand]
            self.todo.append(_Interval(self._error(high), INPUTS, high))
        adds = self.cuts.own_error(name)
        worst = self.worst
        # Of two that add as much, the first is worse.
        if worst is None or (adds, -place) > (worst.adds, -self.places[worst.node]):
            self.worst = Worst(name, adds)


def worst_drop(cuts: Cuts, stops: Stops) -> Worst | None:
    """Return the operator that adds most of the whole program's error, and what it adds; if several each add
    all of it, the first. If `stops` ends the search, it is the worst operator so far. It is None if there is
    no error, or none was measured."""
    return _DropSearch(cuts).run(stops)
