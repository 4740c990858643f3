"""The page of forecasts: what phones measured of models, beside forecasts by constants without them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ci.pipeline.forecast import ACCEPTED
from provisioning.base.accepted import load_accepted

WAYS = ("forecast", "QNN's estimate", "MACs", "MACs and bytes")
"""The forecast, and plain ways with constants of their own, as the fit names them."""


@dataclass(frozen=True, slots=True)
class MeasuredProgram:
    """On one phone, in milliseconds."""

    model: str
    precision: str
    measured: float
    forecast: float

    @property
    def times(self) -> float:
        """How many times too long; below 1 it is too short."""
        return self.forecast / self.measured


@dataclass(frozen=True, slots=True)
class MeasuredPhone:
    name: str
    programs: Sequence[MeasuredProgram]
    """The farthest off first."""
    figures: Sequence[tuple[str, Mapping[str, Any]]]
    """By precision, what was accepted: programs, and the errors of each way."""


def phones() -> list[MeasuredPhone]:
    programs: dict[str, list[MeasuredProgram]] = defaultdict(list)
    figures: dict[str, list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
    accepted: Mapping[str, Mapping[str, Any]] = load_accepted(ACCEPTED).subjects
    for subject, values in accepted.items():
        kind, _, name = subject.partition("/")
        if kind == "phones":
            phone, precision = name.split("/")
            figures[phone].append((precision, values))
        elif kind == "measured" and "forecast_us" in values:
            phone, model, precision = name.split("/")
            measured, forecast = values["measured_us"] / 1000, values["forecast_us"] / 1000
            programs[phone].append(MeasuredProgram(model, precision, measured, forecast))

    def order(program: MeasuredProgram) -> tuple[float, str, str]:
        return -max(program.times, 1 / program.times), program.model, program.precision

    return [MeasuredPhone(name, sorted(programs[name], key=order), figures[name]) for name in figures]
