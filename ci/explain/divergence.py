"""The search for the operator whose output on the emulator is not the model's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from ci.explain.cuts import Cuts, Worst
from ci.explain.divergence_result import DivergenceResult, result_of
from ci.explain.graph import Graph, Trial
from ci.explain.losses import FOREVER

DIFFERS_DB = 30.0
"""A lower SQNR is a difference, unless the user or a threshold names another one."""
SMALL = 1 / 16
"""A smaller share of the whole program's error is not searched for."""
MOST_OF_IT = 1 / 2
"""No other operator adds more than one that adds this share of the whole program's error."""
MOST_STEPS = 60
MOST_AT_ONCE = 64
"""Operators. Of so few, one program that shows all takes less than two that each end at a suspect."""
MOST_SUSPECTS = 6
"""That are looked at: each takes a program or two."""
SHOWN_SECONDS = 30.0
"""For what is left once the program that shows all operators is known."""

ALL = ("", "the outputs")
"""Between these two is the whole program."""

Suspects = Mapping[str, Collection[str]]
"""By node, the known faults that it can have, the likeliest node first."""
NO_SUSPECTS: Suspects = MappingProxyType({})


class Divergence:
    """The operator whose output is farthest from what its operands explain.

    Of a large model, those that are suspected are looked at first, by programs that end there. Where the
    fault of one is at other places, too, it is taken to add as much there: programs that end later take
    longer. Then a program that returns what all operators compute is tried. That changes what the compiler
    fuses, and may repair what is searched: then each operator is the last one of a program of its own. All
    or none, since two programs round each in its own way, and the difference looks like an error."""

    def __init__(
        self,
        graph: Graph,
        trial: Trial,
        least: float,
        seconds: float = FOREVER,
        whole: float | None = None,
        keep: Callable[[DivergenceResult], None] = lambda known: None,
        suspects: Suspects = NO_SUSPECTS,
    ) -> None:
        """`least` is the SQNR from which the program matches; `whole` its own, if that is known. `keep` gets
        what is known before each program, as if the time were over."""
        self.graph, self.least, self.keep, self.suspects = graph, least, keep, suspects
        self.cuts, self.over = Cuts(graph, trial, whole), time.monotonic() + seconds
        self.between: Sequence[str] = ()

    def search(self) -> DivergenceResult:
        """The whole program's SQNR, and the operator at fault, or where rounding grows."""
        result = self._searched()
        first = result.first
        if first is None or not first.rounds:
            return result
        self.keep(result)
        return replace(result, first=replace(first, grows=self.cuts.growth(first.node)))

    def _searched(self) -> DivergenceResult:
        cuts, graph = self.cuts, self.graph
        if cuts.whole >= self.least:
            return self._known(None)
        self.keep(self._known(None, ALL))
        shown = len(graph.operators) <= MOST_AT_ONCE and cuts.shows_all
        suspected = None if shown else self._suspected()
        if suspected and self._is_most(suspected):
            return self._known(suspected, alike=len(self._alike(suspected[0])))
        if shown or (time.monotonic() < self.over and cuts.shows_all):
            # What is left is computed on the CPU.
            self.over = max(self.over, time.monotonic() + SHOWN_SECONDS)

        def stops(low: str, high: str, best: Worst | None) -> bool:
            late = time.monotonic() > self.over
            self.between = (low, high) if late else ()
            self.keep(self._known(best or suspected, (low, high)))
            return late

        best = worst_drop([*graph.operators], graph.ends, cuts.error, graph.operands_of, cuts.own, stops)
        if best and best[0] not in cuts.rounds and not self.between:
            self.keep(self._known(best))
            best = cuts.of_integers(best[0]) or best
        return self._known(best or suspected, self.between)

    def _suspected(self) -> Worst | None:
        """The worst of the suspects, as far as they are looked at within half of the time."""
        best: Worst | None = None
        half = time.monotonic() + (self.over - time.monotonic()) / 2
        for name in islice(self.suspects, MOST_SUSPECTS):
            if time.monotonic() > half:
                break
            if best and name in self._alike(best[0]) and self._is_most(best):
                continue
            # Before its operands are known, which may take as long again.
            self.keep(self._known(_worse(best, (name, self.cuts.error(name) or 0.0)), ALL))
            best = _worse(best, (name, self.cuts.own(name)))
            self.keep(self._known(best, ALL))
            if best[1] >= MOST_OF_IT * self.cuts.power(self.cuts.whole):
                break
        return best

    def _alike(self, name: str) -> list[str]:
        """The other suspects that can have a fault of this one. What only rounds has none."""
        faults = set[str]() if name in self.cuts.rounds else {*self.suspects.get(name, ())}
        return [other for other, theirs in self.suspects.items() if other != name and faults & {*theirs}]

    def _is_most(self, worst: Worst) -> bool:
        """Whether no other operator adds more, if each place of its fault adds as much."""
        name, adds = worst
        return adds * (1 + len(self._alike(name))) >= MOST_OF_IT * self.cuts.power(self.cuts.whole)

    def _known(self, best: Worst | None, between: Sequence[str] = (), alike: int = 0) -> DivergenceResult:
        return result_of(self.cuts, self.least, best, between, alike)


def _worse(one: Worst | None, other: Worst) -> Worst:
    return one if one and one[1] >= other[1] else other


def worst_drop(
    names: Sequence[str],
    ends: Sequence[str],
    error: Callable[[str], float | None],
    operands_of: Callable[[str], Sequence[str]],
    own: Callable[[str], float],
    stops: Callable[[str, str, tuple[str, float] | None], bool] = lambda low, high, best: False,
) -> tuple[str, float] | None:
    """The operator that adds most of the whole program's error, and what it adds: of several that each add
    all of it, the first. Where `stops`, which gets the worst so far, ends the search of an interval, that.

    Of two neighbours in a list of nodes neither need be the other's operand, so a step in the list leads to
    the operands, and from a bad one back."""
    places = {name: place for place, name in enumerate(names)}

    def at(place: int) -> float:
        return (error(names[place]) or 0.0) if place >= 0 else 0.0

    last = max((places[name] for name in ends if name in places), key=at, default=-1)
    if not (total := at(last)):
        return None
    best: tuple[int, float] | None = None
    seen, steps = set[tuple[int, int]](), [(total, -1, last)]
    while steps and len(seen) < MOST_STEPS:
        rise, low, high = steps.pop(steps.index(max(steps)))
        known = None if best is None else (names[best[0]], best[1])
        most = best[1] if best else 0.0
        # What comes after an operator that ruins all may add as much to what is ruined already.
        enough = most if most < total else math.nextafter(most, 0)
        if known and rise <= max(enough, total * SMALL):
            break
        if stops(names[low] if low >= 0 else "", names[high], known):
            break
        if (low, high) in seen:
            continue
        seen.add((low, high))
        if high - low > 1:
            middle = (low + high) // 2
            value = error(names[middle])
            # Where a program has no figure, the step is behind it.
            value = at(low) if value is None else value
            steps += [(value - at(low), low, middle), (at(high) - value, middle, high)]
            continue
        operands = [places[name] for name in operands_of(names[high])]
        steps += [(at(operand), -1, operand) for operand in operands]
        adds = own(names[high])
        if best is None or (adds, -high) > (best[1], -best[0]):
            best = high, adds
    return None if best is None else (names[best[0]], best[1])
