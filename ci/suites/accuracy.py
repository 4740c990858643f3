"""How near outputs are to what was expected of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.suites.model import Thresholds

EXACT_DB = 999.0
"""Stands for the SQNR of outputs without any error, which has no number."""

BELOW = ("cosine", "sqnr_db", "top1", "reference_cosine", "reference_sqnr_db")
ABOVE = ("max_abs", "max_rel")

WORDS = {
    "cosine": "cosine with float eager",
    "sqnr_db": "SQNR in dB against float eager",
    "top1": "top-1 agreement with float eager",
    "max_abs": "largest absolute error",
    "max_rel": "largest error relative to the largest value",
    "reference_cosine": "cosine with the quantized model in PyTorch",
    "reference_sqnr_db": "SQNR in dB against the quantized model in PyTorch",
}


class Unusable(Exception):
    """Outputs that cannot be compared; `rule` names the finding."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Missed:
    figure: str
    wanted: float
    found: float

    def __str__(self) -> str:
        side = "at least" if self.figure in BELOW else "at most"
        return f"{WORDS[self.figure]}: expected {side} {self.wanted:.6g}, found {self.found:.6g}"


def compare(
    outputs: Path,
    folder: Path,
    expected: Sequence[Sequence[Mapping[str, Any]]],
    reference: Sequence[Sequence[Mapping[str, Any]]],
) -> dict[str, float]:
    """The worst figure over all inferences and outputs, by the names of thresholds."""
    figures = _worst(outputs, folder, expected)
    if reference:
        against = _worst(outputs, folder, reference)
        figures["reference_cosine"] = against["cosine"]
        figures["reference_sqnr_db"] = against["sqnr_db"]
    return {name: round(value, 7) for name, value in figures.items()}


def _worst(
    outputs: Path, folder: Path, inferences: Sequence[Sequence[Mapping[str, Any]]]
) -> dict[str, float]:
    rows = [
        figures(_load(folder / row["file"], row), _load(outputs / f"output_{number}_{index}.raw", row))
        for number, tensors in enumerate(inferences)
        for index, row in enumerate(tensors)
    ]
    worst = {name: min(row[name] for row in rows) for name in ("cosine", "sqnr_db", "top1")}
    return worst | {name: max(row[name] for row in rows) for name in ABOVE}


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


def figures(expected: Any, found: Any) -> dict[str, float]:
    import numpy

    wanted = numpy.asarray(expected, numpy.float64)
    values = numpy.asarray(found, numpy.float64)
    if bad := int(values.size - numpy.isfinite(values).sum()):
        raise Unusable("not-finite", f"{bad} of {values.size} values are NaN or infinite")
    error = values - wanted
    signal, noise = float((wanted**2).sum()), float((error**2).sum())
    norms = math.sqrt(signal) * float(numpy.linalg.norm(values))
    largest = float(abs(wanted).max(initial=0))
    return {
        "cosine": float((wanted * values).sum()) / norms if norms else float(noise == 0),
        "sqnr_db": EXACT_DB if noise == 0 else (10 * math.log10(signal / noise) if signal else -EXACT_DB),
        "max_abs": float(abs(error).max(initial=0)),
        "max_rel": float(abs(error).max(initial=0)) / largest if largest else float(noise != 0),
        "top1": _top1(wanted, values),
    }


def _top1(wanted: Any, values: Any) -> float:
    if wanted.ndim == 0 or wanted.shape[-1] < 2:
        return 1.0
    rows = wanted.reshape(-1, wanted.shape[-1]), values.reshape(-1, values.shape[-1])
    return float((rows[0].argmax(-1) == rows[1].argmax(-1)).mean())


def missed(thresholds: Thresholds, figures: Mapping[str, float]) -> list[Missed]:
    """Written so that a figure that is absent or no number misses."""
    found = []
    for name, wanted in thresholds.model_dump(exclude_none=True).items():
        value = figures.get(name, math.nan)
        holds = value >= wanted if name in BELOW else value <= wanted
        if not holds:
            found.append(Missed(name, wanted, value))
    return found
