"""Search for `tune` which operators need the more exact of two precisions. Operators are ranked by scores
from the CPU; a few programs, compiled and run, then decide."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ci.explain.lane import AnyModelLane, outcomes_of
from ci.explain.losses import GroupScore, ScoreRequest
from ci.one_model.model import OneModel
from ci.one_model.product import Outcome
from ci.one_model.smallest_part import smallest
from ci.suite.figures import METRIC, describe_figures
from ci.suite.limits import below_floor
from ci.suite.precision import TWO_PRECISIONS, written_name
from ci.suite.programs import Program, TaskMetric
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.rendering import plural
from provisioning.base.units import align, format_decibels

P = TypeVar("P", bound=Program)

SQNR, PART = "sqnr_db", "slice_sqnr_db"
COSTS = {"ddr": "DDR bytes", "bytes": "bytes"}
SIZE = "size"
"""An Outcome has its bytes under this name."""


@dataclass(frozen=True, slots=True)
class Point:
    """It is a measured program in which these units have the more exact precision."""

    units: frozenset[int]
    outcome: Outcome

    @property
    def figures(self) -> Mapping[str, float]:
        return self.outcome.figures

    @property
    def costs(self) -> Mapping[str, float]:
        values = {name: self.outcome.costs.get(SIZE if name == "bytes" else name) for name in COSTS}
        return {name: cost for name, cost in values.items() if cost is not None}

    @property
    def failed(self) -> str:
        """It says why there is no program, or none whose outputs can be compared."""
        return self.outcome.error


@dataclass(frozen=True, slots=True)
class Goal:
    floor: float
    figure: str = SQNR
    metric: str = ""
    """The user's FILE:FUNCTION, whose number is the figure `metric`."""

    def accuracy(self, point: Point) -> float:
        return point.figures.get(self.figure, -math.inf)

    def accepts(self, point: Point) -> bool:
        return not point.failed and self.accuracy(point) >= self.floor and not self.loses_a_part(point)

    def loses_a_part(self, point: Point) -> bool:
        """Whether a part of an output is lost. A floor in dB is for all of an output: scores beside boxes in
        pixels add nothing to its figure. No part need be nearer than the whole."""
        return self.figure == SQNR and PART in below_floor(point.figures)


@dataclass(frozen=True, slots=True)
class Tuned:
    units: Sequence[GroupScore]
    points: Sequence[Point]
    """They are all that were measured, ordered by how many units are exact."""
    names: tuple[str, str]
    """The names of the cheap and of the exact precision."""
    goal: Goal
    winner: Point | None
    """The cheapest point that holds the floor; None if none does."""
    best: Point
    """The winner, else the most accurate point."""
    steps: Sequence[str]

    @property
    def ends(self) -> tuple[Point, Point]:
        """They are the points with all units at the cheap precision, and with all at the exact one."""
        return self.points[0], self.points[-1]


def neighbours_of(units: Sequence[GroupScore]) -> list[dict[int, float]]:
    """Return for each unit how many elements each other one gives it or gets from it."""
    owners = {name: index for index, unit in enumerate(units) for name in unit.nodes}
    neighbours = [dict[int, float]() for _ in units]
    for index, unit in enumerate(units):
        for name, elements in unit.reads.items():
            owner = owners[name]
            for one, neighbour in ((index, owner), (owner, index)):
                neighbours[one][neighbour] = neighbours[one].get(neighbour, 0) + elements
    return neighbours


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
    return format_decibels(value) if name.endswith("_db") else f"{name} {value:.4g}"


