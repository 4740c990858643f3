"""The limits of a program's figures, by the kind of its run (its precision).

Below the floors a program fails. Its own thresholds, which its suite or an accepted result has, replace them.
Below what nearly every correct program reaches it gets a warning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.suite.figures import DIGITS, FIGURES, LESS_IS_BETTER, REFERENCE, against_nearest
from ci.suite.lost_parts import WRONG_DB
from ci.suite.precision import has_16_bit_activations

if TYPE_CHECKING:
    from ci.suite.suite_file import Thresholds

DEFAULT_FLOORS = {"sqnr_db": 10.0, "agreement": 1.0, "choice_agreement": 1.0, "slice_sqnr_db": WRONG_DB}
"""A program fails below these, unless its own thresholds say otherwise. Below 10 dB, outputs have little in
common with the model's. A slice need not be nearer than the program's worst output, and indices may differ
where they choose between equal values (`floors`)."""
FLOAT_KIND = "fp16"
"""The kind of a run that quantizes nothing: rounding alone makes its outputs differ."""
FLOORS_OF_FLOAT = {**DEFAULT_FLOORS, "sqnr_db": 30.0}
FLOORS_OF_16_BITS = {**DEFAULT_FLOORS, "reference_sqnr_db": 30.0}
"""A chip that computes the quantized model correctly hardly differs from it at 16-bit activations."""
USUAL_OF_FLOAT_DB = 38.0
"""Nearly all correct programs of FLOAT_KIND reach this (docs/accuracy.md explains it)."""
USUAL_OF_16_BITS_DB = 36.0
"""All accepted programs with 16-bit activations reach this against the quantized model."""

SAME_DB = 0.01
"""Two ways to compute the same figure may differ by this much."""

MEAN_DB = 10.0
"""If subtracting the mean over the inputs lowers a figure by more than this, the figure is mostly about
that mean. Good programs of the lowering suite lose up to 12 dB, and all that lose more than 6 keep more
than 10."""


def required_of(kind: str) -> Mapping[str, float]:
    """What a program of a run of this kind must reach."""
    if kind == FLOAT_KIND:
        return FLOORS_OF_FLOAT
    return FLOORS_OF_16_BITS if has_16_bit_activations(kind) else DEFAULT_FLOORS


def usual_of(kind: str) -> Mapping[str, float]:
    """The figures that nearly every correct program of a run of this kind reaches. A program below them gets
    a warning."""
    if kind == FLOAT_KIND:
        return {"sqnr_db": USUAL_OF_FLOAT_DB}
    return {"reference_sqnr_db": USUAL_OF_16_BITS_DB if has_16_bit_activations(kind) else WRONG_DB}


def floors(figures: Mapping[str, float], kind: str = "") -> dict[str, float]:
    """The required figures of a program without thresholds."""
    bounds = {name: bound for name, bound in required_of(kind).items() if name in figures}
    if "choice_agreement" in bounds:
        bounds.pop("agreement", None)
    if "slice_sqnr_db" in bounds:
        # The whole is among the slices, computed another way: not its last bit decides.
        sqnr_db = figures.get("sqnr_db", math.inf) - SAME_DB
        bounds["slice_sqnr_db"] = min(bounds["slice_sqnr_db"], sqnr_db)
    return bounds


def below_floor(figures: Mapping[str, float], kind: str = "") -> list[str]:
    """The names of the figures below what is required; NaN is below."""
    return [name for name, least in floors(figures, kind).items() if not figures[name] >= least]


def bounds_of(
    thresholds: Thresholds | None, figures: Mapping[str, float], kind: str = ""
) -> dict[str, float]:
    """The limits of these figures: what is required of every program, and the program's own thresholds. A
    program without thresholds is not judged."""
    if thresholds is None:
        return {}
    return floors(figures, kind) | thresholds.model_dump(exclude_none=True)


@dataclass(frozen=True, slots=True)
class Missed:
    """A figure that does not reach its limit."""

    figure: str
    bound: float
    value: float | None
    """None if the program has no such figure."""

    def __str__(self) -> str:
        side = "at most" if self.figure in LESS_IS_BETTER else "at least"
        name = FIGURES[self.figure]
        if self.value is None:
            return f"{name}: expected {side} {self.bound:g}, and it has no such figure"
        bound, value = _distinct_texts(self.bound, self.value, in_decibels=self.figure.endswith("_db"))
        return f"{name}: expected {side} {bound}, found {value}"


def _distinct_texts(one: float, other: float, *, in_decibels: bool) -> tuple[str, str]:
    """Write two different numbers with as many digits as tell them apart: 17 tell all floats apart. Of
    decibels one digit behind the point is enough."""
    forms = [f".{digits}g" for digits in range(DIGITS, 18)]
    if in_decibels:
        forms.insert(0, ".1f")
    for form in forms:
        texts = format(one, form), format(other, form)
        if texts[0] != texts[1]:
            break
    return texts


def missed_thresholds(
    thresholds: Thresholds | None, figures: Mapping[str, float], kind: str = ""
) -> list[Missed]:
    """The missed thresholds. A figure that is absent or NaN misses its threshold."""
    misses = []
    for name, bound in bounds_of(thresholds, figures, kind).items():
        value = figures.get(name, math.nan)
        holds = value <= bound if name in LESS_IS_BETTER else value >= bound
        if not holds:
            misses.append(Missed(name, bound, figures.get(name)))
    return misses


def computed_otherwise(figures: Mapping[str, float], kind: str = "") -> bool:
    """Whether the chip computes something else than the model that the program was made from, be it quantized
    or not."""
    prefix = against_nearest(figures)
    share = "choice_agreement" if f"{prefix}choice_agreement" in figures else "agreement"
    least = {"sqnr_db": required_of(kind).get(f"{REFERENCE}sqnr_db", WRONG_DB), share: 1.0}
    return any(figures.get(f"{prefix}{name}", bound) < bound for name, bound in least.items())


def is_mostly_mean(sqnr_db: float, variation_db: float) -> bool:
    """Whether a good figure only shows that the mean over the inputs is exact."""
    return variation_db < DEFAULT_FLOORS["sqnr_db"] <= sqnr_db and sqnr_db - variation_db > MEAN_DB
