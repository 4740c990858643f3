"""The inputs that a suite names: drawn ones, or samples in a folder, one per file: `.npy`, `.npz` with an
array for each input, or `.pt`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ci.models.factory import Inputs, Samples, described
from ci.models.inputs import Input, read_array, read_arrays
from ci.models.mistakes import no_samples, other_names
from ci.models.user_model import SAMPLE_FILES, BadFactory
from provisioning.base.errors import CheckFailed


def inputs_named(samples: str, inputs: Sequence[Input], search_path: Path) -> Inputs | Samples | None:
    """Those in a folder, or a function that draws them. None: the factory returns them."""
    if samples:
        return samples_of(search_path / samples)

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(_drawn(input_, generator) for input_ in inputs)

    return draw if inputs else None


def _drawn(wanted: Input, generator: torch.Generator) -> Tensor:
    dtype = getattr(torch, wanted.dtype)
    if not dtype.is_floating_point:
        return torch.randint(
            int(wanted.low), int(wanted.high) + 1, wanted.shape, generator=generator, dtype=dtype
        )
    even = torch.rand(wanted.shape, generator=generator)
    return (wanted.low + (wanted.high - wanted.low) * even).to(dtype)


def samples_of(folder: Path) -> Samples:
    files = (
        sorted(path for path in folder.iterdir() if path.suffix in SAMPLE_FILES) if folder.is_dir() else []
    )
    if not files:
        raise no_samples(folder)
    return Samples(tuple(files), _sample)


def _sample(path: Path, names: Sequence[str]) -> tuple[Tensor, ...]:
    try:
        tensors = _read(path, names)
    except BadFactory:
        raise
    except CheckFailed as error:
        raise BadFactory(error.message, error.fix) from error
    except Exception as error:
        message = f"{path} cannot be read: {described(error)}"
        raise BadFactory(message, "save it again: torch.save(tensor, path)") from error
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            message = f"{path}: expected tensors, found a {type(tensor).__name__}"
            raise BadFactory(message, f'torch.save(({", ".join(names[:2] or ["x"])},), "{path.name}")')
        if tensor.dtype.is_floating_point and not torch.isfinite(tensor).all():
            raise BadFactory(f"{path} holds NaN or infinity", "leave that sample out, or correct it")
    return tuple(tensors)


def _read(path: Path, names: Sequence[str]) -> Sequence[Any]:
    if path.suffix == ".pt":
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
        return loaded if isinstance(loaded, tuple | list) else [loaded]
    if path.suffix == ".npy":
        return [torch.from_numpy(read_array(path))]
    arrays = read_arrays(path)
    return [torch.from_numpy(arrays[name]) for name in _in_order(path, [*arrays], names)]


def _in_order(path: Path, files: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """By name; in the order of the file where there is one, where numpy gave the names, or where the model
    names none."""
    expected = names[: len(files)]
    if sorted(expected) == sorted(files):
        return expected
    numpys = [f"arr_{number}" for number in range(len(files))]
    if len(files) == 1 or list(files) == numpys or len(expected) < len(files):
        return files
    raise other_names(path, files, expected)
