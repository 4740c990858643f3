"""Constants of a phone, fitted to what it measured, and how wrong they are for models that were left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROUNDS = 40
OUTLIER = 0.15
"""A relative error above this counts less, the more the larger it is: one model that a phone takes four times
as long for would move plain least squares by half."""


@dataclass(frozen=True, slots=True)
class Row:
    """One program: QNN's estimate, and what a phone measured, in microseconds."""

    model: str
    precision: str
    """By AI Hub's name."""
    estimate: float
    measured: float


def fitted(rows: Sequence[Row]) -> dict[str, float]:
    """By precision, how long a phone takes for a microsecond of the estimate: least squares of relative
    errors, outliers weighed down."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        ratios[row.precision].append(row.estimate / row.measured)
    return {precision: _scale(np.array(found)) for precision, found in ratios.items()}


def _scale(relative: np.ndarray) -> float:
    scale = float(1 / np.median(relative))
    for _ in range(ROUNDS):
        weights = 1 / (1 + ((relative * scale - 1) / OUTLIER) ** 2)
        scale = float((weights * relative).sum() / (weights * relative**2).sum())
    return scale


def left_out(rows: Sequence[Row]) -> list[float]:
    """The forecast of each row by constants that were fitted without its model, in microseconds. Each
    precision has two models or more."""
    fits = {
        model: fitted([row for row in rows if row.model != model]) for model in {row.model for row in rows}
    }
    return [fits[row.model][row.precision] * row.estimate for row in rows]


def errors_of(rows: Sequence[Row], forecasts: Sequence[float]) -> list[float]:
    """As parts of what was measured."""
    return [abs(guess / row.measured - 1) for row, guess in zip(rows, forecasts, strict=True)]


def quantile(values: Sequence[float], part: float) -> float:
    """The least of the values that this part of all does not exceed."""
    return sorted(values)[min(len(values) - 1, int(np.ceil(part * len(values))) - 1)]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's."""
    ranks = np.array([np.argsort(np.argsort(values, kind="stable")) for values in (first, second)])
    return float(np.corrcoef(ranks)[0, 1])
