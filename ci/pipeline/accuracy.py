"""The one place that compares a program's outputs with the expected ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

from ci.pipeline.suite import Thresholds

EXACT_DB = 999.0
"""The SQNR of outputs without any error, for which there is no finite number."""

LEAST_DB = 20.0
"""Outputs with a lower SQNR are wrong, even if the tolerance of a test lets them pass."""

FIGURES = {
    "cosine": "cosine with the float model",
    "sqnr_db": "SQNR in dB against the float model",
    "top1": "top-1 agreement with the float model",
    "max_abs": "largest absolute error",
    "max_rel": "largest error relative to the largest value",
    "reference_cosine": "cosine with the quantized model on the CPU",
    "reference_sqnr_db": "SQNR in dB against the quantized model on the CPU",
}
LESS_IS_BETTER = ("max_abs", "max_rel")
DIGITS = 6
"""How many are written of a figure, and shown at least."""

Pair = tuple[str, Any, Any]
"""The name of an output, the array expected and the array computed."""


class Unusable(Exception):
    """Outputs that cannot be compared; `rule` names the finding."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Missed:
    """A figure that does not reach its threshold."""

    figure: str
    bound: float
    value: float

    def __str__(self) -> str:
        side = "at most" if self.figure in LESS_IS_BETTER else "at least"
        # As many digits as tell them apart: 17 tell all floats apart.
        texts = ((f"{self.bound:.{digits}g}", f"{self.value:.{digits}g}") for digits in range(DIGITS, 18))
        bound, value = next(both for both in texts if both[0] != both[1])
        return f"{FIGURES[self.figure]}: expected {side} {bound}, found {value}"


