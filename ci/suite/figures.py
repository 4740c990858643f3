"""The figures that say how exact a program is: their names, which of them a person reads, and how they are
rounded.

`ci/suite/accuracy.py` computes them, and `ci/suite/limits.py` says what they must reach.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from provisioning.base.units import EXACT_DB, format_decibels

CLEARLY_DB = 6.0
"""Figures that differ by more than this differ for a reason."""
EQUAL_DB = 120.0
"""Outputs that differ by less are equal."""

METRIC = "metric"
"""The name of the figure that a task's metric gives."""
LOSS = f"max_{METRIC}_loss"
"""The name of the figure for what the metric loses against the float model."""

REFERENCE = "reference_"
"""The name of a figure against the quantized model on the CPU begins with this."""

FIGURES = {
    "cosine": "cosine with the float model",
    "sqnr_db": "SQNR in dB against the float model",
    "slice_sqnr_db": "SQNR in dB of the worst slice of an output",
    "variation_sqnr_db": "SQNR in dB of what depends on the input",
    "agreement": "share of integers equal to the float model's",
    "choice_agreement": "share of integers equal to the float model's, or of indices whose values are equal"
    " within the noise",
    "top1": "top-1 agreement with the float model",
    "metric": "metric of the task",
    "float_metric": "the float model's metric of the task",
    "reference_metric": "metric of the task of the quantized model on the CPU",
    "max_metric_loss": "loss of the metric of the task against the float model",
    "max_abs": "largest absolute error",
    "max_rel": "largest error relative to the largest value",
    "reference_cosine": "cosine with the quantized model on the CPU",
    "reference_sqnr_db": "SQNR in dB against the quantized model on the CPU",
    "reference_agreement": "share of integers equal to those of the quantized model on the CPU",
    "reference_choice_agreement": "share of integers equal to those of the quantized model on the CPU, or of"
    " indices whose values are equal within the noise",
}
"""Maps each figure to its description."""

AGAINST_REFERENCE = ("cosine", "sqnr_db", "agreement", "choice_agreement")
"""The figures that are also measured against the quantized model."""

OF_A_DRAW = tuple(
    prefix + name for prefix in ("", REFERENCE) for name in ("sqnr_db", "agreement", "choice_agreement")
)
"""The figures of a sample that `computed_otherwise` and the operator table read."""

LESS_IS_BETTER = ("max_abs", "max_rel", LOSS)
DIGITS = 6
"""Figures are written with this many digits, and shown with at least as many."""


def cost_rule(name: str) -> str:
    return f"cost-{name.replace('_', '-')}"


def against_nearest(figures: Mapping[str, float]) -> str:
    """The prefix of the figures against the quantized model; empty if there are none, as for fp16."""
    return REFERENCE if any(name.startswith(REFERENCE) for name in figures) else ""


def round_figures(figures: Mapping[str, float]) -> dict[str, float]:
    """Round figures as a baseline stores them. None becomes better than measured, so thresholds derived from
    them hold."""
    return {name: round_to_worse(name, value) for name, value in figures.items()}


def round_to_worse(figure: str, value: float) -> float:
    """Round the value to DIGITS digits, toward the less accurate side."""
    if not math.isfinite(value):
        return value
    exact, last_place = Decimal(repr(float(value))), -DIGITS
    side = ROUND_FLOOR
    if figure in LESS_IS_BETTER:
        side = ROUND_CEILING
        # Errors have any size.
        last_place += exact.adjusted() + 1
    return float(exact.quantize(Decimal((0, (1,), last_place)), side))


def describe_figures(figures: Mapping[str, float], prefix: str = "") -> str:
    """Describe the figures with this prefix in a line about a program; empty if nothing was measured."""
    parts = []
    sqnr_db = figures.get(f"{prefix}sqnr_db")
    if sqnr_db is not None:
        parts.append(f"{format_decibels(sqnr_db)} SQNR" if sqnr_db < EXACT_DB else format_decibels(sqnr_db))
        variation_db = figures.get(f"{prefix}variation_sqnr_db", math.inf)
        if variation_db < sqnr_db - CLEARLY_DB:
            parts.append(f"{format_decibels(variation_db)} of what depends on the input")
    agreement = figures.get(f"{prefix}agreement")
    if agreement is not None:
        parts.append(f"{_percentage(agreement)} of integers equal")
        alike = figures.get(f"{prefix}choice_agreement", agreement)
        if alike > agreement:
            parts.append(f"{_percentage(alike)} but for ties")
    metric = figures.get(METRIC)
    if metric is not None and not prefix:
        parts.append(f"metric {metric:.4g}, {figures.get(f'float_{METRIC}', metric):.4g} in float")
    return ", ".join(parts)


def _percentage(agreement: float) -> str:
    # Rounded down: 100 % is all of them.
    return f"{round_to_worse('agreement', agreement) * 100:.6g} %"


FEW_SAMPLES = 3
"""Only the worst sample is reported if there are fewer samples than this."""


def lone_sample(each_db: Sequence[float]) -> int | None:
    """Return the number of the sample that alone is far below all others; None if there is none."""
    if len(each_db) < FEW_SAMPLES:
        return None
    worst, second = sorted(each_db)[:2]
    return each_db.index(worst) if second - worst >= CLEARLY_DB else None


def samples_in_words(each_db: Sequence[float]) -> str:
    """Describe the samples beside the worst one, which decides: their median, and whether one is far below
    all others."""
    from statistics import median

    if len(each_db) < FEW_SAMPLES:
        return ""
    words = f"median {format_decibels(median(each_db))}"
    number = lone_sample(each_db)
    if number is None:
        return words
    worst, second = sorted(each_db)[:2]
    distance = format_decibels(second - worst)
    return f"{words}; sample {number} alone is {distance} below the next"


def against_in_words(figures: Mapping[str, float], each_db: Sequence[float], model: str, data: object) -> str:
    """Describe a program's figures: the inputs they were measured with, and how its samples differ."""
    return add_samples(f"{describe_figures(figures)} against {model} {data}", each_db)


def add_samples(words: str, each_db: Sequence[float]) -> str:
    samples = samples_in_words(each_db)
    return f"{words} ({samples})" if samples else words
