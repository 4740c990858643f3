"""The samples that a user names for a PyTorch model: read from a folder with one file per sample (`.npy`,
`.npz` with an array for each input, or `.pt`), or drawn by the inputs that a suite declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ci.models.compiler_errors import describe_exception
from ci.models.inputs import (
    Input,
    read_array,
    read_arrays,
)
from ci.models.mistakes import (
    other_count,
    other_kind,
    other_names,
    parameters_of,
    require_enough,
)
from ci.models.sample_files import sample_files
from ci.models.user_model import BadFactory
from provisioning.base.errors import CheckFailed


def require_like(
    sample: Sequence[Tensor], example: Sequence[Tensor], where: str, names: Sequence[str] = ()
) -> None:
    """Refuse a sample unless it has as many inputs as the example, of the same types and shapes."""
    all_names = [*names, *(f"input {number}" for number in range(len(names), len(example)))][: len(example)]
    if len(sample) != len(example):
        raise other_count(where, len(sample), all_names)
    for name, expected, found in zip(all_names, example, sample, strict=True):
        if (expected.dtype, expected.shape) != (found.dtype, found.shape):
            raise other_kind(where, name, expected, found)


@dataclass(frozen=True)
class Samples:
    """The user's data, one file per sample, in place of the factory's own inputs."""

    files: tuple[Path, ...]
    read: Callable[[Path, Sequence[str]], tuple[Tensor, ...]]
    """Reads a file, given the names of the model's inputs."""
    names: tuple[str, ...] = ()
    like: tuple[Tensor, ...] | None = None
    """Every sample must have the types and shapes of this one."""
    example: tuple[Tensor, ...] | None = None
    """The model comes with this sample, which also calibrates."""

    def fitting(
        self,
        model: nn.Module,
        like: tuple[Tensor, ...] | None = None,
        example: tuple[Tensor, ...] | None = None,
    ) -> Samples:
        """Return these samples, which from now on refuse what the model does not take: what differs from
        `like`, a sample of the model's own, else from the first of these."""
        samples = replace(self, names=parameters_of(model.forward))
        if like is None:
            first = samples.sample(0)
            require_enough(model.forward, first, self.files[0])
            return replace(samples, like=first)
        return replace(samples, like=like, example=example)

    def sample(self, number: int) -> tuple[Tensor, ...]:
        file = self.files[number % len(self.files)]
        sample = self.read(file, self.names)
        if self.like is not None:
            require_like(sample, self.like, str(file), self.names)
        return sample


def inputs_named(samples: str, inputs: Sequence[Input], search_path: Path) -> Inputs | Samples | None:
    """Return the samples in a folder, or a function that draws inputs; None if the factory returns them."""
    if samples:
        return samples_of(search_path / samples)

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(_draw(input_, generator) for input_ in inputs)

    return draw if inputs else None


def _draw(input_: Input, generator: torch.Generator) -> Tensor:
    dtype = getattr(torch, input_.dtype)
    if not dtype.is_floating_point:
        return torch.randint(
            int(input_.low), int(input_.high) + 1, input_.shape, generator=generator, dtype=dtype
        )
    uniform = torch.rand(input_.shape, generator=generator)
    return (input_.low + (input_.high - input_.low) * uniform).to(dtype)


def samples_of(folder: Path) -> Samples:
    return Samples(tuple(sample_files(folder)), _read_sample)


def _read_sample(path: Path, names: Sequence[str]) -> tuple[Tensor, ...]:
    try:
        tensors = _read_tensors(path, names)
    except BadFactory:
        raise
    except CheckFailed as error:
        raise BadFactory(error.message, error.fix) from error
    except Exception as error:
        message = f"{path} cannot be read: {describe_exception(error)}"
        raise BadFactory(message, "save it again: torch.save(tensor, path)") from error
    sample: list[Tensor] = []
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            message = f"{path}: expected tensors, found a {type(tensor).__name__}"
            raise BadFactory(message, f'torch.save(({", ".join(names[:2] or ["x"])},), "{path.name}")')
        if tensor.dtype.is_floating_point and not torch.isfinite(tensor).all():
            raise BadFactory(f"{path} holds NaN or infinity", "leave that sample out, or correct it")
        sample.append(tensor)
    return tuple(sample)


def _read_tensors(path: Path, names: Sequence[str]) -> Sequence[object]:
    if path.suffix == ".pt":
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
        return content if isinstance(content, tuple | list) else [content]
    if path.suffix == ".npy":
        return [torch.from_numpy(read_array(path))]
    arrays = read_arrays(path)
    return [torch.from_numpy(arrays[name]) for name in _order_names(path, [*arrays], names)]


def _order_names(path: Path, files: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """Return the names of an .npz file's arrays in the model's order. The file's own order counts if it has
    one array, if numpy named its arrays, or if the model names fewer inputs."""
    expected = names[: len(files)]
    if sorted(expected) == sorted(files):
        return expected
    numpys = [f"arr_{number}" for number in range(len(files))]
    if len(files) == 1 or list(files) == numpys or len(expected) < len(files):
        return files
    raise other_names(path, files, expected)


Inputs = Callable[[torch.Generator], tuple[Tensor, ...]]
"""A function that draws the inputs of one sample."""
