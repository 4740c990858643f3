"""Constants of phones, fitted to what they measured, and what models that were left out say of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ci.one_model.forecast import PRECISIONS, FittedRange, Forecasts, basis_of

ROUNDS = 25
OUTLIER = 0.15
"""A relative error above this counts less, the more the larger it is: one model that a phone takes four times
as long for would move plain least squares by half."""
MARGIN = 1.5
"""By how much a new model's estimate may exceed what was fitted."""
LEAST_MODELS = 10
"""Of a precision with fewer models nothing is fitted."""
BYTES = {"float": (2, 2), "w8a8": (1, 1), "w8a16": (1, 2)}
"""Of a weight, and of a value between two layers."""

Features: TypeAlias = "Callable[[FittedProgram, Sequence[str]], Sequence[float]]"


@dataclass(frozen=True, slots=True)
class FittedProgram:
    """A model in a precision of AI Hub's: what QNN estimates for each chip in microseconds, and its size."""

    model: str
    precision: str
    estimates: Mapping[str, float]
    operators: Mapping[str, int]
    macs: int
    weights: int
    values: int

    @property
    def bytes(self) -> int:
        of_weight, of_value = BYTES[self.precision]
        return self.weights * of_weight + self.values * of_value


@dataclass(slots=True)
class Row:
    """A program on a phone in microseconds, with guesses of constants that were fitted without its model."""

    program: FittedProgram
    measured: float
    guesses: dict[str, float] = field(default_factory=dict)
    """By way; empty if limits without its model withhold it."""

    def off(self, way: str = "forecast") -> float:
        return ratio(self.guesses[way], self.measured)


WAYS: Mapping[str, Features] = {
    "forecast": lambda program, chips: (basis_of(program.estimates, chips), 1),
    "QNN's estimate": lambda program, chips: (program.estimates[chips[0]],),
    "MACs": lambda program, chips: (program.macs, 1),
    "MACs and bytes": lambda program, chips: (program.macs, program.bytes, 1),
}
"""What the constants are of: of the forecast, and of plain ways that it must be better than."""


def ratio(guess: float, measured: float) -> float:
    """How many times too long or too short, less one: 2.0 and 0.5 times are both off by 1."""
    return max(guess / measured, measured / guess) - 1


def quantile(values: Sequence[float], part: float) -> float:
    """The least of the values that this part of all does not exceed."""
    return sorted(values)[min(len(values) - 1, int(np.ceil(part * len(values))) - 1)]


def fitted(features: Sequence[Sequence[float]], measured: Sequence[float]) -> np.ndarray:
    """Least squares of relative errors, outliers weighed down; no constant is negative."""
    relative = np.array(features) / np.array(measured)[:, None]
    kept = list(range(relative.shape[1]))
    while True:
        mine = relative[:, kept]
        constants = np.array([1 / np.median(mine[:, 0]), *[0.0] * (len(kept) - 1)])
        for _ in range(ROUNDS):
            weights = 1 / np.hypot(1, (mine @ constants - 1) / OUTLIER)
            constants = np.linalg.lstsq(mine * weights[:, None], weights, rcond=None)[0]
        if (constants >= 0).all():
            break
        kept.pop(int(constants.argmin()))
    every = np.zeros(relative.shape[1])
    every[kept] = constants
    return every


def limits_of(programs: Sequence[FittedProgram], table: Forecasts) -> FittedRange:
    """Within which a new model is like these."""
    times = [program.estimates[table.chip] for program in programs]
    operators = frozenset(name for program in programs for name in program.operators)
    return FittedRange(min(times) / MARGIN, max(times) * MARGIN, operators)


@dataclass(frozen=True, slots=True)
class JudgedPhone:
    """A phone's rows in one precision, and its constants by all of them."""

    phone: str
    precision: str
    rows: Sequence[Row]
    constants: np.ndarray

    def errors(self, way: str = "forecast") -> list[float]:
        return [row.off(way) for row in self.rows if row.guesses]


def judge(
    programs: Sequence[FittedProgram], measured: Mapping[tuple[str, str, str], float], table: Forecasts
) -> list[JudgedPhone]:
    """`measured` is by phone, model and precision. For each model that is left out, limits and constants are
    chosen again; one alone has no others to be judged by."""
    if len({program.model for program in programs}) < 2:
        return []
    limits = {
        model: limits_of([program for program in programs if program.model != model], table)
        for model in {program.model for program in programs}
    }
    whole, found = limits_of(programs, table), []

    def like(program: FittedProgram, limits: FittedRange) -> bool:
        return not limits.why_not(program.estimates[table.chip], program.operators)

    for phone in table.phones:
        for ours, hub in PRECISIONS.items():
            chips = table.chips(ours, [phone])

            rows = [
                Row(program, measured[phone, program.model, hub])
                for program in programs
                if program.precision == hub and (phone, program.model, hub) in measured
                if {*chips} <= {*program.estimates} and like(program, whole)
            ]
            if len(rows) < LEAST_MODELS:
                continue
            for row in rows:
                model, own = row.program.model, limits[row.program.model]
                if not like(row.program, own):
                    continue
                others = [
                    other for other in rows if other.program.model != model and like(other.program, own)
                ]
                for way, features in WAYS.items():
                    constants = _fit_rows(features, others, chips)
                    row.guesses[way] = float(constants @ features(row.program, chips))
            found.append(JudgedPhone(phone, hub, rows, _fit_rows(WAYS["forecast"], rows, chips)))
    return found


def _fit_rows(features: Features, rows: Sequence[Row], chips: Sequence[str]) -> np.ndarray:
    return fitted([features(row.program, chips) for row in rows], [row.measured for row in rows])
