"""What `tune` says of its search: the programs that were measured, and why none is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ci.explain.tune_units import (
    COSTS,
    SQNR,
    Point,
    Tuned,
    figure_in_words,
    noise,
    number_in_words,
    share_in_words,
)
from ci.suite.accuracy import METRIC, in_words
from provisioning.base.findings import Metric
from provisioning.base.rendering import plural
from provisioning.base.units import aligned, in_decibels

ACCEPTED = (SQNR, "top1", METRIC)
"""The figures that a table of tuned programs has."""
SHOWN = 3


def wrong(tuned: Tuned) -> str:
    """Why none is chosen; empty if one is."""
    if tuned.least is None:
        return ""
    goal, budget = tuned.goal, _costs(tuned.goal.budget)
    least, best = _costs(tuned.least.costs), figure_in_words(goal, tuned.best)
    if not any(goal.affords(point) for point in tuned.points):
        return f"no program is within {budget}: the least is {least} ({_share(tuned, tuned.least)})"
    if goal.met(tuned.least):
        return (
            f"no program holds the floor within {budget}: the floor takes {least}"
            f" ({_share(tuned, tuned.least)}), and the budget gives {best} ({_share(tuned, tuned.best)})"
        )
    floors = ", ".join(number_in_words(name, floor) for name, floor in goal.floors.items())
    return f"no program reaches {floors}: the best has {best} ({_share(tuned, tuned.best)}); {_limit(tuned)}"


def _share(tuned: Tuned, point: Point) -> str:
    return share_in_words(point.units, len(tuned.units), tuned.names)


def _limit(tuned: Tuned) -> str:
    """What keeps the exact precision below the floor."""
    name, exact = tuned.names[1], tuned.ends[1]
    if exact.failed:
        return f"{name} gives no program ({exact.failed})"
    chip, whole = exact.figures.get("reference_sqnr_db"), exact.figures.get(SQNR, math.inf)
    if chip is not None and noise(chip) > noise(whole) / 2:
        own = f"the chip itself has {in_decibels(chip)} against the quantized model"
        return f"at {name} {own}: divergence names the operator"
    worst = sorted(tuned.units, key=lambda unit: -unit.exact)[:SHOWN]
    return f"at {name} most is lost in {', '.join(unit.where for unit in worst)}"


def _amount(name: str, value: float) -> str:
    return f"{value:,.4g}" if name == "ms" else f"{value:,.0f}"


def _costs(costs: Mapping[str, float]) -> str:
    return ", ".join(f"{_amount(name, costs[name])} {COSTS[name]}" for name in COSTS if name in costs)


def as_text(tuned: Tuned) -> Iterator[str]:
    """How it was found, the frontier as a table, and the operators that are exact."""
    cheap, exact = tuned.names
    costs = [name for name in COSTS if any(name in point.costs for point in tuned.points)]
    yield from (f"  {step}" for step in tuned.steps)
    rows = [("", f"at {exact}", f"at {cheap}", "accuracy", *(COSTS[name] for name in costs))]
    for point in tuned.points:
        shown = (_amount(name, point.costs[name]) if name in point.costs else "-" for name in costs)
        count = len(point.units)
        rows.append(
            (
                "→" if point is tuned.chosen else "",
                str(count),
                str(len(tuned.units) - count),
                point.failed or _accuracy(point),
                *shown,
            )
        )
    yield from aligned(rows)
    yield from _saved(tuned)
    if tuned.chosen and tuned.chosen.units and len(tuned.chosen.units) < len(tuned.units):
        yield f"{plural(len(tuned.chosen.units), 'group')} of operators at {exact}, by score:"
        gains = sorted((tuned.units[index] for index in tuned.chosen.units), key=lambda unit: -unit.gain)
        yield from (f"  {unit.where}" for unit in gains)


def _accuracy(point: Point) -> str:
    worst = point.outcome.worst_db
    return in_words(point.figures) + ("" if worst is None else f"; the worst sample {in_decibels(worst)}")


def _saved(tuned: Tuned) -> Iterator[str]:
    """What the chosen program saves against all at the exact precision."""
    chosen, exact = tuned.chosen, tuned.ends[1]
    if chosen is None or chosen is exact or exact.failed:
        return
    shares = {
        name: 1 - chosen.costs[name] / exact.costs[name]
        for name in COSTS
        if chosen.costs.get(name) is not None and exact.costs.get(name)
    }
    saves = ", ".join(f"{share:.0%} of the {COSTS[name]}" for name, share in shares.items() if share > 0)
    costs = ", ".join(f"{-share:.0%} more {COSTS[name]}" for name, share in shares.items() if share < 0)
    words = "; ".join(filter(None, [saves and f"it saves {saves}", costs and f"it takes {costs}"]))
    yield f"against all at {tuned.names[1]}: {words or 'it saves nothing'}"


def as_accepted(tuned: Tuned) -> dict[str, Metric]:
    """What the site's page is made from: both precisions, and the mixture that was chosen."""
    values: dict[str, Metric] = {f"floor.{name}": least for name, least in tuned.goal.floors.items()}
    values |= {"precisions": " ".join(tuned.names), "programs": len(tuned.points)}
    values |= {"groups": len(tuned.units), "cpu_seconds": round(tuned.cpu_seconds, 1)}
    for when, point in zip(("cheap", "exact", "chosen"), (*tuned.ends, tuned.chosen), strict=True):
        if point:
            figures = {name: round(point.figures[name], 3) for name in ACCEPTED if name in point.figures}
            costs = {name: int(cost) for name, cost in point.costs.items() if name != "ms"}
            row = {"groups": len(point.units), **figures, **costs}
            values |= {f"{when}.{name}": value for name, value in row.items()}
    return values


def document(tuned: Tuned) -> dict[str, object]:
    """The frontier, for a report and an answer."""
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
                "chosen": point is tuned.chosen,
            }
            for point in tuned.points
        ],
        "steps": list(tuned.steps),
    }
