"""Constants of a phone, fitted to what it measured, and how wrong they are for models that were left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ci.pipeline.forecast import FLOAT, PhoneFit

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


def fitted(rows: Sequence[Row], errors: dict[str, float] | None = None) -> PhoneFit:
    """Three constants that are not negative: least squares of relative errors, outliers weighed down."""
    usual = float(np.median([row.estimate for row in rows]))
    measured = np.array([row.measured for row in rows])
    sizes = np.array([row.estimate / usual for row in rows])
    in_float = np.array([row.precision == FLOAT for row in rows])
    relative = np.stack([sizes * in_float, sizes * ~in_float, np.ones(len(rows))], axis=1) / measured[:, None]
    first = usual * np.median([row.measured / row.estimate for row in rows])
    found = np.array([first, first, 0])
    for _ in range(ROUNDS):
        wrong = relative @ found - 1
        weights = 1 / np.sqrt(1 + (wrong / OUTLIER) ** 2)
        found = _not_negative(relative * weights[:, None], weights)
    return PhoneFit(float(found[0]) / usual, float(found[1]) / usual, float(found[2]), errors or {})


def _not_negative(columns: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    kept = [index for index in range(columns.shape[1]) if columns[:, index].any()]
    full = np.zeros(columns.shape[1])
    while kept:
        found = np.linalg.lstsq(columns[:, kept], wanted, rcond=None)[0]
        if (found >= 0).all():
            full[kept] = found
            break
        kept.pop(int(np.argmin(found)))
    return full


def left_out(rows: Sequence[Row]) -> list[float]:
    """The forecast of each row by constants that were fitted without its model, in microseconds."""
    fits = {
        model: fitted([row for row in rows if row.model != model]) for model in {row.model for row in rows}
    }
    return [fits[row.model].us(row.estimate, row.precision) for row in rows]


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
