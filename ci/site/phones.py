"""The page of forecasts: what phones measured of models, beside forecasts by constants without them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ci.pipeline.forecast import ACCEPTED, PROGRAMS
from provisioning.base.accepted import load_accepted

WIDTH, HEIGHT, EDGE = 640, 440, 46
TITLES = {"onnx": "ONNX", "executorch": "ExecuTorch"}
"""Of the lanes, in the page's order."""
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
    def off(self) -> float:
        return self.forecast / self.measured - 1

    @property
    def named(self) -> bool:
        return abs(self.off) > NAMED


@dataclass(frozen=True, slots=True)
class Plot:
    """Forecasts of a lane over what was measured, both by their logarithms."""

    lane: str
    phone: str
    dots: Sequence[Dot]

    @property
    def worst_first(self) -> list[Dot]:
        return sorted(self.dots, key=lambda dot: (-abs(dot.off), dot.model, dot.precision))

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
        below = [(value, value * (1 - BAND)) for value in (high, low)]
        return " ".join(f"{self.x(measured)},{self.y(forecast)}" for measured, forecast in [*above, *below])

    @property
    def figures(self) -> list[tuple[str, int, float, float]]:
        """By precision: programs, and the median and 80th percentile of their errors."""
        errors: dict[str, list[float]] = defaultdict(list)
        for dot in self.dots:
            errors[dot.precision].append(abs(dot.off))
            errors["all"].append(abs(dot.off))
        return [
            (name, len(found), _quantile(found, 0.5), _quantile(found, 0.8))
            for name, found in sorted(errors.items())
        ]


def _quantile(errors: Sequence[float], part: float) -> float:
    """As `forecast fit` has it, so that the page and its report agree."""
    return sorted(errors)[math.ceil(part * len(errors)) - 1]


def plots() -> list[Plot]:
    return plots_of(load_accepted(ACCEPTED).subjects)


def plots_of(accepted: Mapping[str, Mapping[str, object]]) -> list[Plot]:
    dots: dict[tuple[str, str], list[Dot]] = defaultdict(list)
    for subject, values in accepted.items():
        kind, _, name = subject.partition("/")
        if kind.endswith(PROGRAMS):
            phone, model, precision = name.split("/")
            measured, forecast = (
                float(str(values[field])) / 1000 for field in ("measured_us", "forecast_us")
            )
            dots[kind.removesuffix(PROGRAMS), phone].append(Dot(model, precision, measured, forecast))
    return [
        Plot(lane, phone, found)
        for lane in TITLES
        for (of_lane, phone), found in dots.items()
        if of_lane == lane
    ]
