"""The page of forecasts: what phones measured of models, beside forecasts by constants without them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ci.pipeline.forecast import ACCEPTED
from provisioning.base.accepted import load_accepted

WIDTH, HEIGHT, EDGE = 640, 440, 46
WAYS = ("forecast", "QNN's estimate", "MACs", "MACs and bytes")
"""The forecast, and plain ways with constants of their own, as the fit names them."""
BAND = 0.2
NAMED = 0.5
"""A model that is off by more than this part has its name in the picture."""
MARKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


@dataclass(frozen=True, slots=True)
class Dot:
    """A program on one phone, in milliseconds."""

    model: str
    precision: str
    measured: float
    forecast: float

    @property
    def times(self) -> float:
        """How many times too long; below 1 it is too short."""
        return self.forecast / self.measured

    @property
    def off(self) -> float:
        return max(self.times, 1 / self.times) - 1

    @property
    def named(self) -> bool:
        return self.off > NAMED


@dataclass(frozen=True, slots=True)
class Plot:
    """Forecasts for a phone over what was measured, both by their logarithms."""

    phone: str
    dots: Sequence[Dot]
    figures: Sequence[tuple[str, Mapping[str, Any]]]
    """By precision, what was accepted: programs, and the errors of each way."""

    @property
    def worst_first(self) -> list[Dot]:
        return sorted(self.dots, key=lambda dot: (-dot.off, dot.model, dot.precision))

    @property
    def ends(self) -> tuple[float, float]:
        values = [value for dot in self.dots for value in (dot.measured, dot.forecast)]
        return min(values) / 1.3, max(values) * 1.3

    def part(self, value: float) -> float:
        low, high = map(math.log, self.ends)
        return min(1.0, max(0.0, (math.log(value) - low) / (high - low)))

    def x(self, value: float) -> float:
        return round(EDGE + self.part(value) * (WIDTH - 2 * EDGE), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - EDGE - self.part(value) * (HEIGHT - 2 * EDGE), 1)

    @property
    def marks(self) -> list[float]:
        low, high = self.ends
        return [mark for mark in MARKS if low <= mark <= high]

    @property
    def band(self) -> str:
        """The corners of what lies within BAND, for a polygon."""
        low, high = self.ends
        above = [(value, value * (1 + BAND)) for value in (low, high)]
        below = [(value, value / (1 + BAND)) for value in (high, low)]
        return " ".join(f"{self.x(measured)},{self.y(forecast)}" for measured, forecast in [*above, *below])


def plots() -> list[Plot]:
    return plots_of(load_accepted(ACCEPTED).subjects)


def plots_of(accepted: Mapping[str, Mapping[str, Any]]) -> list[Plot]:
    dots: dict[str, list[Dot]] = defaultdict(list)
    figures: dict[str, list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
    for subject, values in accepted.items():
        kind, _, name = subject.partition("/")
        if kind == "phones":
            phone, precision = name.split("/")
            figures[phone].append((precision, values))
        elif kind == "measured" and "forecast_us" in values:
            phone, model, precision = name.split("/")
            measured, forecast = values["measured_us"] / 1000, values["forecast_us"] / 1000
            dots[phone].append(Dot(model, precision, measured, forecast))
    return [Plot(phone, dots[phone], figures[phone]) for phone in figures]
