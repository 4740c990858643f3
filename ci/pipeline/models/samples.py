"""The inputs that a suite names: drawn ones, or samples in a folder, one per file: `.npy`, `.npz` with an
array for each input, or `.pt`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ci.pipeline.models.factory import Inputs, ModelSignature, Samples, described
from ci.pipeline.models.user_model import SAMPLE_FILES, BadFactory
from ci.pipeline.suite import Input


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
        raise BadFactory(f"{folder}: expected samples as {', '.join(SAMPLE_FILES)}, found none")
    return Samples(tuple(files), _sample)


def _sample(path: Path, wanted: ModelSignature | None) -> tuple[Tensor, ...]:
    try:
        if path.suffix == ".pt":
            loaded: Any = torch.load(path, weights_only=True)
            tensors: Sequence[Any] = loaded if isinstance(loaded, tuple | list) else [loaded]
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                # By name where the names are the model's, else in the order of the file.
                named = wanted is not None and sorted(wanted.names) == sorted(arrays.files)
                order = wanted.names if wanted is not None and named else arrays.files
                tensors = [torch.from_numpy(arrays[name]) for name in order]
        else:
            tensors = [torch.from_numpy(np.load(path))]
    except Exception as error:
        raise BadFactory(f"{path} cannot be read: {described(error)}") from error
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise BadFactory(f"{path}: expected tensors, found a {type(tensor).__name__}")
        if tensor.dtype.is_floating_point and not torch.isfinite(tensor).all():
            raise BadFactory(f"{path} holds NaN or infinity")
    if wanted is not None:
        wanted.require(tensors, str(path))
    return tuple(tensors)