def compare(
    expected: Iterable[Pair], reference: Iterable[Pair] = (), *, non_finite: bool = False
) -> dict[str, float]:
    """The worst figure over all outputs of all inferences, by the names of thresholds.

    `expected` pairs outputs with the float model's, `reference` with the quantized model's. Raises Unusable
    for values that are NaN or infinite; with `non_finite` only where the expected array does not have them at
    the same place."""
    figures = _worst(expected, non_finite)
    against = list(reference)
    if against:
        quantized = _worst(against, non_finite)
        figures |= {f"reference_{name}": quantized[name] for name in ("cosine", "sqnr_db")}
    return figures


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures as a baseline stores them, none better than measured, so that thresholds of them hold."""
    return {name: at_worst(name, value) for name, value in figures.items()}


def at_worst(figure: str, value: float) -> float:
    """The value with DIGITS digits, rounded to the side on which it is less accurate."""
    if not math.isfinite(value):
        return value
    exact, least = Decimal(repr(float(value))), -DIGITS
    if figure in LESS_IS_BETTER:
        # Errors have any size.
        least += exact.adjusted() + 1
    side = ROUND_CEILING if figure in LESS_IS_BETTER else ROUND_FLOOR
    return float(exact.quantize(Decimal((0, (1,), least)), side))


def _worst(pairs: Iterable[Pair], non_finite: bool) -> dict[str, float]:
    rows = [_figures(*pair, non_finite) for pair in pairs]
    if not rows:
        raise Unusable("missing", "expected at least one output to compare, found none")
    return {name: _worst_of(name, [row[name] for row in rows]) for name in rows[0]}


def _worst_of(name: str, values: Sequence[float]) -> float:
    # min() and max() ignore a NaN unless it comes first.
    if any(map(math.isnan, values)):
        return math.nan
    return max(values) if name in LESS_IS_BETTER else min(values)


def _figures(name: str, expected: Any, output: Any, non_finite: bool) -> dict[str, float]:
    import numpy

    wanted, values = numpy.asarray(expected, numpy.float64), numpy.asarray(output, numpy.float64)
    if wanted.shape != values.shape:
        raise Unusable("shape", f"{name}: expected the shape {wanted.shape}, found {values.shape}")
    top1 = _top1(wanted, values)
    wanted, values = _finite(name, wanted, values, non_finite)
    largest = float(abs(wanted).max(initial=0))
    worst = float(abs(values - wanted).max(initial=0))
    # Dividing by the largest value keeps the squares of very large values finite.
    scale = max(largest, float(abs(values).max(initial=0))) or 1.0
    signal, power = float(((wanted / scale) ** 2).sum()), float(((values / scale) ** 2).sum())
    noise = float((((values - wanted) / scale) ** 2).sum())
    product = float(((wanted / scale) * (values / scale)).sum())
    return {
        "cosine": _cosine(product, signal, power, noise),
        "sqnr_db": decibels(signal, noise),
        "max_abs": worst,
        "max_rel": worst / largest if largest else float(worst != 0),
        "top1": top1,
    }


def _cosine(product: float, signal: float, power: float, noise: float) -> float:
    """1 of equal arrays, and never more, although the last bits of sums are not exact."""
    if not (noise and signal and power):
        return float(noise == 0)
    return min(1.0, product / math.sqrt(signal * power))


def _finite(name: str, wanted: Any, values: Any, non_finite: bool) -> tuple[Any, Any]:
    """Both arrays without NaN and infinities, which must be at the same places."""
    import numpy

    ours, theirs = numpy.isfinite(values), numpy.isfinite(wanted)
    if not theirs.all() and not non_finite:
        raise Unusable(
            "reference-not-finite",
            f"{name}: {_count(theirs)} values that the model itself gives on the CPU are NaN or infinite; if"
            " they are meant, write non_finite = true into the case",
        )
    same = numpy.equal(wanted, values) | (numpy.isnan(wanted) & numpy.isnan(values))
    if not (ours | same).all():
        raise Unusable("not-finite", f"{name}: {_count(ours | same)} values are NaN or infinite")
    if not (theirs | same).all():
        raise Unusable(
            "not-finite", f"{name}: {_count(theirs | same)} values should be NaN or infinite, and are not"
        )
    return numpy.where(theirs, wanted, 0), numpy.where(theirs, values, 0)


def _count(good: Any) -> str:
    return f"{int(good.size - good.sum())} of {good.size}"


def _top1(wanted: Any, values: Any) -> float:
    if wanted.ndim == 0 or wanted.shape[-1] < 2:
        return 1.0
    rows = wanted.reshape(-1, wanted.shape[-1]), values.reshape(-1, values.shape[-1])
    return float((rows[0].argmax(-1) == rows[1].argmax(-1)).mean())


def decibels(signal: float, noise: float) -> float:
    """The ratio of two powers: EXACT_DB without noise, -EXACT_DB if nothing of the signal is left."""
    if not noise:
        return EXACT_DB
    ratio = signal / noise
    return 10 * math.log10(ratio) if 0 < ratio < math.inf else -EXACT_DB


def in_files(outputs: Path, folder: Path, expected: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[Pair]:
    """The runner's files in `outputs`, each with the expected array in `folder` that its row describes."""
    for number, tensors in enumerate(expected):
        for index, row in enumerate(tensors):
            path = outputs / f"output_{number}_{index}.raw"
            yield path.name, _load(folder / row["file"], row), _load(path, row)


def _load(path: Path, row: Mapping[str, Any]) -> Any:
    import numpy

    if not path.is_file():
        raise Unusable("missing", f"{path.name} was not written")
    values = numpy.fromfile(path, dtype=row["dtype"])
    if values.size != math.prod(row["shape"]):
        raise Unusable(
            "shape", f"{path.name}: expected {math.prod(row['shape'])} values, found {values.size}"
        )
    return values.reshape(row["shape"])


def missed(thresholds: Thresholds | None, figures: Mapping[str, float]) -> list[Missed]:
    """A figure that is absent or NaN misses its threshold."""
    if thresholds is None:
        return []
    misses = []
    for name, bound in thresholds.model_dump(exclude_none=True).items():
        value = figures.get(name, math.nan)
        holds = value <= bound if name in LESS_IS_BETTER else value >= bound
        if not holds:
            misses.append(Missed(name, bound, value))
    return misses
