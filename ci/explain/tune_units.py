"""What `tune` searches among: groups of operators with their scores, measured programs, and the goal."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ci.explain.losses import GroupScore
from ci.one_model.product import Outcome
from ci.suite.accuracy import below_floor
from ci.suite.programs import Program
from provisioning.base.units import in_decibels

P = TypeVar("P", bound=Program)

SQNR, PART = "sqnr_db", "slice_sqnr_db"
COSTS = {"ms": "ms", "ddr": "DDR bytes", "bytes": "bytes"}
SIZE = "size"
"""The name of the bytes in an Outcome."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measured program in which these units have the more exact precision."""

    units: frozenset[int]
    outcome: Outcome

    @property
    def figures(self) -> Mapping[str, float]:
        return self.outcome.figures

    @property
    def costs(self) -> Mapping[str, float]:
        named = {name: self.outcome.costs.get(SIZE if name == "bytes" else name) for name in COSTS}
        return {name: cost for name, cost in named.items() if cost is not None}

    @property
    def failed(self) -> str:
        """Why there is no program, or none whose outputs can be compared."""
        return self.outcome.error or self.outcome.unusable


@dataclass(frozen=True, slots=True)
class Goal:
    floors: Mapping[str, float]
    budget: Mapping[str, float] = field(default_factory=dict)
    metric: str = ""
    """FILE:FUNCTION of the user's, whose number is the figure `metric`."""

    @property
    def figure(self) -> str:
        """The one that programs are ranked by."""
        return next(iter(self.floors), SQNR)

    def accuracy(self, point: Point) -> float:
        return point.figures.get(self.figure, -math.inf)

    def met(self, point: Point) -> bool:
        return (
            not point.failed
            and all(point.figures.get(name, -math.inf) >= least for name, least in self.floors.items())
            and not self.loses_a_part(point)
        )

    def loses_a_part(self, point: Point) -> bool:
        """A floor in dB is for all of an output: scores beside boxes in pixels add nothing to its figure. No
        part need be nearer than the whole."""
        return SQNR in self.floors and PART in below_floor(point.figures)

    def affords(self, point: Point) -> bool:
        return not point.failed and all(
            point.costs.get(name, math.inf) <= most for name, most in self.budget.items()
        )


@dataclass(frozen=True, slots=True)
class Tuned:
    units: Sequence[GroupScore]
    points: Sequence[Point]
    """All that were measured, by how many units are exact."""
    names: tuple[str, str]
    """Of the cheap and of the exact precision."""
    goal: Goal
    chosen: Point | None
    best: Point
    """The chosen one, else the most accurate that the budget allows, or of all."""
    steps: Sequence[str]
    least: Point | None = None
    """Where none is chosen, what costs least: of those that hold the floors, or of all."""

    @classmethod
    def of(
        cls,
        units: Sequence[GroupScore],
        measured: Iterable[Point],
        names: tuple[str, str],
        goal: Goal,
        steps: Sequence[str],
        cost: Callable[[Point], tuple[float, ...]],
    ) -> Tuned:
        points = sorted(measured, key=lambda point: len(point.units))
        programs = [point for point in points if not point.failed]
        holding = [point for point in programs if goal.met(point)]
        affordable = [point for point in programs if goal.affords(point)]
        if both := [point for point in holding if goal.affords(point)]:
            smallest = min(both, key=cost)
            most = max(both, key=lambda point: (goal.accuracy(point), *(-part for part in cost(point))))
            chosen = smallest if goal.floors else most
            return cls(units, points, names, goal, chosen, chosen, steps)
        best = max(affordable or programs, key=goal.accuracy)
        least = min(holding or programs, key=cost)
        return cls(units, points, names, goal, None, best, steps, least)

    @property
    def ends(self) -> tuple[Point, Point]:
        """All at the cheap precision, and all at the exact one."""
        return self.points[0], self.points[-1]

    @property
    def cpu_seconds(self) -> float:
        """Of compiling them, also where that was cached."""
        return sum(point.outcome.costs.get("cpu_seconds", 0.0) for point in self.points)


def neighbours_of(units: Sequence[GroupScore]) -> list[dict[int, float]]:
    """By unit, the elements that each other one gives it or gets from it."""
    owners = {name: index for index, unit in enumerate(units) for name in unit.nodes}
    found = [dict[int, float]() for _ in units]
    for index, unit in enumerate(units):
        for name, elements in unit.reads.items():
            other = owners[name]
            for mine, theirs in ((index, other), (other, index)):
                found[mine][theirs] = found[mine].get(theirs, 0) + elements
    return found