def settings_of(
    units: Sequence[GroupScore], choice: frozenset[int], cheap: str, exact: str
) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Return a choice of units as a precision, and the operators that have another one."""
    if len(choice) == len(units):
        return exact, {}
    names = tuple(name for index in sorted(choice) for name in units[index].nodes)
    return cheap, {exact: names} if names else {}


def mix(program: P, units: Sequence[GroupScore], choice: frozenset[int], exact: str) -> P:
    """Return the program with a choice of units at the exact precision. A choice of all is the program that
    the exact precision gives anyway."""
    precision, nodes = settings_of(units, choice, program.run.precision, exact)
    digest = hashlib.sha256(repr(sorted(choice)).encode()).hexdigest()[:8]
    label = f"tune-{len(choice)}-of-{len(units)}-{digest}"
    update = {"precision": precision, "nodes": nodes, "label": label}
    return replace(program, run=program.run.model_copy(update=update))


def order_of(
    units: Sequence[GroupScore], neighbours: Sequence[Mapping[int, float]]
) -> tuple[list[int], set[int]]:
    """Order all units: each is the one that gains most for its cost if those before it are exact. A unit
    costs its size and the conversions at its borders, less those to its exact neighbours. Also return the
    units that save more conversions than they cost."""
    costs = [unit.size + sum(shared.values()) for unit, shared in zip(units, neighbours, strict=True)]

    def worth(index: int) -> tuple[bool, float]:
        cost = costs[index]
        return cost <= 0, units[index].gain / max(cost, 1)

    order, free, rest = list[int](), set[int](), dict.fromkeys(range(len(units)))
    while rest:
        order.append(best := max(rest, key=worth))
        del rest[best]
        if costs[best] <= 0:
            free.add(best)
        for index, elements in neighbours[best].items():
            costs[index] -= 2 * elements
    return order, free


def noise(decibels: float) -> float:
    return float(10 ** (-decibels / 10))


MOST_PROGRAMS = 12
KEPT_BACK = 3
"""So many programs are kept back for demoting what is not needed."""
UNKNOWN_SLACK = 0.1
"""If a figure says nothing of noise, units with this share of the chosen ones' scores are tried without."""

Measure = Callable[[Sequence[frozenset[int]]], Sequence[Point]]


