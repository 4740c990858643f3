"""Compute a PyTorch model on samples, and find what must not happen meanwhile: it changes its weights or its
inputs in place, draws random numbers, or gives something else than tensors.

`infer` and `infer_all` are for the model as the user gave it, and raise BadFactory with the line at fault;
`run_copied` is for modules of ours."""

from __future__ import annotations

import bdb
import math
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from ci.models.compiler_errors import describe_exception, known_of
from ci.models.mistakes import (
    draws_numbers,
    not_running,
    require_fitting,
    stops_for_debugger,
    wrong_type,
)
from ci.models.model_checks import computed_weights, refuse_computed
from ci.models.model_lines import users_line
from ci.models.user_model import BadFactory


def flops_of(model: nn.Module, sample: tuple[Tensor, ...]) -> float:
    """Count the floating-point operations in the matrix products and convolutions of one inference; infinite
    if they cannot be counted, as in a loop."""
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            run_copied(model, sample)
    except Exception:
        # What is wrong with the model itself is said where it runs.
        return math.inf
    return float(counter.get_total_flops())


DRAWS = 64
"""A model that draws random numbers runs so often with the same inputs, before its outputs count as equal."""


def infer(model: nn.Module, sample: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the outputs of one inference, in their own storage. The sample stays unchanged.

    Raises BadFactory for a model that keeps state: its outputs would depend on how often it ran before."""
    before = state_of_model(model)
    outputs = run_copied(model, sample)
    for name, (tensor, version) in state_of_model(model).items():
        if name in before and (tensor is not before[name][0] or version != before[name][1]):
            if name in (weights := computed_weights(model)):
                raise BadFactory(*refuse_computed(weights))
            where = _where_changed(model, sample, name)
            raise BadFactory(
                f"the model changes {name} while it runs{where}, so its outputs depend on earlier runs",
                "make the state an input and an output",
            )
    return outputs


def infer_all(model: nn.Module, samples: Sequence[tuple[Tensor, ...]], place: str = "") -> list[list[Tensor]]:
    """Return the outputs of one inference for each sample. `place` is where the user's code returns the
    samples.

    Raises BadFactory for a model that gives other outputs the second time: state may be in a list, dict or
    number, where `infer` does not see it."""
    outputs = [_first_outputs(model, samples[0], place)]
    try:
        outputs += [infer(model, sample) for sample in samples[1:]]
    except (IndexError, RuntimeError, ValueError) as error:
        raise BadFactory(
            f"the model runs with the first sample but fails with another: {describe_exception(error)}",
            "give samples that it runs with (--calibrate DIR), or a function of a torch.Generator that draws"
            " them",
        ) from error
    before = torch.get_rng_state()
    repeated = [infer(model, samples[0])]
    if not before.equal(torch.get_rng_state()):
        # What was drawn may be equal by chance, where there are few values.
        repeated += [infer(model, samples[0]) for _ in range(DRAWS)]
    if not all(_near_each(outputs[0], again) for again in repeated):
        if drawing := _drawing(model, samples[0]):
            raise draws_numbers(*drawing)
        raise BadFactory(
            "the model gives different outputs for the same inputs: it keeps state outside its buffers",
            "make the state an input and an output",
        )
    return outputs


def _near_each(first: Sequence[Tensor], again: Sequence[Tensor]) -> bool:
    return len(first) == len(again) and all(map(_near, first, again))


def _first_outputs(model: nn.Module, sample: tuple[Tensor, ...], place: str) -> list[Tensor]:
    require_fitting(model, sample, place)
    try:
        return infer(model, sample)
    except BadFactory:
        raise
    except Exception as error:
        if of_type := wrong_type(error, sample, place):
            raise of_type from error
        line = users_line(traceback.extract_tb(error.__traceback__)).strip(" ()")
        if isinstance(error, bdb.BdbQuit):
            raise stops_for_debugger(line) from error
        if not place or known_of(error):
            raise
        raise not_running(describe_exception(error), line, sample, place) from error


def _near(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are equal except for rounding, which may differ from run to run with many
    threads."""
    if one.shape != other.shape:
        return False
    one, other = one.double(), other.double()
    largest = float(one[one.isfinite()].abs().max()) if one.isfinite().any() else 0.0
    return bool(torch.allclose(one, other, rtol=0, atol=largest * 1e-3, equal_nan=True))


def run_copied(module: Callable[..., object], sample: tuple[Tensor, ...]) -> list[Tensor]:
    """Run a module on copies of its inputs, and return copies of its outputs."""
    with torch.no_grad():
        outputs = torch.utils._pytree.tree_leaves(module(*copy_sample(sample)))
    for output in outputs:
        if not isinstance(output, Tensor):
            message = f"the model returns a value of type {type(output).__name__}: expected only tensors"
            raise BadFactory(message, _fix_of_output(output))
    return [output.detach().clone(memory_format=torch.contiguous_format) for output in outputs]


def _fix_of_output(output: object) -> str:
    """Return the fix for a model that returns a number or an object: where the tensors are."""
    if isinstance(output, bool | int | float):
        return "return the tensor that it was made of: leave float(), int() or .item() out of forward"
    fields = [name for name, value in getattr(output, "__dict__", {}).items() if isinstance(value, Tensor)]
    if not fields:
        return "return the tensors in it"
    tensors = ", ".join(f"out.{name}" for name in fields)
    return f"call it out in forward, and return its tensors: `return {tensors}`"


def copy_sample(sample: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.clone() for tensor in sample)


def state_of_model(model: nn.Module) -> dict[str, tuple[Tensor, int]]:
    """Return the parameters, buffers and plain tensors of every module, each with its count of in-place
    changes."""
    versions = {}
    for prefix, module in model.named_modules():
        tensors = {**module._parameters, **module._buffers, **vars(module)}
        for name, tensor in tensors.items():
            if isinstance(tensor, Tensor):
                versions[f"{prefix}.{name}".lstrip(".")] = (tensor, tensor._version)
    return versions


def _where_changed(model: nn.Module, sample: tuple[Tensor, ...], name: str) -> str:
    """Return the line that changes a tensor of the model in place; empty if the tensor is assigned anew."""
    with _Changes(lambda: state_of_model(model)[name][1]) as changes:
        run_copied(model, sample)
    return str(changes.line)


def where_input_changes(model: nn.Module, sample: tuple[Tensor, ...]) -> str | None:
    """Return the line (` (file:line)`) where the model changes one of its inputs in place; None if it does
    not."""
    inputs = copy_sample(sample)
    with _Changes(lambda: [input_._version for input_ in inputs]) as changes, torch.no_grad():
        model(*inputs)
    return str(changes.line) if any(input_._version for input_ in inputs) else None


def _drawing(model: nn.Module, sample: tuple[Tensor, ...]) -> tuple[str, str] | None:
    """Return the function that draws random numbers, and its line (` (file:line)`); None if the model draws
    none."""
    with _Changes(lambda: torch.get_rng_state().numpy().tobytes()) as changes:
        run_copied(model, sample)
    return (changes.function, changes.line) if changes.function else None


class _Changes(TorchFunctionMode):
    """Finds the first call that changes `version`, and its line."""

    def __init__(self, version: Callable[[], object]) -> None:
        super().__init__()
        self._version = version
        self.line: str = ""
        self.function: str = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._version()
        result = func(*args, **(kwargs or {}))
        if not self.function and self._version() != before:
            self.line = users_line(traceback.extract_stack())
            self.function = getattr(func, "__name__", str(func))
        return result