def share_in_words(units: frozenset[int], count: int, names: tuple[str, str]) -> str:
    cheap, exact = names
    if len(units) in (0, count):
        return f"all at {exact if units else cheap}"
    return f"{len(units)} of {count} at {exact}"


def figure_in_words(goal: Goal, point: Point) -> str:
    if point.failed:
        return "no program"
    figure = number_in_words(goal.figure, goal.accuracy(point))
    return f"{figure}, a part of an output is lost" if goal.loses_a_part(point) else figure


def number_in_words(name: str, value: float) -> str:
    return in_decibels(value) if name.endswith("_db") else f"{name} {value:.4g}"


def settings_of(
    units: Sequence[GroupScore], choice: frozenset[int], cheap: str, exact: str
) -> tuple[str, dict[str, tuple[str, ...]]]:
    """A choice of units as a precision, and the operators that have another one."""
    if len(choice) == len(units):
        return exact, {}
    names = tuple(name for index in sorted(choice) for name in units[index].nodes)
    return cheap, {exact: names} if names else {}


def mixed(program: P, units: Sequence[GroupScore], choice: frozenset[int], exact: str) -> P:
    """A choice of all is the program that the exact precision gives anyway."""
    precision, nodes = settings_of(units, choice, program.run.precision, exact)
    digest = hashlib.sha256(repr(sorted(choice)).encode()).hexdigest()[:8]
    label = f"tune-{len(choice)}-of-{len(units)}-{digest}"
    update = {"precision": precision, "nodes": nodes, "label": label}
    return replace(program, run=program.run.model_copy(update=update))


def order_of(
    units: Sequence[GroupScore], neighbours: Sequence[Mapping[int, float]]
) -> tuple[list[int], set[int]]:
    """All units; each is the one that gains most for its cost if those before it are exact. It costs its size
    and the conversions at its borders, of which it saves those to its exact neighbours. And those that save
    more conversions than they cost."""
    costs = [unit.size + sum(shared.values()) for unit, shared in zip(units, neighbours, strict=True)]

    def worth(index: int) -> tuple[bool, float]:
        cost = costs[index]
        return cost <= 0, units[index].gain / max(cost, 1)

    order, free, left = list[int](), set[int](), dict.fromkeys(range(len(units)))
    while left:
        order.append(best := max(left, key=worth))
        del left[best]
        if costs[best] <= 0:
            free.add(best)
        for index, elements in neighbours[best].items():
            costs[index] -= 2 * elements
    return order, free


def cost_of(
    point: Point, goal: Goal, units: Sequence[GroupScore], neighbours: Sequence[Mapping[int, float]]
) -> tuple[float, ...]:
    """What is budgeted, then DDR traffic in three digits, as a few conversions more say nothing; then how
    much is computed exactly or converted, which takes a chip longer, and the size."""
    budgeted = (point.costs.get(name, math.inf) for name in goal.budget)
    traffic, size = (point.costs.get(name, math.inf) for name in ("ddr", "bytes"))
    exact = sum(
        units[index].size
        + sum(count for other, count in neighbours[index].items() if other not in point.units)
        for index in point.units
    )
    return (*budgeted, float(f"{traffic:.3g}"), exact, size)


def predicted_count(
    units: Sequence[GroupScore], order: Sequence[int], goal: Goal, ends: tuple[Point, Point]
) -> int:
    """How many units hold the floor, if their scores add up to what lies between both ends."""
    cheap, exact = ends
    count, total = len(units), sum(unit.gain for unit in units)
    half = max(count // 2, 1)
    if goal.figure != SQNR or not total or cheap.failed:
        return half
    most, least = noise(goal.accuracy(cheap)), noise(goal.accuracy(exact))
    if most <= least:
        # Only a part of an output is lost, of which the figure for the whole says nothing.
        return half
    rest = (noise(goal.floors[SQNR]) - least) / (most - least) * total
    chosen, left = 0, total
    while left > rest and chosen < count - 1:
        left -= units[order[chosen]].gain
        chosen += 1
    return max(chosen, 1)


def noise(decibels: float) -> float:
    return float(10 ** (-decibels / 10))
