"""A user's own measure of a program: a number, which is better the larger it is."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.child import UNFORESEEN
from ci.models.imports import search_first
from ci.suite.accuracy import Pair, Unusable
from provisioning.base.errors import INTERNAL

METRIC = "metric"
"""The name of its figure."""
LOSS = f"max_{METRIC}_loss"
"""And of what is lost of it against the float model."""


def measured_by(metric: str, pairs: Iterable[Pair], inferences: int) -> float:
    """What FOLDER/MODULE:FUNCTION, or FOLDER/FILE.py:FUNCTION, gives for the program's outputs and the float
    model's: of both a list for each inference, with the arrays in order."""
    every = list(pairs)
    count = len(every) // inferences
    outputs, floats = (
        [values[start : start + count] for start in range(0, len(values), count)]
        for values in ([pair.found for pair in every], [pair.expected for pair in every])
    )
    path, _, name = metric.rpartition(":")
    module = Path(path).name.removesuffix(".py")
    search_first(Path(path).parent)
    try:
        return float(getattr(importlib.import_module(module), name)(outputs, floats))
    except Exception as error:
        raise Unusable(METRIC, f"{metric}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class MetricRequest:
    """What a process gets that computes a metric."""

    function: str
    outputs: Path
    """The folder of what the program gave."""
    working_folder: Path


@dataclass(frozen=True, slots=True)
class MetricFigures:
    figures: Mapping[str, float]


def error_of_metric(error: Exception, order: Mapping[str, object]) -> dict[str, object]:
    """For the reply of a worker."""
    if isinstance(error, Unusable):
        return {"kind": error.rule, "message": str(error), "fix": f"correct {order['function']}"}
    message = f"{order['function']}: {type(error).__name__}: {error}"
    return {"kind": UNFORESEEN, "message": message, "exit_code": INTERNAL}


def side_by_side(
    metric: str, pairs: Iterable[Pair], against: Iterable[Pair], inferences: int
) -> dict[str, float]:
    """The figures of the program, the float model, and the quantized model on the CPU where there is one:
    `against` pairs the program's outputs with its."""
    every = list(pairs)
    floats = [pair._replace(found=pair.expected) for pair in every]
    quantized = [pair._replace(found=other.expected) for pair, other in zip(every, against, strict=False)]
    found = {METRIC: every, f"float_{METRIC}": floats, f"reference_{METRIC}": quantized}
    figures = {name: measured_by(metric, mine, inferences) for name, mine in found.items() if mine}
    return {**figures, LOSS: max(0.0, figures[f"float_{METRIC}"] - figures[METRIC])}
