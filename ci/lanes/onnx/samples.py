"""Inputs are read from .npy and .npz files, and checked against the model's names, types and shapes."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ci.models.inputs import (
    GraphSignature,
    InputsUsed,
    check_sample,
    only_input,
    read_array,
    read_arrays,
    shares_of,
)
from ci.models.user_model import DOTTED, search_first, where_paths_begin
from provisioning.base.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from ci.models.inputs import Array, Sample


MOST = 1000
"""At most this many samples are taken from a factory, which may never end."""


class Divided(NamedTuple):
    compared: list[Sample]
    calibrating: list[Sample]
    used: InputsUsed


def divide_samples(samples: Sequence[Sample], inferences: int | None, calibration: int | None) -> Divided:
    """Divide samples into those that are compared and those that calibrate. Without samples both are empty,
    and noise is drawn instead."""
    to_compare, to_calibrate = shares_of(len(samples), inferences, calibration)
    compared = [samples[number] for number in to_compare]
    calibrating = [samples[number] for number in to_calibrate]
    used = InputsUsed(len(compared), len(calibrating), len(samples), noise=not samples)
    return Divided(compared, calibrating, used)


def draw_resembling(sample: Sample, number: int) -> Sample:
    """Return the sample itself for 0, else another one: drawn evenly between the smallest and largest finite
    value of each array. An array of one value stays."""
    import numpy as np

    generator = np.random.default_rng(number)

    def draw(array: Array) -> Array:
        finite = array[np.isfinite(array)]
        if not finite.size:
            return array
        low, high = finite.min(), finite.max()
        if array.dtype.kind == "f":
            return np.asarray(generator.uniform(low, high, array.shape).astype(array.dtype))
        return np.asarray(
            generator.integers(int(low), int(high), array.shape, endpoint=True).astype(array.dtype)
        )

    return {name: draw(array) for name, array in sample.items()} if number else dict(sample)


def calibration_samples(source: str, signature: GraphSignature, search_path: Path) -> list[Sample]:
    """Read samples from a directory below `search_path`, else from `module:function`."""
    folder = search_path / source
    if folder.is_dir() or not DOTTED.fullmatch(source):
        return read_samples(folder, signature)
    return _from_function(source, _call_for_samples(source, search_path), signature)


def _call_for_samples(source: str, search_path: Path) -> list[object]:
    """Return the samples that the function gives. Its module may be below the search path."""
    module, _, name = source.partition(":")
    try:
        search_first(search_path)
        return list(islice(getattr(importlib.import_module(module), name)(), MOST))
    except Exception as error:
        fix = f"it is called without arguments; its module is looked for in {search_path}"
        message = f"--calibrate {source} gives nothing: {type(error).__name__}: {error}"
        raise CheckFailed(message, fix=where_paths_begin(error) or fix) from error


def _from_function(name: str, values: Iterable[object], signature: GraphSignature) -> list[Sample]:
    """Check the function's samples: each value is a dict of inputs by name, a sequence of inputs, or the only
    input."""
    names = [tensor.name for tensor in signature.inputs]
    samples: list[Sample] = []
    for number, value in enumerate(values, 1):
        where = f"{name}, sample {number}"
        samples.append(check_sample(_named_inputs(value, names, where), signature, where))
    if not samples:
        raise CheckFailed(f"{name} gives no sample", fix="give at least one")
    return samples


def _named_inputs(value: object, names: Sequence[str], where: str) -> Sample:
    import numpy as np

    if isinstance(value, Mapping):
        return {str(name): np.asarray(array) for name, array in value.items()}
    values = value if isinstance(value, tuple | list) else (value,)
    if len(values) != len(names):
        message = f"{where}: expected {len(names)} inputs, found {len(values)}"
        raise CheckFailed(message, fix=f"give a dictionary with {', '.join(names)}")
    return dict(zip(names, map(np.asarray, values), strict=True))


def read_samples(folder: Path, signature: GraphSignature) -> list[Sample]:
    """Calibration data, one sample per file.

    An .npz contains every input by name. An .npy is for a model of one input."""
    if not folder.is_dir():
        message = f"{folder}: expected a directory of .npy or .npz files"
        raise UsageError(message, fix="give the directory that holds the samples")
    npz, npy = sorted(folder.glob("*.npz")), sorted(folder.glob("*.npy"))
    if npz and npy:
        message = f"{folder} holds both .npz and .npy files"
        raise UsageError(message, fix="keep one sample a file, all of one kind")
    if npz:
        return [check_sample(read_arrays(path), signature, str(path)) for path in npz]
    if npy:
        only = only_input(signature, npy[0])
        return [check_sample({only: read_array(path)}, signature, str(path)) for path in npy]
    names = [tensor.name for tensor in signature.inputs]
    fix = f"put in .npz files with {', '.join(names)}, one a sample"
    fix += ", or .npy files" if len(names) == 1 else ""
    raise UsageError(f"{folder} holds no sample", fix=fix)
