"""The search of `tune`: which operators need the more exact of two precisions. Operators are ranked by scores
from the CPU; a few programs, compiled and run, then decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ci.explain.lane import explainer, programs_of, tried
from ci.explain.losses import GroupScore
from ci.explain.tune_units import (
    SQNR,
    Goal,
    Point,
    Tuned,
    cost_of,
    figure_in_words,
    mixed,
    neighbours_of,
    noise,
    order_of,
    predicted_count,
    share_in_words,
)
from ci.one_model.model import OneModel, precision_in
from ci.one_model.product import smallest
from ci.suite.accuracy import METRIC
from ci.suite.precision import TWO_PRECISIONS, written_name
from ci.suite.programs import TaskMetric
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed, UsageError

MOST_PROGRAMS = 12
KEPT_BACK = 3
"""Programs that are left for demoting what is not needed."""
UNKNOWN_SLACK = 0.1
"""The share of the chosen operators' scores that is tried to go where a figure says nothing of noise."""

Measure = Callable[[Sequence[frozenset[int]]], Sequence[Point]]


class TuneSearch:
    def __init__(
        self, units: Sequence[GroupScore], measure: Measure, goal: Goal, names: tuple[str, str]
    ) -> None:
        """`names` are those of the cheap and of the exact precision."""
        self.units, self.measure, self.goal = units, measure, goal
        self.names = self.cheap, self.exact = names
        self.neighbours = neighbours_of(units)
        self.order, self.free = order_of(units, self.neighbours)
        self.points: dict[frozenset[int], Point] = {}
        self.steps: list[str] = []

    def run(self) -> Tuned:
        count = len(self.units)
        ends = self._measured([self._first(0), self._first(count)], "both ends")
        if failed := [point.failed for point in ends if point.failed]:
            self.steps[-1] += f" ({'; '.join(failed)})"
        if len(failed) == len(ends):
            raise CheckFailed(f"neither {self.cheap} nor {self.exact} gives a program: {failed[0]}")
        if lacking := [name for name in self.goal.floors if not any(name in point.figures for point in ends)]:
            known = ", ".join(next(point.figures for point in ends if not point.failed))
            raise CheckFailed(
                f"the model's outputs have no {lacking[0]}", fix=f"hold it to what they have: {known}"
            )
        if self.goal.floors:
            self._hold_floors(*ends)
        elif not self.goal.affords(ends[1]):
            self._boundary(lambda point: not self.goal.affords(point), count // 2)
        return Tuned.of(self.units, self.points.values(), self.names, self.goal, self.steps, self._cost)

    def _hold_floors(self, cheap: Point, exact: Point) -> None:
        if self.goal.met(cheap):
            self.steps.append(f"{self.cheap} alone is enough")
        elif not self.goal.met(exact):
            self.steps.append(f"{self.exact} does not reach it, so no mixture is searched")
        else:
            self._boundary(self.goal.met, predicted_count(self.units, self.order, self.goal, (cheap, exact)))
            self._demote(min(filter(self.goal.met, self.points.values()), key=self._cost))

    def _first(self, count: int) -> frozenset[int]:
        while self.order[count : count + 1] and self.order[count] in self.free:
            count += 1
        return frozenset(self.order[:count])

    def _measured(self, choices: Sequence[frozenset[int]], why: str) -> list[Point]:
        new = [choice for choice in dict.fromkeys(choices) if choice not in self.points]
        for point in self.measure(new) if new else ():
            self.points[point.units] = point
        found = [self.points[choice] for choice in choices]
        if new:
            count = len(self.units)
            words = (
                f"{share_in_words(point.units, count, self.names)}: {figure_in_words(self.goal, point)}"
                for point in found
            )
            self.steps.append(f"{why}: {'; '.join(words)}")
        return found

    def _cost(self, point: Point) -> tuple[float, ...]:
        return cost_of(point, self.goal, self.units, self.neighbours)

    def _boundary(self, beyond: Callable[[Point], bool], first: int) -> None:
        """Measure until the smallest number of units is known that is beyond, or the programs are used up.

        None is not beyond, all are."""
        low, high, probe = 0, len(self.units), first
        why = "predicted by the scores" if first != high // 2 else "half of the groups"
        while high - low > 1 and len(self.points) < MOST_PROGRAMS - KEPT_BACK:
            (point,) = self._measured([self._first(probe)], why)
            low, high = (low, probe) if beyond(point) else (probe, high)
            probe, why = (low + high) // 2, f"between {low} and {high} groups"

    def _demote(self, chosen: Point) -> None:
        """Take back what the floor may not need. Where scores say little of it, also any part of the chosen
        units."""
        before = None
        while chosen is not before:
            before, spare = chosen, self._spare(chosen)
            some = (spare, spare[: (len(spare) + 1) // 2])
            chosen = self._cheapest(chosen, (chosen.units.difference(units) for units in some))
        if self.goal.figure == SQNR and not self.goal.loses_a_part(self.points[self._first(0)]):
            return

        def first(parts: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
            nonlocal chosen
            before, chosen = chosen, self._cheapest(chosen, map(frozenset, parts))
            return None if chosen is before else tuple(sorted(chosen.units))

        smallest(sorted(chosen.units), first, lambda: len(self.points) >= MOST_PROGRAMS)

    def _cheapest(self, chosen: Point, choices: Iterable[frozenset[int]]) -> Point:
        """What holds the floor at the least cost: of it, and of as many of these as programs are left."""
        new = [choice for choice in dict.fromkeys(choices) if choice not in self.points]
        new = new[: max(MOST_PROGRAMS - len(self.points), 0)]
        found = self._measured(new, "without groups that may not be needed") if new else []
        return min([chosen, *filter(self.goal.met, found)], key=self._cost)

    def _spare(self, chosen: Point) -> list[int]:
        """The largest units whose scores fit into what the point has above the floor; else the least useful
        one."""
        mine = sorted(chosen.units, key=lambda index: -self.units[index].size)
        slack, fitting = self._slack(chosen), list[int]()
        for index in mine:
            if self.units[index].gain <= slack:
                slack -= self.units[index].gain
                fitting.append(index)
        return fitting or sorted(mine, key=lambda index: self.units[index].gain)[:1]

    def _slack(self, chosen: Point) -> float:
        total = sum(unit.gain for unit in self.units)
        cheap, exact = (self.points[self._first(count)] for count in (0, len(self.units)))
        if self.goal.figure != SQNR or cheap.failed or exact.failed:
            return UNKNOWN_SLACK * sum(self.units[index].gain for index in chosen.units)
        span = noise(self.goal.accuracy(cheap)) - noise(self.goal.accuracy(exact))
        above = noise(self.goal.floors[SQNR]) - noise(self.goal.accuracy(chosen))
        return total * above / span if span > 0 else 0.0


def tuned(model: OneModel, precisions: tuple[str, str], goal: Goal) -> Tuned:
    """The mixture of both precisions for a model, or for a suite's program."""
    model = replace(model, precision=precisions[0])
    cheap, exact = (precision_in(model.lane, name) for name in precisions)
    program = programs_of(model)[0]
    run = program.run.model_copy(update={"precision": cheap, "nodes": {}, "label": ""})
    if not run.quantizes:
        raise UsageError(f"{written_name(cheap)} quantizes nothing", fix=TWO_PRECISIONS)
    judged: dict[str, object] = {"inferences": model.inferences} if model.inferences else {}
    if goal.metric:
        judged["metric"] = TaskMetric.model_construct(name=METRIC, function=goal.metric)
    program = replace(program, run=run, case=program.case.model_copy(update=judged))
    units = explainer(model).scores_of(model, program, exact).units

    def measured(choices: Sequence[frozenset[int]]) -> list[Point]:
        outcomes = tried(model, [mixed(program, units, choice, exact) for choice in choices])
        if "ms" in goal.budget and not any("ms" in outcome.costs for outcome in outcomes):
            raise CheckFailed(
                f"--budget ms=: there is no forecast for {program.soc}",
                fix=Fix(
                    "--budget ddr=… or bytes=…; {} says why", session("forecast", *model.words(program.soc))
                ),
            )
        return [Point(choice, outcome) for choice, outcome in zip(choices, outcomes, strict=True)]

    names = written_name(cheap), written_name(exact)
    return TuneSearch(units, measured, goal, names).run()
