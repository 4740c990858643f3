"""Read the inputs of one inference from .npy and .npz files and check them against the model's names, types
and shapes. Samples are kept in an .npz of our own, each array as `<index>/<name>`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field, model_validator

from provisioning.base.documents import Model
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.parser import Parser
from provisioning.base.rendering import plural
from provisioning.base.settings import user_path

if TYPE_CHECKING:
    # Commands that find their work done need no arrays, and it takes a tenth of their time to import.
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"
Sample: TypeAlias = dict[str, Array]
"""A sample is the inputs or the outputs of one inference, by name."""

T = TypeVar("T")
NPY = b"\x93NUMPY"

COMPARED, CALIBRATING = 16, 200
"""At most so many of the user's samples judge a program, and calibrate it."""
DRAWN_COMPARED, DRAWN_CALIBRATING = 2, 32
"""So many inputs are drawn to compare and to calibrate, if they can be drawn without end."""
DRAWN_OF_LIGHT = 8
"""So many inputs are drawn to compare a light model: one of two may be far from all others."""
LIGHT_FLOPS = 300e6
"""A model is light up to this number of operations per inference: the emulator then takes less than a
second."""


class Input(Model):
    """An input is drawn evenly between two bounds. An integer input can also be `high`."""

    shape: tuple[Annotated[int, Field(ge=1)], ...]
    dtype: Literal["float32", "float16", "int32", "int64", "uint8"] = "float32"
    low: float = -1.0
    high: float = 1.0

    @model_validator(mode="after")
    def _is_a_range(self) -> Input:
        if self.low > self.high:
            raise ValueError("low no greater than high")
        if "int" in self.dtype and (self.low % 1 or self.high % 1):
            raise ValueError(f"whole numbers for low and high of {self.dtype}")
        return self


def drawn_compared(flops: float) -> int:
    return DRAWN_OF_LIGHT if flops <= LIGHT_FLOPS else DRAWN_COMPARED


def most_calibrating(calibration: int | None, *, has_data: bool) -> int:
    """Return how many samples may calibrate: the given number, or the usual one for the user's data or drawn
    inputs."""
    return (CALIBRATING if has_data else DRAWN_CALIBRATING) if calibration is None else calibration


