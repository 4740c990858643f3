"""`tune` finds a small set of operators that holds a floor, with few programs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ci.explain.losses import GroupScore
from ci.explain.tune import Goal, Point, Tuned, TuneSearch, text_lines, wrong
from ci.model_commands.tune import goal_of
from ci.one_model.options import Floor
from ci.one_model.product import Outcome
from provisioning.base.errors import CheckFailed, UsageError

NAMES = ("8a8w", "16a8w")
GAINS = (0.001, 0.03, 0.0002, 0.01, 0.0001, 0.004, 0.0005, 0.00005)
SIZES = (10, 100, 10, 20, 400, 40, 30, 5)


def units(gains: Sequence[float] = GAINS, sizes: Sequence[int] = SIZES) -> list[GroupScore]:
    return [
        GroupScore("", "", "", "", (f"op_{index}",), size, {}, (gain, 0.0))
        for index, (gain, size) in enumerate(zip(gains, sizes, strict=True))
    ]


def point(chosen: frozenset[int], figures: Mapping[str, float], costs: Mapping[str, float]) -> Point:
    return Point(chosen, Outcome(figures=figures, costs=costs))


def with_figure(found: Point, name: str, figure: float) -> Point:
    return point(found.units, {**found.figures, name: figure}, found.outcome.costs)


@dataclass
class Chip:
    """The noise of cheap operators adds to what is left at the exact precision; the exact ones cost bytes."""

    units: Sequence[GroupScore]
    left: float = 1e-5
    wrong_scores: Mapping[int, float] = field(default_factory=dict)
    fails: Callable[[frozenset[int]], bool] = lambda chosen: False
    compiled: dict[frozenset[int], Point] = field(default_factory=dict)
    asked: int = 0

    def point(self, chosen: frozenset[int]) -> Point:
        if self.fails(chosen):
            return Point(chosen, Outcome("the compiler dies"))
        gains = {index: self.wrong_scores.get(index, unit.gain) for index, unit in enumerate(self.units)}
        noise = self.left + sum(gain for index, gain in gains.items() if index not in chosen)
        size = sum(unit.size for index, unit in enumerate(self.units) if index in chosen)
        return point(chosen, {"sqnr_db": -10 * math.log10(noise)}, {"ddr": 1000 + size, "size": 5000.0})

    def __call__(self, choices: Sequence[frozenset[int]]) -> Sequence[Point]:
        for choice in choices:
            if choice not in self.compiled:
                self.asked += 1
                self.compiled[choice] = self.point(choice)
        return [self.compiled[choice] for choice in choices]

    def least(self, goal: Goal) -> float:
        """By trying every set."""
        every = range(len(self.units))
        sets = (frozenset(chosen) for count in every for chosen in itertools.combinations(every, count))
        return min(point.costs["ddr"] for point in map(self.point, sets) if goal.accepts(point))


def chain(gains: Sequence[float], elements: int = 100) -> list[GroupScore]:
    """Units of one size, of which each reads the one before it."""
    return [
        replace(unit, reads={f"op_{index - 1}": elements} if index else {})
        for index, unit in enumerate(units(gains, [elements] * len(gains)))
    ]


@dataclass
class ConvertingChip(Chip):
    """Where two precisions meet, DDR has what is converted too."""

    def point(self, chosen: frozenset[int]) -> Point:
        found = super().point(chosen)
        borders = sum((index in chosen) != (index - 1 in chosen) for index in range(1, len(self.units)))
        return point(chosen, found.figures, {"ddr": found.costs["ddr"] + 100 * borders})


def tuned(chip: Chip, goal: Goal) -> Tuned:
    return TuneSearch(chip.units, chip, goal, NAMES).run()


@pytest.mark.parametrize("floor", [20.0, 25.0, 30.0, 35.0, 40.0])
def test_the_chosen_set_holds_the_floor_at_nearly_the_least_cost(floor: float) -> None:
    chip, goal = Chip(units()), Goal(floor)
    found = tuned(chip, goal)
    assert found.winner is not None and goal.accepts(found.winner)
    most = chip.point(frozenset(range(len(GAINS)))).costs["ddr"]
    assert found.winner.costs["ddr"] - chip.least(goal) <= 0.05 * most


def test_what_is_not_needed_is_taken_back() -> None:
    """The first has most score for its size, and the second alone is enough."""
    chip = Chip(units((0.001, 0.05, 0.0002), (1, 100, 20)))
    found = tuned(chip, Goal(27.0))
    assert found.winner is not None and found.winner.units == {1}


def test_a_part_that_is_lost_is_found_where_both_ends_have_one_figure_for_the_whole() -> None:
    """Scores beside boxes: the second unit alone computes them."""

    def measured(choices: Sequence[frozenset[int]]) -> list[Point]:
        part = {True: 40.0, False: 2.0}
        return [
            point(chosen, {"sqnr_db": 45.0, "slice_sqnr_db": part[1 in chosen]}, {"ddr": 100.0 + len(chosen)})
            for chosen in choices
        ]

    found = TuneSearch(units(), measured, Goal(40.0), NAMES).run()
    assert found.winner is not None and found.winner.units == {1}


def test_exact_units_are_neighbours_where_that_saves_conversions() -> None:
    """The second has less score than the third, and between the first and it nothing is converted."""
    chip = ConvertingChip(chain((0.03, 0.009, 0.001, 0.001, 0.01, 0.001, 0.001, 0.001)))
    goal = Goal(18.0)
    found = tuned(chip, goal)
    assert found.winner is not None and found.winner.units == {0, 1}
    assert found.winner.costs["ddr"] == chip.least(goal)


def test_the_cheap_precision_is_enough_where_it_holds() -> None:
    chip = Chip(units())
    found = tuned(chip, Goal(5.0))
    assert found.winner is not None and not found.winner.units and chip.asked == 2


def test_an_unreachable_floor_is_the_chips_where_it_differs_from_the_quantized_model() -> None:
    chip = Chip(units())

    def measure(choices: Sequence[frozenset[int]]) -> Sequence[Point]:
        return [with_figure(found, "reference_sqnr_db", 20.0) for found in chip(choices)]

    found = TuneSearch(chip.units, measure, Goal(70.0), NAMES).run()
    assert "divergence" in wrong(found)


def test_a_mixture_that_does_not_compile_holds_nothing() -> None:
    chip = Chip(units(), fails=lambda chosen: 0 < len(chosen) < 6)
    found = tuned(chip, Goal(25.0))
    assert found.winner is not None and len(found.winner.units) == 6
    assert any("compiler dies" in line for line in text_lines(found))


@pytest.mark.parametrize(
    ("least", "metric"),
    [
        (Floor(35.0, True), "net.py:score"),
        (None, "net.py:score"),
        (None, None),
        (Floor(1.0, False), "x.py:f"),
        (Floor(0.99, False), None),
    ],
)
def test_a_goal_that_means_nothing_is_refused(
    least: Floor | None, metric: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        goal_of(least, metric)


def test_a_metrics_number_is_what_its_floor_is_held_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text("")
    monkeypatch.chdir(tmp_path)
    goal = goal_of(Floor(0.9, False), "net.py:score")
    assert (goal.figure, goal.floor) == ("metric", 0.9) and goal.metric.endswith("/net.py:score")


def test_a_floor_in_decibels_holds_for_each_part_of_an_output() -> None:
    """Scores beside boxes in pixels: the figure of the whole holds it at the cheap precision."""
    chip, cat = Chip(units()), 4

    def measure(choices: Sequence[frozenset[int]]) -> list[Point]:
        return [
            with_figure(found, "slice_sqnr_db", 40.0 if cat in found.units else 5.0)
            for found in chip(choices)
        ]

    found = TuneSearch(chip.units, measure, Goal(5.0), NAMES).run()
    assert found.winner is not None and cat in found.winner.units and len(found.winner.units) < len(GAINS)
    by_task = TuneSearch(chip.units, measure, Goal(0.0, "top1"), NAMES)
    assert not by_task.goal.loses_a_part(found.points[0])


def test_a_low_floor_asks_no_more_of_a_part_than_of_the_whole() -> None:
    goal = Goal(15.0)
    found = point(frozenset(), {"sqnr_db": 15.0, "slice_sqnr_db": 15.0}, {})
    assert not goal.accepts(with_figure(found, "sqnr_db", 14.99))
    assert goal.accepts(found) and not goal.accepts(with_figure(found, "slice_sqnr_db", 3.0))


def test_an_unreachable_floor_names_the_best_and_what_limits_it() -> None:
    chip = Chip([replace(unit, noise=(unit.noise[0], unit.size / 1e7)) for unit in units()])
    found = tuned(chip, Goal(70.0))
    assert found.winner is None and len(found.best.units) == len(GAINS) and chip.asked == 2
    assert "50.0 dB" in wrong(found) and "op_4" in wrong(found)


def test_a_model_of_which_nothing_compiles_says_why() -> None:
    with pytest.raises(CheckFailed, match="the compiler dies"):
        tuned(Chip(units(), fails=lambda chosen: True), Goal(25.0))
