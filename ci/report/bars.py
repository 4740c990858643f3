"""Bars, whose lengths are in hundredths of their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the bar, or along it."""

    x: float
    width: float
    y: int = 0
    height: int = 20


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    text: str
    kind: str
    length: float
    marks: Sequence[Mark] = ()


WHOLE_DB = 100.0
"""A bar of this many decibels is as long as its place, so that 0 dB is none beside 77."""


def longest_of(*values: float | None) -> float:
    return max(1e-12, *(value or 0 for value in values))


def bar_of(
    name: str,
    value: float,
    text: str,
    *,
    good: bool,
    marks: Sequence[tuple[float | None, float]],
    longest: float | None = None,
) -> Bar:
    """A bar beside one that is as long as `longest`, with marks of a value (None: no mark) and a width each.

    Without `longest` the bar is only comparable with its own marks."""
    unit = 100 / (1.05 * (longest or longest_of(value, *(place for place, _ in marks))))
    drawn = [Mark(max(0.0, unit * place), width) for place, width in marks if place is not None]
    length = max(0.5, unit * max(value, 0))
    return Bar(name, text, "good" if good else "bad", length, drawn)
