"""Making a model: import the factory, call it, and make sure of what it gives."""

from __future__ import annotations

import hashlib
import importlib
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ci.suites.imports import searched_first

CALIBRATION_SEED = 1000
"""Samples from this number on calibrate; those that are compared are numbered from 0."""

Inputs = Callable[[torch.Generator], tuple[Tensor, ...]]


MEMORY = re.compile(r"can't allocate memory|bad_alloc|out of memory|Cannot allocate memory")


class BadFactory(Exception):
    """The model cannot be had; the message says why, in words for whoever wrote the factory."""


@dataclass(frozen=True)
class Made:
    model: nn.Module
    inputs: Inputs

    def sample(self, number: int) -> tuple[Tensor, ...]:
        try:
            return _tensors(self.inputs(torch.Generator().manual_seed(seed_of("inputs", number))))
        except BadFactory:
            raise
        except Exception as error:
            raise BadFactory(f"its function for inputs raises {_last(error)}") from error


def seed_of(stream: str, number: int = 0) -> int:
    """Each stream has its own random numbers: inputs of the weights' seed would be the weights over again."""
    return int.from_bytes(hashlib.sha256(f"{stream} {number}".encode()).digest()[:4], "big")


def make(dotted: str, arguments: Mapping[str, Any], search_path: Path, inputs: Inputs | None = None) -> Made:
    """Call the factory with torch's seed set, so that what it draws is always the same. With `inputs`, it
    gives the model alone."""
    torch.manual_seed(seed_of("weights"))
    function = find(dotted, search_path)
    try:
        with torch.enable_grad():
            given = function(**arguments)
    except MemoryError:
        raise
    except Exception as error:
        if is_memory(error):
            raise
        raise BadFactory(f"{dotted} raises {_last(error)}") from error
    return _made(dotted, given) if inputs is None else _with_inputs(dotted, given, inputs)


def find(dotted: str, search_path: Path) -> Callable[..., Any]:
    """The function `module:name`; the module may be beside the suite."""
    module_name, _, name = dotted.partition(":")
    with searched_first(search_path):
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise BadFactory(f"importing {module_name} raises {_last(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        found = "nothing of that name" if function is None else f"a {type(function).__name__}"
        raise BadFactory(f"expected a function {name} in {module_name}, found {found}")
    made: Callable[..., Any] = function
    return made


def _made(dotted: str, given: Any) -> Made:
    wanted = "a pair of an nn.Module and its inputs"
    if isinstance(given, nn.Module):
        raise BadFactory(f"{dotted}: expected {wanted}, found a module alone, and the suite names no inputs")
    if not isinstance(given, tuple) or len(given) != 2:
        kind = f"a tuple of {len(given)}" if isinstance(given, tuple) else f"a {type(given).__name__}"
        raise BadFactory(f"{dotted}: expected {wanted}, found {kind}")
    model, inputs = given
    if not isinstance(model, nn.Module):
        raise BadFactory(f"{dotted}: expected {wanted}, found a {type(model).__name__} for the module")
    if not callable(inputs):
        fixed = _tensors(inputs)
        return Made(model, lambda generator: fixed)
    return Made(model, inputs)


def _with_inputs(dotted: str, given: Any, inputs: Inputs) -> Made:
    if not isinstance(given, nn.Module):
        found = "a pair" if isinstance(given, tuple) and len(given) == 2 else f"a {type(given).__name__}"
        raise BadFactory(
            f"{dotted}: expected an nn.Module alone, as the suite names its inputs, found {found}"
        )
    return Made(given, inputs)


def _tensors(given: Any) -> tuple[Tensor, ...]:
    if not isinstance(given, tuple | list) or not given:
        raise BadFactory(f"expected a tuple of tensors as inputs, found {type(given).__name__} {given!r:.60}")
    for index, each in enumerate(given):
        if not isinstance(each, Tensor):
            raise BadFactory(f"input {index}: expected a tensor, found {type(each).__name__} {each!r:.60}")
    return tuple(each.detach().contiguous() for each in given)


def is_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or bool(MEMORY.search(str(error)))


def _last(error: BaseException) -> str:
    """The exception and the line of the user's code that raised it."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{text[:600]}{where}"