def shares_of(count: int, inferences: int | None, calibration: int | None) -> tuple[list[int], list[int]]:
    """Choose which of the user's samples are compared and which calibrate, by their numbers. Each is used
    once; a lone one is used for both. The limits are the suite's."""
    order = _shuffle(count)
    split = min(inferences or COMPARED, max(min(2, count // 2), count // 4))
    calibrating = [0] if count == 1 else order[split:]
    compared = [0] if count == 1 else order[:split]
    return compared, calibrating[: most_calibrating(calibration, has_data=True)]


def _shuffle(count: int) -> list[int]:
    return sorted(range(count), key=lambda number: sha256(f"sample {number}".encode()).digest())


def order_files(compared: Sequence[T], calibrating: Sequence[T]) -> list[T]:
    """Order the samples so that `shares_of` compares the same ones, as far as it compares so many."""
    samples = [*compared, *calibrating]
    by_number = dict(zip(_shuffle(len(samples)), samples, strict=True))
    return [by_number[number] for number in range(len(samples))]


@dataclass(frozen=True, slots=True)
class InputsUsed:
    """It says on which inputs a program was calibrated and compared."""

    compared: int
    calibrating: int
    """It is 0 if nothing is quantized."""
    given: int = 0
    """The user has so many samples; 0 if they are drawn without end."""
    noise: bool = False
    """Whether the inputs were drawn without anybody saying from which values."""

    def __str__(self) -> str:
        if self.noise:
            return f"on {plural(self.compared, 'random input')}"
        if self.given == 1:
            return f"on the only sample{', which also calibrated it' if self.calibrating else ''}"
        of = f" of {self.given:,}" if self.given else ""
        calibrated = f", calibrated on {self.calibrating:,}{of}" if self.calibrating else ""
        return f"on {plural(self.compared, 'sample')}{calibrated}"


def is_fixed(size: int | str) -> bool:
    return isinstance(size, int) and size > 0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor is an input or output. `shape` has a name or -1 where a size is not fixed; `dtype` is numpy's
    name."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def static(self) -> bool:
        return all(map(is_fixed, self.shape))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class GraphSignature:
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


DEVIATIONS = 3.0
"""No drawn value is farther from 0 than this many standard deviations."""


def draw_sample(signature: GraphSignature, seed: int = 0) -> Sample:
    """Draw inputs, for a user who gives no data: they are enough to compare a run with its reload."""
    import numpy as np

    generator = np.random.default_rng(seed)

    def of(tensor: Tensor) -> Array:
        shape = [int(size) for size in tensor.shape]
        if np.dtype(tensor.dtype).kind == "f":
            # A value beyond the ranges that a few others gave would be cut, and be all of the error.
            values: Array = generator.standard_normal(shape).clip(-DEVIATIONS, DEVIATIONS)
            return values.astype(tensor.dtype)
        # A mask of zeros alone would hide all else; as indices, 0 and 1 are in nearly every table.
        return generator.integers(0, 2, shape).astype(tensor.dtype)

    return {tensor.name: of(tensor) for tensor in signature.inputs}


def read_inputs(files: Sequence[str], signature: GraphSignature) -> Sample:
    """Read the files of `--input`: NAME=x.npy, x.npy for each input in the model's order, or one .npz with
    all."""
    sample: Sample = {}

    def add(text: str, arrays: Sample) -> None:
        if again := sorted(sample.keys() & arrays.keys()):
            raise UsageError(f"--input {text}: {again[0]} is given twice", fix=f"give {again[0]} once")
        sample.update(arrays)

    unnamed: list[tuple[str, Path]] = []
    for text in files:
        name, equals, file = text.partition("=")
        path = user_path(file if equals else text, "--input", str(Parser.user_folder()))
        if equals:
            add(text, {name: read_array(path)})
        elif path.suffix == ".npz":
            add(text, read_arrays(path))
        else:
            unnamed.append((text, path))
    # An .npy does not name its input: those without a name are the others, in order.
    rest = [tensor.name for tensor in signature.inputs if tensor.name not in sample]
    if len(unnamed) > len(rest):
        text, names = unnamed[len(rest)][0], ", ".join(tensor.name for tensor in signature.inputs)
        raise UsageError(
            f"--input {text}: {names} have files already, and the model has no other input",
            fix="give one file for each input",
        )
    for name, (text, path) in zip(rest, unnamed, strict=False):
        add(text, {name: read_array(path)})
    return check_sample(sample, signature, "--input")


def check_sample(sample: Mapping[str, Array], signature: GraphSignature, where: str) -> Sample:
    """Return the sample if it has exactly the model's inputs with the right types and shapes and only finite
    values; refuse it otherwise."""
    import numpy as np

    tensors = {tensor.name: tensor for tensor in signature.inputs}
    if unknown := sorted(sample.keys() - tensors.keys()):
        message = f"{where}: the model has no input {unknown[0]!r}"
        raise CheckFailed(message, fix=f"its inputs are {', '.join(tensors)}")
    if absent := [name for name in tensors if name not in sample]:
        message = f"{where}: nothing for the input {tensors[absent[0]]}"
        fix = f"give {', '.join(absent)} too: --input {absent[0]}=FILE.npy, or by name in an .npz"
        raise CheckFailed(message, fix=fix)
    for name, array in sample.items():
        tensor = tensors[name]
        if str(array.dtype) != tensor.dtype or (tensor.static and array.shape != tensor.shape):
            kind = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
            message = f"{where}: expected {tensor}, found {kind}"
            raise CheckFailed(message, fix=f"save {name} with that type and shape")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            bad = int(np.argmax(~np.isfinite(array)))
            raise CheckFailed(
                f"{where}: {name} holds {array.ravel()[bad]} at {bad}, which spoils the calibrated ranges",
                fix=f"leave that sample out, or correct {name} in it",
            )
    return {name: sample[name] for name in tensors}


def read_array(path: Path) -> Array:
    import numpy as np

    with _reading(path, "an array", "numpy.save"), path.open("rb") as stream:
        if stream.read(len(NPY)) != NPY:
            raise ValueError(f"it begins otherwise, and has {path.stat().st_size} bytes")
        stream.seek(0)
        array: Array = np.load(stream, allow_pickle=False)
    return array


def read_arrays(path: Path) -> Sample:
    import numpy as np

    reading = _reading(path, "arrays", "numpy.savez")
    with reading, path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        arrays: Sample = {name: archive[name] for name in archive.files}
    return arrays


@contextmanager
def _reading(path: Path, content: str, function: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        fix = "name a file of arrays that is there"
        raise UsageError(f"{path}: there is no such file", fix=fix) from None
    except Exception as error:
        # Depending on the damage, numpy, zlib or the tokenizer raises.
        message = f"{path}: expected {content} that {function} wrote, found something else ({error})"
        raise CheckFailed(message, fix=f"save it again with {function}") from error


def only_input(signature: GraphSignature, path: Path) -> str:
    if len(signature.inputs) != 1:
        names = [tensor.name for tensor in signature.inputs]
        message = f"{path}: the model has {len(names)} inputs, but an .npy does not name its input"
        raise UsageError(message, fix=f"{names[0]}={path}, or one .npz with {', '.join(names)}")
    return signature.inputs[0].name


def save(path: Path, samples: Sequence[Mapping[str, Array]]) -> None:
    import numpy as np

    arrays = {f"{index}/{name}": array for index, row in enumerate(samples) for name, array in row.items()}
    np.savez(path, **arrays)  # type: ignore[arg-type]


def load_samples(path: Path) -> list[Sample]:
    import numpy as np

    samples: dict[int, Sample] = {}
    with np.load(path) as archive:
        for key in archive.files:
            index, _, name = key.partition("/")
            samples.setdefault(int(index), {})[name] = archive[key]
    return [samples[index] for index in sorted(samples)]
