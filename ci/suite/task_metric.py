"""The metric of a task: a user's function gets the outputs of a program and of the float model, and returns a
number. A process of its own calls it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.models.user_model import search_first
from ci.suite.accuracy import Pair, Unusable
from ci.suite.figures import LOSS, METRIC, REFERENCE
from ci.work import UNFORESEEN
from provisioning.base.errors import INTERNAL


@dataclass(frozen=True, slots=True)
class MetricRequest:
    """The request to a process that computes a metric."""

    function: str
    outputs: Path
    """The folder with the outputs of the program."""
    working_folder: Path


@dataclass(frozen=True, slots=True)
class MetricFigures:
    figures: Mapping[str, float]


def side_by_side(
    metric: str, pairs: Iterable[Pair], against: Iterable[Pair], inferences: int
) -> dict[str, float]:
    """The metric of the program, of the float model, and of the quantized model on the CPU if there is one.
    `against` pairs the program's outputs with the quantized model's."""
    of_program = list(pairs)
    of_float = [pair._replace(found=pair.expected) for pair in of_program]
    of_quantized = [
        pair._replace(found=partner.expected) for pair, partner in zip(of_program, against, strict=False)
    ]
    figures = {
        METRIC: measured_by(metric, of_program, inferences),
        f"float_{METRIC}": measured_by(metric, of_float, inferences),
    }
    if of_quantized:
        figures[f"{REFERENCE}{METRIC}"] = measured_by(metric, of_quantized, inferences)
    figures[LOSS] = max(0.0, figures[f"float_{METRIC}"] - figures[METRIC])
    return figures


def measured_by(metric: str, pairs: Iterable[Pair], inferences: int) -> float:
    """Call FOLDER/MODULE:FUNCTION, or FOLDER/FILE.py:FUNCTION, with the outputs of the program and of the
    float model, and return its result. Each argument has a list for each inference, with its arrays in
    order."""
    rows = list(pairs)
    count = len(rows) // inferences
    outputs, floats = [], []
    for first in range(0, len(rows), count):
        outputs.append([pair.found for pair in rows[first : first + count]])
        floats.append([pair.expected for pair in rows[first : first + count]])
    path, _, name = metric.rpartition(":")
    module = Path(path).name.removesuffix(".py")
    search_first(Path(path).parent)
    try:
        return float(getattr(importlib.import_module(module), name)(outputs, floats))
    except Exception as error:
        raise Unusable(METRIC, f"{metric}: {type(error).__name__}: {error}") from error


def error_of_metric(error: Exception, order: Mapping[str, object]) -> dict[str, object]:
    """The error that a worker's reply has for an exception."""
    if isinstance(error, Unusable):
        return {"kind": error.rule, "message": str(error), "fix": f"correct {order['function']}"}
    message = f"{order['function']}: {type(error).__name__}: {error}"
    return {"kind": UNFORESEEN, "message": message, "exit_code": INTERNAL}
