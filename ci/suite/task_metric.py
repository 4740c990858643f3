"""A task has a metric: a user's function receives the outputs of a program and of the float model, and
returns a number. A process of its own calls it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    metric: str, pairs: Iterable[Pair], quantized: Iterable[Pair], inferences: int
) -> dict[str, float]:
    """Return the metric of the program, of the float model, and of the quantized model on the CPU, if there
    is one.

    `pairs` has the program's outputs beside the float model's; `quantized` has them beside the quantized
    model's, and is empty if there is none."""
    program_pairs = list(pairs)
    float_pairs = [pair._replace(found=pair.expected) for pair in program_pairs]
    quantized_outputs = [pair.expected for pair in quantized]
    program_metric = measured_by(metric, program_pairs, inferences)
    float_metric = measured_by(metric, float_pairs, inferences)
    figures = {METRIC: program_metric, f"float_{METRIC}": float_metric}
    if quantized_outputs:
        quantized_pairs = [
            pair._replace(found=output) for pair, output in zip(program_pairs, quantized_outputs, strict=True)
        ]
        figures[f"{REFERENCE}{METRIC}"] = measured_by(metric, quantized_pairs, inferences)
    figures[LOSS] = max(0.0, float_metric - program_metric)
    return figures


def measured_by(metric: str, pairs: Iterable[Pair], inferences: int) -> float:
    """Call FOLDER/MODULE:FUNCTION, or FOLDER/FILE.py:FUNCTION, with the outputs of the program and of the
    float model, and return its result. Each argument has a list for each inference, with its arrays in
    order."""
    program_outputs, float_outputs = [], []
    for inference in _split_evenly(list(pairs), inferences):
        program_outputs.append([pair.found for pair in inference])
        float_outputs.append([pair.expected for pair in inference])
    path, _, name = metric.rpartition(":")
    module = Path(path).name.removesuffix(".py")
    search_first(Path(path).parent)
    try:
        return float(getattr(importlib.import_module(module), name)(program_outputs, float_outputs))
    except Exception as error:
        raise Unusable(METRIC, f"{metric}: {type(error).__name__}: {error}") from error


def _split_evenly(pairs: Sequence[Pair], inferences: int) -> Iterator[Sequence[Pair]]:
    """Yield the pairs of each inference; every inference has as many outputs."""
    outputs = len(pairs) // inferences
    for index in range(inferences):
        yield pairs[index * outputs : (index + 1) * outputs]


def error_of_metric(error: Exception, order: Mapping[str, object]) -> dict[str, object]:
    """The error that a worker's reply has for an exception."""
    if isinstance(error, Unusable):
        return {"kind": error.rule, "message": str(error), "fix": f"correct {order['function']}"}
    message = f"{order['function']}: {type(error).__name__}: {error}"
    return {"kind": UNFORESEEN, "message": message, "exit_code": INTERNAL}
