"""Constants of phones, fitted to what they measured, and how wrong they are for models that were left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ci.pipeline.forecast import BetweenChips

ROUNDS = 25
OUTLIER = 0.15
"""A relative error above this counts less, the more the larger it is: one model that a phone takes four times
as long for would move plain least squares by half."""

WAYS = tuple(
    BetweenChips(newer, around)
    for newer, around in product(
        (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0), (0.0, 50.0, 100.0, 150.0, 200.0, 300.0)
    )
)
"""BetweenChips the two chips, and around the network: what a Hexagon may have."""


@dataclass(frozen=True, slots=True)
class Row:
    """One program: QNN's estimates for the two chips, and what a phone measured, in microseconds."""

    model: str
    precision: str
    """By AI Hub's name."""
    first: float
    second: float
    measured: float


@dataclass(frozen=True, slots=True)
class Constants:
    between: BetweenChips
    scales: Mapping[str, Mapping[str, float]]
    """By phone and precision, how long it takes for a microsecond of what lies between the estimates."""

    def forecast(self, phone: str, row: Row) -> float:
        return self.scales[phone][row.precision] * self.between.of(row.first, row.second)


def fitted(phones: Mapping[str, Sequence[Row]], ways: Sequence[BetweenChips] = WAYS) -> Constants:
    """Of phones with one Hexagon, which share a way between the chips: least squares of relative errors,
    outliers weighed down."""
    loss = np.zeros(len(ways))
    scales: dict[tuple[str, str], np.ndarray] = {}
    for phone, rows in phones.items():
        for precision in dict.fromkeys(row.precision for row in rows):
            mine = [row for row in rows if row.precision == precision]
            relative = np.array(
                [[way.of(row.first, row.second) / row.measured for row in mine] for way in ways]
            )
            scales[phone, precision] = found = _scales(relative)
            loss += np.log1p(((relative * found[:, None] - 1) / OUTLIER) ** 2).sum(axis=1)
    best = int(loss.argmin())
    of_phones = {
        phone: {precision: float(found[best]) for (name, precision), found in scales.items() if name == phone}
        for phone in phones
    }
    return Constants(ways[best], of_phones)


def _scales(relative: np.ndarray) -> np.ndarray:
    """For each row of errors without a scale, its scale."""
    scales = 1 / np.median(relative, axis=1)
    for _ in range(ROUNDS):
        weights = 1 / (1 + ((relative * scales[:, None] - 1) / OUTLIER) ** 2)
        scales = (weights * relative).sum(axis=1) / (weights * relative**2).sum(axis=1)
    return np.asarray(scales)


def left_out(
    phones: Mapping[str, Sequence[Row]], ways: Sequence[BetweenChips] = WAYS
) -> dict[str, list[float]]:
    """By phone, the forecast of each row by constants that were fitted, and by a way that was chosen, without
    its model, in microseconds. Each precision has two models or more."""
    models = {row.model for rows in phones.values() for row in rows}
    without = {
        model: fitted(
            {phone: [row for row in rows if row.model != model] for phone, rows in phones.items()}, ways
        )
        for model in models
    }
    return {
        phone: [without[row.model].forecast(phone, row) for row in rows] for phone, rows in phones.items()
    }


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
