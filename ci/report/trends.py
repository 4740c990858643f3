"""Every program at a glance: its accuracy as a bar, and what it cost in the last runs as lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ci.pipeline.accuracy import DEFAULT_FLOORS, SAME_DB, of_the_mean
from ci.pipeline.lost_parts import LEAST_DB
from ci.report.bars import WHOLE_DB, Bar, bar_of
from ci.report.values import Row, entries, in_unit, mapping, number, verdict_of
from provisioning.base.findings import Metric

LINES = {"sqnr_db": "SQNR", "ddr_read": "DDR read", "pte_bytes": ".pte", "context_bytes": "Context"}
WIDTH, HEIGHT = 100.0, 20.0


@dataclass(frozen=True, slots=True)
class TrendLine:
    label: str
    values: str
    """Each commit with its value."""
    points: str
    text: str


@dataclass(frozen=True, slots=True)
class TrendRow:
    name: str
    anchor: str
    verdict: str
    accuracy: Bar | None
    lines: Sequence[TrendLine | None]
    """One for each column."""


@dataclass(frozen=True, slots=True)
class TrendTable:
    columns: Sequence[str]
    rows: Sequence[TrendRow]


def trend_table(programs: Sequence[tuple[str, str, Sequence[Row]]]) -> TrendTable | None:
    """Of each program its name, its anchor or "", and its rows of all stages."""
    histories = [
        [mapping(entry) for row in rows for entry in entries(row.get("history"))] for *_, rows in programs
    ]
    keys = [key for key in LINES if any(_series(history, key) for history in histories)]
    if not keys and not any(_merged(rows, "figures") for *_, rows in programs):
        return None
    shown = []
    for (name, anchor, rows), history in zip(programs, histories, strict=True):
        lines = [_line(history, key) for key in keys]
        shown.append(TrendRow(name, anchor, verdict_of(*rows), _accuracy(rows), lines))
    return TrendTable([LINES[key] for key in keys], shown)


def _accuracy(rows: Sequence[Row]) -> Bar | None:
    figures, wanted, accepted = (_merged(rows, group) for group in ("figures", "thresholds", "baseline"))
    value, threshold, baseline = (number(values, "sqnr_db") for values in (figures, wanted, accepted))
    if value is None:
        return None
    part, varies = number(figures, "slice_sqnr_db"), number(figures, "variation_sqnr_db")
    text = in_unit("sqnr_db", value) + (f", at least {threshold:.1f}" if threshold is not None else "")
    lost = part is not None and part < min(LEAST_DB, value - SAME_DB)
    if part is not None and lost:
        text += f", {in_unit('slice_sqnr_db', part)} in its worst slice"
    if varies is not None and of_the_mean(value, varies):
        text += f", {in_unit('variation_sqnr_db', varies)} of what depends on the input"
    label = text + (f", baseline {in_unit('sqnr_db', baseline)}" if baseline is not None else "")
    good = not lost and value >= max(threshold or 0.0, DEFAULT_FLOORS["sqnr_db"])
    longest = WHOLE_DB if value <= WHOLE_DB else None
    marks = [(threshold, 1.6), (baseline, 0.5)]
    return bar_of("", value, text, good=good, marks=marks, longest=longest, label=label)


def _line(history: Sequence[Row], key: str) -> TrendLine | None:
    series = _series(history, key)
    if not series:
        return None
    values = [value for _, value in series]
    low, high = min(values), max(values)
    step = WIDTH / max(1, len(values) - 1)
    points = [
        (index * step, HEIGHT - 2 - (HEIGHT - 4) * (value - low) / (high - low) if high > low else HEIGHT / 2)
        for index, value in enumerate(values)
    ]
    if len(points) == 1:
        points.append((WIDTH, points[0][1]))
    text = in_unit(key, values[-1])
    change = "" if values[0] == values[-1] else f", {in_unit(key, values[0])} {len(values)} commits ago"
    return TrendLine(
        f"{LINES[key]}: {text}{change}",
        "; ".join(f"{commit}: {in_unit(key, value)}" for commit, value in series),
        " ".join(f"{x:.1f},{y:.1f}" for x, y in points),
        text,
    )


def _series(history: Sequence[Row], key: str) -> list[tuple[str, float]]:
    return [(str(run.get("commit", "")), value) for run in history if (value := number(run, key)) is not None]


def _merged(rows: Sequence[Row], group: str) -> dict[str, Metric]:
    return {key: value for row in rows for key, value in mapping(row.get(group)).items()}
