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
    every = [
        (point, mapping(point.get("costs")), mapping(point.get("accuracy")))
        for point in map(mapping, entries(row.get("frontier")))
    ]
    known = [(point, paid, accuracy) for point, paid, accuracy in every if paid and accuracy]
    if not known:
        return None
    costs = [key for key in COSTS if any(number(paid, key) is not None for _, paid, _ in known)]
    # What differs most between programs says most.
    along = max(costs, key=lambda key: _spread([number(paid, key) or 0 for _, paid, _ in known]))
    up = "sqnr_db" if "sqnr_db" in known[0][2] else next(iter(known[0][2]))
    xs = [number(paid, along) or 0 for _, paid, _ in known]
    ys = [number(accuracy, up) or 0 for _, _, accuracy in known]
    points = [
        PointView(
            int(number(point, "exact") or 0),
            {up: f"{y:.4g}", **_cells(paid, costs)},
            point.get("chosen") is True,
            MARGIN + _part(x, xs) * (WIDTH - 2 * MARGIN),
            HEIGHT - MARGIN - _part(y, ys) * (HEIGHT - 2 * MARGIN),
            f"{number(point, 'exact') or 0:.0f} exact: {y:.1f} {up}, {x:,.0f} {COSTS[along]}",
        )
        for (point, paid, _), x, y in zip(known, xs, ys, strict=True)
    ]
    names = [text for text in entries(row.get("schemes")) if isinstance(text, str)]
    return Frontier(f"{word(row, 'model')} {name}".strip(), " and ".join(names), COSTS[along], points)


def _cells(paid: Row, costs: Sequence[str]) -> dict[str, str]:
    cells = {}
    for key in costs:
        value = number(paid, key)
        cells[COSTS[key]] = "–" if value is None else f"{value:,.4g}" if key == "ms" else f"{value:,.0f}"
    return cells


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / max(*values, 1e-12) if len(values) > 1 else 0.0


def _part(value: float, values: Sequence[float]) -> float:
    least, most = min(values), max(values)
    return (value - least) / (most - least) if most > least else 0.5
