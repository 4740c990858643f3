"""The files of tensors that a program's runner reads and writes, and their pairs with the expected values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci.suite.accuracy import Pair, Unusable, pair_of_choice

if TYPE_CHECKING:
    from ci.models.inputs import Array


@dataclass(frozen=True, slots=True)
class ChosenAmong:
    """The file with the values that an output's indices choose among, along a dimension."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    dim: int
    noise: float


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The file of a tensor's bytes."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    choice: ChosenAmong | None = None


Inferences = tuple[tuple[TensorFile, ...], ...]
"""The files of each inference's tensors, in order."""


def read_pairs(
    outputs: Path,
    folder: Path,
    inferences: Inferences,
    *,
    choices: bool = True,
    expected: Sequence[Sequence[Array]] | None = None,
) -> Iterator[Pair]:
    """Pair each of the runner's files in `outputs` with the expected array in `folder`, or with those in
    `expected`. Without `choices`, indices are compared as numbers."""
    for number, tensors in enumerate(inferences):
        for index, tensor in enumerate(tensors):
            path = outputs / output_file(number, index)
            truth = expected[number][index] if expected else load_tensor(folder / tensor.file, tensor)
            found, choice = load_tensor(path, tensor), tensor.choice
            if choices and choice:
                values = load_tensor(folder / choice.file, choice)
                yield pair_of_choice(
                    path.name, truth, found, index, values, dim=choice.dim, noise=choice.noise
                )
            else:
                yield Pair(path.name, truth, found, index)


def output_file(number: int, index: int) -> str:
    """Return the name that runners give to the file of an output of an inference."""
    return f"output_{number}_{index}.raw"


def load_tensor(path: Path, tensor: TensorFile | ChosenAmong) -> Array:
    import numpy

    if not path.is_file():
        raise Unusable("missing", f"{path.name} was not written")
    values = numpy.fromfile(path, dtype=tensor.dtype)
    size = math.prod(tensor.shape)
    if values.size != size:
        words = "; the output has no dimensions: keep one, as x[0, 0:1] does for x[0, 0]"
        message = f"{path.name}: expected {size} values, found {values.size}"
        raise Unusable("shape", message if tensor.shape else message + words)
    return values.reshape(tensor.shape)
