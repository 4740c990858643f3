"""What `tune` measured of models: accuracy against cost, a picture and a table for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ci.pipeline.tuning import COSTS
from ci.report.values import Row, entries, mapping, number, rows_of, word
from provisioning.base.findings import Report

FRONTIERS = "frontiers"
WIDTH, HEIGHT, MARGIN = 100.0, 40.0, 4.0


@dataclass(frozen=True, slots=True)
class PointView:
    exact: int
    cells: Mapping[str, str]
    chosen: bool
    x: float
    y: float
    label: str
    """The point in words, for readers who do not see it."""


@dataclass(frozen=True, slots=True)
class Frontier:
    name: str
    precisions: str
    cost: str
    """What lies along the picture; accuracy goes up."""
    points: Sequence[PointView]


def frontiers_of(reports: Sequence[Report]) -> list[Frontier]:
    every = (found for report in reports for found in rows_of(report, FRONTIERS).items())
    return [frontier for name, row in every if (frontier := _frontier(name, row))]


def _frontier(name: str, row: Row) -> Frontier | None:
    """Rows of another form than expected are left out, and so are programs that gave no figures."""
    rows = [mapping(point) for point in entries(row.get("frontier"))]
    known = [point for point in rows if mapping(point.get("costs")) and mapping(point.get("accuracy"))]
    if not known:
        return None
    costs = [key for key in COSTS if any(number(mapping(point["costs"]), key) is not None for point in known)]
    # What differs most between programs says most.
    along = max(
        costs, key=lambda key: _spread([number(mapping(point["costs"]), key) or 0 for point in known])
    )
    figures = mapping(known[0]["accuracy"])
    up = "sqnr_db" if "sqnr_db" in figures else next(iter(figures))
    places = [
        (number(mapping(point["costs"]), along) or 0, number(mapping(point["accuracy"]), up) or 0)
        for point in known
    ]
    xs, ys = ([place[axis] for place in places] for axis in (0, 1))
    points = [
        PointView(
            int(number(point, "exact") or 0),
            _cells(point, up, costs),
            point.get("chosen") is True,
            MARGIN + _part(x, xs) * (WIDTH - 2 * MARGIN),
            HEIGHT - MARGIN - _part(y, ys) * (HEIGHT - 2 * MARGIN),
            f"{number(point, 'exact') or 0:.0f} exact: {y:.1f} {up}, {x:,.0f} {COSTS[along]}",
        )
        for point, (x, y) in zip(known, places, strict=True)
    ]
    names = [text for text in entries(row.get("schemes")) if isinstance(text, str)]
    return Frontier(f"{word(row, 'model')} {name}".strip(), " and ".join(names), COSTS[along], points)


def _cells(point: Row, up: str, costs: Sequence[str]) -> dict[str, str]:
    accuracy, paid = mapping(point["accuracy"]), mapping(point["costs"])
    cells = {up: f"{number(accuracy, up) or 0:.4g}"}
    for key in costs:
        value = number(paid, key)
        cells[COSTS[key]] = "–" if value is None else f"{value:,.4g}" if key == "ms" else f"{value:,.0f}"
    return cells


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / max(*values, 1e-12) if len(values) > 1 else 0.0


def _part(value: float, values: Sequence[float]) -> float:
    least, most = min(values), max(values)
    return (value - least) / (most - least) if most > least else 0.5