class TuneSearch:
    def __init__(
        self, units: Sequence[GroupScore], measure: Measure, goal: Goal, names: tuple[str, str]
    ) -> None:
        """`names` are the names of the cheap and of the exact precision."""
        self.units, self.measure, self.goal = units, measure, goal
        self.names = self.cheap, self.exact = names
        self.neighbours = neighbours_of(units)
        self.order, self.free = order_of(units, self.neighbours)
        self.points: dict[frozenset[int], Point] = {}
        self.steps: list[str] = []

    def run(self) -> Tuned:
        count = len(self.units)
        ends = self._points_of([self._first(0), self._first(count)], "both ends")
        if failed := [point.failed for point in ends if point.failed]:
            self.steps[-1] += f" ({'; '.join(failed)})"
        if len(failed) == len(ends):
            raise CheckFailed(f"neither {self.cheap} nor {self.exact} gives a program: {failed[0]}")
        figure = self.goal.figure
        if not any(figure in point.figures for point in ends):
            names = ", ".join(next(point.figures for point in ends if not point.failed))
            raise CheckFailed(
                f"the model's outputs have no {figure}", fix=f"hold it to what they have: {names}"
            )
        self._hold_floor(*ends)
        goal, points = self.goal, sorted(self.points.values(), key=lambda point: len(point.units))
        winner = min(filter(goal.accepts, points), key=self._cost, default=None)
        best = max((point for point in points if not point.failed), key=goal.accuracy)
        return Tuned(self.units, points, self.names, goal, winner, winner or best, self.steps)

    def _hold_floor(self, cheap: Point, exact: Point) -> None:
        if self.goal.accepts(cheap):
            self.steps.append(f"{self.cheap} alone is enough")
        elif not self.goal.accepts(exact):
            self.steps.append(f"{self.exact} does not reach it, so no mixture is searched")
        else:
            self._boundary(self._prediction(cheap, exact))
            self._demote(min(filter(self.goal.accepts, self.points.values()), key=self._cost))

    def _first(self, count: int) -> frozenset[int]:
        while self.order[count : count + 1] and self.order[count] in self.free:
            count += 1
        return frozenset(self.order[:count])

    def _points_of(self, choices: Sequence[frozenset[int]], why: str) -> list[Point]:
        new = [choice for choice in dict.fromkeys(choices) if choice not in self.points]
        for point in self.measure(new) if new else ():
            self.points[point.units] = point
        points = [self.points[choice] for choice in choices]
        if new:
            count = len(self.units)
            words = (
                f"{share_in_words(point.units, count, self.names)}: {figure_in_words(self.goal, point)}"
                for point in points
            )
            self.steps.append(f"{why}: {'; '.join(words)}")
        return points

    def _cost(self, point: Point) -> tuple[float, ...]:
        """Return what a point costs: DDR traffic in three digits, because a few conversions more say nothing;
        then how much is computed exactly or converted, which takes a chip longer, and the size."""
        traffic, size = (point.costs.get(name, math.inf) for name in ("ddr", "bytes"))
        exact = 0.0
        for index in point.units:
            exact += self.units[index].size
            converted = self.neighbours[index].items()
            exact += sum(count for unit, count in converted if unit not in point.units)
        return float(f"{traffic:.3g}"), exact, size

    def _prediction(self, cheap: Point, exact: Point) -> int:
        """Predict how many units hold the floor, if their scores add up to what lies between both ends."""
        count, total, goal = len(self.units), sum(unit.gain for unit in self.units), self.goal
        half = max(count // 2, 1)
        if goal.figure != SQNR or not total or cheap.failed:
            return half
        most, least = noise(goal.accuracy(cheap)), noise(goal.accuracy(exact))
        if most <= least:
            # Only a part of an output is lost, of which the figure for the whole says nothing.
            return half
        rest = (noise(goal.floor) - least) / (most - least) * total
        number, remainder = 0, total
        while remainder > rest and number < count - 1:
            remainder -= self.units[self.order[number]].gain
            number += 1
        return max(number, 1)

    def _boundary(self, first: int) -> None:
        """Measure until the smallest number of units is known that holds the floor, or the programs are used
        up. With no unit exact the floor is not held, with all it is."""
        low, high, probe = 0, len(self.units), first
        why = "predicted by the scores" if first != high // 2 else "half of the groups"
        while high - low > 1 and len(self.points) < MOST_PROGRAMS - KEPT_BACK:
            (point,) = self._points_of([self._first(probe)], why)
            low, high = (low, probe) if self.goal.accepts(point) else (probe, high)
            probe, why = (low + high) // 2, f"between {low} and {high} groups"

    def _demote(self, winner: Point) -> None:
        """Take back what the floor may not need. If scores say little of it, also try any part of the chosen
        units."""
        before = None
        while winner is not before:
            before, spare = winner, self._spare(winner)
            attempts = (spare, spare[: (len(spare) + 1) // 2])
            winner = self._cheapest(winner, (winner.units.difference(units) for units in attempts))
        if self.goal.figure == SQNR and not self.goal.loses_a_part(self.points[self._first(0)]):
            return

        def first(parts: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
            nonlocal winner
            before, winner = winner, self._cheapest(winner, map(frozenset, parts))
            return None if winner is before else tuple(sorted(winner.units))

        smallest(sorted(winner.units), first, lambda: len(self.points) >= MOST_PROGRAMS)

    def _cheapest(self, winner: Point, choices: Iterable[frozenset[int]]) -> Point:
        """Return the cheapest point that holds the floor: the winner, or one of these choices, of which as
        many are measured as programs are left."""
        new = [choice for choice in dict.fromkeys(choices) if choice not in self.points]
        new = new[: max(MOST_PROGRAMS - len(self.points), 0)]
        points = self._points_of(new, "without groups that may not be needed") if new else []
        return min([winner, *filter(self.goal.accepts, points)], key=self._cost)

    def _spare(self, point: Point) -> list[int]:
        """Return the largest units whose scores fit into what the point has above the floor; else the least
        useful one."""
        largest_first = sorted(point.units, key=lambda index: -self.units[index].size)
        slack, candidates = self._slack(point), list[int]()
        for index in largest_first:
            if self.units[index].gain <= slack:
                slack -= self.units[index].gain
                candidates.append(index)
        return candidates or sorted(largest_first, key=lambda index: self.units[index].gain)[:1]

    def _slack(self, point: Point) -> float:
        total = sum(unit.gain for unit in self.units)
        cheap, exact = (self.points[self._first(count)] for count in (0, len(self.units)))
        if self.goal.figure != SQNR or cheap.failed or exact.failed:
            return UNKNOWN_SLACK * sum(self.units[index].gain for index in point.units)
        span = noise(self.goal.accuracy(cheap)) - noise(self.goal.accuracy(exact))
        above = noise(self.goal.floor) - noise(self.goal.accuracy(point))
        return total * above / span if span > 0 else 0.0


def tune_model(lane: AnyModelLane, model: OneModel, precisions: tuple[str, str], goal: Goal) -> Tuned:
    """Find the mixture of both precisions for a model."""
    model = model.use_precision(precisions[0])
    cheap, exact = (lane.precision_named(name) for name in precisions)
    program = lane.programs_of(model)[0]
    run = program.run.model_copy(update={"precision": cheap, "nodes": {}, "label": ""})
    if not run.quantizes:
        raise UsageError(f"{written_name(cheap)} quantizes nothing", fix=TWO_PRECISIONS)
    inferences = model.options.inferences
    settings: dict[str, object] = {"inferences": inferences} if inferences else {}
    if goal.metric:
        settings["metric"] = TaskMetric.model_construct(name=METRIC, function=goal.metric)
    program = replace(program, run=run, case=program.case.model_copy(update=settings))
    units = lane.scores_of(model, program, ScoreRequest(exact)).units

    def measure(choices: Sequence[frozenset[int]]) -> list[Point]:
        outcomes = outcomes_of(lane, model, [mix(program, units, choice, exact) for choice in choices])
        return [Point(choice, outcome) for choice, outcome in zip(choices, outcomes, strict=True)]

    names = written_name(cheap), written_name(exact)
    return TuneSearch(units, measure, goal, names).run()


SHOWN = 3


def wrong(tuned: Tuned) -> str:
    """Say why no program is chosen."""
    goal, floor = tuned.goal, number_in_words(tuned.goal.figure, tuned.goal.floor)
    share = share_in_words(tuned.best.units, len(tuned.units), tuned.names)
    best = f"{figure_in_words(goal, tuned.best)} ({share})"
    return f"no program reaches {floor}: the best has {best}; {_limit(tuned)}"


def _limit(tuned: Tuned) -> str:
    """Say what keeps the exact precision below the floor."""
    name, exact = tuned.names[1], tuned.ends[1]
    if exact.failed:
        return f"{name} gives no program ({exact.failed})"
    chip, sqnr = exact.figures.get("reference_sqnr_db"), exact.figures.get(SQNR, math.inf)
    if chip is not None and noise(chip) > noise(sqnr) / 2:
        own = f"the chip itself has {format_decibels(chip)} against the quantized model"
        return f"at {name} {own}: divergence names the operator"
    worst = sorted(tuned.units, key=lambda unit: -unit.exact)[:SHOWN]
    return f"at {name} most is lost in {', '.join(unit.where for unit in worst)}"


def text_lines(tuned: Tuned) -> Iterator[str]:
    """Yield how it was found, the frontier as a table, and the operators that are exact."""
    cheap, exact = tuned.names
    measured = {name for point in tuned.points for name in point.costs}
    costs = [name for name in COSTS if name in measured]
    yield from (f"  {step}" for step in tuned.steps)
    rows = [("", f"at {exact}", f"at {cheap}", "accuracy", *(COSTS[name] for name in costs))]
    for point in tuned.points:
        cells = (f"{point.costs[name]:,.0f}" if name in point.costs else "-" for name in costs)
        count = len(point.units)
        rows.append(
            (
                "→" if point is tuned.winner else "",
                str(count),
                str(len(tuned.units) - count),
                point.failed or _accuracy(point),
                *cells,
            )
        )
    yield from align(rows)
    if tuned.winner and tuned.winner.units and len(tuned.winner.units) < len(tuned.units):
        yield f"{plural(len(tuned.winner.units), 'group')} of operators at {exact}, by score:"
        gains = sorted((tuned.units[index] for index in tuned.winner.units), key=lambda unit: -unit.gain)
        yield from (f"  {unit.where}" for unit in gains)


def _accuracy(point: Point) -> str:
    worst = point.outcome.worst_db
    return describe_figures(point.figures) + (
        "" if worst is None else f"; the worst sample {format_decibels(worst)}"
    )


def document(tuned: Tuned) -> dict[str, object]:
    """Return the frontier, for a report and an answer."""
    return {
        "schemes": list(tuned.names),
        "frontier": [
            {
                "exact": len(point.units),
                "of": len(tuned.units),
                "accuracy": dict(point.figures),
                "costs": dict(point.costs),
                "worst": point.outcome.worst_db,
                "failed": point.failed,
                "chosen": point is tuned.winner,
            }
            for point in tuned.points
        ],
        "steps": list(tuned.steps),
    }
