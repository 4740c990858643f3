"""A user's own measure of a program, FILE:FUNCTION: a number, which is better the larger it is."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

from ci.pipeline.accuracy import Pair, Unusable
from ci.pipeline.models.imports import search_first

METRIC = "metric"
"""The name of its figure."""


def measured_by(metric: str, pairs: Iterable[Pair], inferences: int) -> float:
    """What FUNCTION gives for the program's outputs and the float model's: of both a list for each inference,
    with the arrays in order."""
    every = list(pairs)
    count = len(every) // inferences
    outputs, floats = (
        [values[start : start + count] for start in range(0, len(values), count)]
        for values in ([pair.found for pair in every], [pair.expected for pair in every])
    )
    path, _, name = metric.rpartition(":")
    search_first(Path(path).parent)
    try:
        return float(getattr(importlib.import_module(Path(path).stem), name)(outputs, floats))
    except Exception as error:
        raise Unusable(METRIC, f"{metric}: {type(error).__name__}: {error}") from error
