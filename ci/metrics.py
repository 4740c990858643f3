"""How near two arrays of numbers are: what every lane judges accuracy by."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Nearness:
    """Of what was found to what was expected. Anything that is not finite makes every figure the worst."""

    cosine: float
    sqnr_db: float
    """Signal to noise; 200 stands for no difference at all, so that it fits into JSON."""
    max_abs: float
    max_rel: float
    """Of the largest absolute value expected."""
    top1: float
    """The share of rows in which the largest value is at the same place."""

    def as_dict(self) -> dict[str, float]:
        return {name: round(value, 6) for name, value in asdict(self).items()}


SAME_DB = 200.0
WORST = Nearness(-1.0, -SAME_DB, math.inf, math.inf, 0.0)


def nearness(expected: NDArray[Any], found: NDArray[Any]) -> Nearness:
    """Raises ValueError when the shapes differ, for then there is nothing to compare."""
    if expected.shape != found.shape:
        raise ValueError(f"expected shape {expected.shape}, found {found.shape}")
    if expected.size == 0:
        raise ValueError(f"shape {expected.shape} holds nothing to compare")
    one, other = expected.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return WORST
    noise = one - other
    signal_power, noise_power = float(one @ one), float(noise @ noise)
    largest, worst = float(np.abs(one).max()), float(np.abs(noise).max())
    return Nearness(
        cosine=_cosine(one, other),
        sqnr_db=_decibels(signal_power, noise_power),
        max_abs=worst,
        max_rel=worst / largest if largest else (0.0 if worst == 0 else math.inf),
        top1=_top1(expected, found),
    )


def least(each: Iterable[Nearness]) -> Nearness:
    """The worst of every figure, over outputs or inferences."""
    found = list(each)
    return Nearness(
        cosine=min(one.cosine for one in found),
        sqnr_db=min(one.sqnr_db for one in found),
        max_abs=max(one.max_abs for one in found),
        max_rel=max(one.max_rel for one in found),
        top1=min(one.top1 for one in found),
    )


def _cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    if lengths == 0:
        return 1.0 if np.array_equal(one, other) else 0.0
    return max(-1.0, min(1.0, float(one @ other) / lengths))


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return SAME_DB
    if signal == 0:
        return -SAME_DB
    return max(-SAME_DB, min(SAME_DB, 10 * math.log10(signal / noise)))


def _top1(expected: NDArray[Any], found: NDArray[Any]) -> float:
    if expected.ndim == 0:
        return 1.0
    return float((expected.argmax(-1) == found.argmax(-1)).mean())
