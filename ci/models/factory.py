"""Build the model that a user names: import the factory, call it with a fixed seed, and check what it
returns.

`make` is for a suite or a command line; its result is a `ModelWithInputs`, which gives the samples to compare
and to calibrate with. A mistake of the author becomes BadFactory, with the line to write instead
(`mistakes`)."""

from __future__ import annotations

import hashlib
import importlib
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ci.models import model_lines
from ci.models.compiler_errors import describe_exception, explain_error, known_of
from ci.models.inference import flops_of, infer_all, state_of_model
from ci.models.inputs import (
    InputsUsed,
    drawn_compared,
    most_calibrating,
    shares_of,
)
from ci.models.mistakes import (
    bad_syntax,
    ends_python,
    functions_like,
    inputs_by_name,
    missing_inputs,
    modules_like,
    no_values,
    not_a_function,
    not_a_number,
    not_tensors,
    not_the_model,
    parameters_of,
    require_called,
    require_on_cpu,
)
from ci.models.model_checks import refuse_compiled, refuse_quantized, refuse_script
from ci.models.model_lines import users_line
from ci.models.model_samples import Inputs, Samples, require_like
from ci.models.user_model import EXPORTED, BadFactory, search_first, where_paths_begin
from ci.models.vision_operators import define_vision_operators
from provisioning.base.files import repository_of

CALIBRATION_SEED = 1000
"""Samples from this number on are for calibration. Compared samples are numbered from 0."""


class ChosenSamples(NamedTuple):
    compared: list[tuple[Tensor, ...]]
    calibrating: list[tuple[Tensor, ...]]
    used: InputsUsed


@dataclass(frozen=True)
class ModelWithInputs:
    model: nn.Module
    inputs: Inputs | Samples
    first: tuple[Tensor, ...] | None = None
    """The only sample, if the factory returns no input function."""
    notes: tuple[tuple[str, str], ...] = ()
    """Each note has a rule and a message for the author."""
    place: str = ""
    """FILE:LINE where the user's function returns the inputs; empty if none does."""

    def outputs(self, samples: Sequence[tuple[Tensor, ...]]) -> list[list[Tensor]]:
        """Return the outputs of one inference for each sample."""
        return infer_all(self.model, samples, self.place)

    def choose(self, inferences: int | None, calibration: int | None) -> ChosenSamples:
        """Choose the samples to compare and to calibrate with, at most as many as given; None means the usual
        number."""
        if isinstance(self.inputs, Samples):
            data = self.inputs
            to_compare, to_calibrate = shares_of(len(data.files), inferences, calibration)
            compared = [data.sample(number) for number in to_compare]
            calibrating = [data.sample(number) for number in to_calibrate]
            counts = InputsUsed(len(compared), len(calibrating), len(data.files))
            if calibrating and data.example:
                calibrating = [data.example, *calibrating][: most_calibrating(calibration, has_data=True)]
            return ChosenSamples(compared, calibrating, counts)
        if self.first is not None:
            calibrating = [] if calibration == 0 else [self.sample(0)]
            return ChosenSamples([self.sample(0)], calibrating, InputsUsed(1, len(calibrating), given=1))
        count = most_calibrating(calibration, has_data=False)
        numbers = range(inferences or drawn_compared(flops_of(self.model, self._example)))
        compared = [self.sample(number) for number in numbers]
        calibrating = self.drawn_to_calibrate(count)
        return ChosenSamples(compared, calibrating, InputsUsed(len(compared), count))

    def drawn_to_calibrate(self, count: int) -> list[tuple[Tensor, ...]]:
        return [self.sample(CALIBRATION_SEED + index) for index in range(count)]

    def sample(self, number: int) -> tuple[Tensor, ...]:
        sample = self._drawn(number)
        if number:
            require_like(sample, self._example, "another sample", parameters_of(self.model.forward))
        return sample

    @cached_property
    def _example(self) -> tuple[Tensor, ...]:
        return self._drawn(0)

    def _drawn(self, number: int) -> tuple[Tensor, ...]:
        if number == 0 and self.first is not None:
            return _tensors(self.first)
        if isinstance(self.inputs, Samples):
            return self.inputs.sample(number)
        try:
            return _tensors(self.inputs(torch.Generator().manual_seed(seed_of("inputs", number))))
        except BadFactory:
            raise
        except Exception as error:
            message = f"its function for inputs raises {describe_exception(error)}"
            raise BadFactory(message, _fix_of_call(error)) from error


def seed_of(stream: str, number: int = 0) -> int:
    """Return the seed of a stream. Each has its own random numbers: with the weights' seed, the inputs would
    repeat the weights."""
    return int.from_bytes(hashlib.sha256(f"{stream} {number}".encode()).digest()[:4], "big")


def make(
    dotted: str,
    arguments: Mapping[str, object],
    search_path: Path,
    inputs: Inputs | Samples | None = None,
    *,
    non_finite: bool = False,
) -> ModelWithInputs:
    """Call the factory with a fixed seed, so that it always draws the same numbers.

    With `inputs`, the factory returns only the model. The model is switched to eval mode. With `non_finite`,
    its parameters may be NaN."""
    if dotted.endswith(".pt2"):
        _begin(search_path)
        return _load_exported(search_path / dotted, arguments, inputs)
    factory = factory_of(dotted, arguments, search_path)
    product = call(dotted, factory, arguments)
    return model_of(dotted, product, inputs, factory, non_finite=non_finite)


def _begin(search_path: Path) -> None:
    model_lines.clones.append(repository_of(search_path / "suite"))
    torch.manual_seed(seed_of("weights"))
    # In eval mode torch's attention and encoder layers become fused operators, which no compiler takes.
    torch.backends.mha.set_fastpath_enabled(False)
    define_vision_operators()


def factory_of(dotted: str, arguments: Mapping[str, object], search_path: Path) -> Callable[..., object]:
    """Find the factory. Refuse one that is no function or does not take these arguments."""
    _begin(search_path)
    factory = attribute_of(dotted, search_path)
    if isinstance(factory, nn.Module) or not callable(factory):
        raise not_a_function(dotted, factory)
    require_called(dotted, factory, arguments)
    function: Callable[..., object] = factory
    return function


def call(dotted: str, factory: Callable[..., object], arguments: Mapping[str, object]) -> object:
    """Call the factory and return its result. Errors in the user's code become BadFactory."""
    try:
        with torch.enable_grad():
            return factory(**arguments)
    except SystemExit as error:
        raise ends_python(dotted, error) from error
    except Exception as error:
        if known_of(error):
            message, fix = explain_error(error)
            raise BadFactory(f"{dotted}: {message}", fix) from error
        raise BadFactory(f"{dotted} raises {describe_exception(error)}", _fix_of_call(error)) from error


WRAPPED = re.compile(r'Unexpected key\(s\) in state_dict: "(module\.|_orig_mod\.|model\.)')
"""Weights that were saved of DataParallel, of torch.compile, or of a module that holds the model."""


def _fix_of_call(error: Exception) -> str:
    """Return the fix for an error in the user's code."""
    if isinstance(error, ModuleNotFoundError):
        return (
            "export the model in your own environment, which has it:"
            ' torch.export.save(torch.export.export(model.eval(), inputs), "net.pt2"), and compile net.pt2;'
            ' in a suite: requirements = "requirements.txt"'
        )
    place = users_line(traceback.extract_tb(error.__traceback__)).strip(" ()")
    if "no known parent package" in str(error):
        return f"write an empty __init__.py beside {place.partition(':')[0]}, or the import without its dot"
    if wrapped := WRAPPED.search(str(error)):
        keys = f'name.removeprefix("{wrapped[1]}")'
        return f"at {place} write `load_state_dict({{{keys}: value for name, value in weights.items()}})`"
    return where_paths_begin(error) or f"correct {place or 'your own code, which raises it'}"


def model_of(
    dotted: str,
    product: object,
    inputs: Inputs | Samples | None,
    factory: Callable[..., object],
    *,
    non_finite: bool = False,
) -> ModelWithInputs:
    """Return the model that a factory returned, in eval mode, with its inputs. Refuse parameters that are
    NaN, unless `non_finite`."""
    refuse_script(dotted, product)
    if inputs is None and isinstance(product, nn.Module):
        raise missing_inputs(dotted, factory, product)
    result = _pair_own_inputs(dotted, product) if inputs is None else _pair_inputs(dotted, product, inputs)
    refuse_compiled(dotted, result.model)
    refuse_quantized(dotted, result.model)
    state = {name: tensor for name, (tensor, _) in state_of_model(result.model).items()}
    require_on_cpu(dotted, state)
    for name, weight in state.items():
        if not non_finite and isinstance(weight, nn.Parameter) and weight.isnan().any():
            raise not_a_number(name, weight)
    modules = list(result.model.modules())
    notes: list[tuple[str, str]] = []
    if any(EXPORTED in vars(module) for module in modules):
        from ci.models.exported import into_eval

        notes = into_eval(result.model, "a module that the factory exports")
    elif any(module.training for module in modules):
        result.model.eval()
        note = "the factory returns the model in training mode; it was compiled in eval mode: call .eval()"
        notes = [("training-mode", note)]
    place = ""
    if isinstance(product, tuple) and not isinstance(inputs, Samples):
        place = _end_of(product[1] if callable(product[1]) else factory)
    return replace(result, notes=(*result.notes, *notes), place=place)


def _end_of(function: Callable[..., object]) -> str:
    """Return FILE:LINE where a function of the user's ends; empty for other callables."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    last = max(line for *_, line in code.co_lines() if line)
    return f"{model_lines.relative_path(code.co_filename)}:{last}"


def _load_exported(
    path: Path, arguments: Mapping[str, object], inputs: Inputs | Samples | None
) -> ModelWithInputs:
    from ci.models.exported import load_exported

    if arguments:
        raise BadFactory(f"{path} is a model file, so it takes no arguments", "leave arguments out")
    model, tensors, notes = load_exported(path)
    own = fixed_inputs(model, tensors)
    require_on_cpu(str(path), {name: tensor for name, (tensor, _) in state_of_model(model).items()})
    if inputs is None:
        return replace(own, notes=(*own.notes, *notes))
    fitting = _fit_samples(inputs, model, own) if isinstance(inputs, Samples) else inputs
    return ModelWithInputs(model, fitting, notes=tuple(notes))


def attribute_of(dotted: str, search_path: Path) -> Any:
    """Return the object that is called `module:name`; None if there is none. The module, and what it imports
    later, may be beside the suite."""
    module_name, _, name = dotted.partition(":")
    search_first(search_path)
    try:
        module = importlib.import_module(module_name)
    except SyntaxError as error:
        raise bad_syntax(error) from error
    except SystemExit as error:
        raise ends_python(f"importing {module_name}", error) from error
    except Exception as error:
        meant = modules_like(module_name, search_path)
        if meant and isinstance(error, ModuleNotFoundError) and error.name == module_name:
            message = f"there is no module {module_name} in {search_path}, nor in Python"
            raise BadFactory(message, f"did you mean {meant[0]}?") from None
        message = f"importing {module_name} raises {describe_exception(error)}"
        raise BadFactory(message, _fix_of_call(error)) from error
    return getattr(module, name, None)


def find(dotted: str, search_path: Path) -> Callable[..., object]:
    """Return the function `module:name`; refuse anything that cannot be called."""
    function: Callable[..., object] | None = attribute_of(dotted, search_path)
    if not callable(function):
        module, _, name = dotted.partition(":")
        actual = "nothing of that name" if function is None else f"a {type(function).__name__}"
        message = f"expected a function {name} in {module}, found {actual}"
        fix = functions_like(module, name) or f"write `def {name}(…)` in {module}"
        raise BadFactory(message, fix)
    return function


def _pair_own_inputs(dotted: str, product: object) -> ModelWithInputs:
    if not isinstance(product, tuple) or len(product) != 2 or not isinstance(product[0], nn.Module):
        raise not_the_model(dotted, product)
    model, inputs = product
    refuse_script(dotted, model)
    if callable(inputs):
        return ModelWithInputs(model, inputs)
    return fixed_inputs(model, inputs)


def fixed_inputs(model: nn.Module, inputs: object) -> ModelWithInputs:
    """Return a model with one sample; where more are needed, they are drawn to resemble it."""
    if isinstance(inputs, Mapping):
        raise inputs_by_name(inputs, model)
    fixed = _tensors(inputs)
    note = (
        "the model comes with one sample, which calibrates and judges: give a folder (--calibrate DIR;"
        ' in a suite, samples = "DIR"), or a function of a torch.Generator that draws them'
    )

    def alike(generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(_like(tensor, generator) for tensor in fixed)

    return ModelWithInputs(model, alike, fixed, (("fixed-inputs", note),))


def _like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Draw values evenly between the smallest and largest of each input; a constant stays the same. Integers
    in several rows stay within the range of their column: each column may index another table."""
    if not tensor.numel() or not torch.isfinite(tensor).all():
        return tensor
    low, high = tensor.min(), tensor.max()
    if tensor.dtype.is_floating_point:
        uniform = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        return (low + (high - low) * uniform).to(tensor.dtype)
    values = torch.randint(int(low), int(high) + 1, tensor.shape, generator=generator)
    if tensor.ndim > 1 and len(tensor) > 1:
        values = values.clamp(tensor.long().amin(0), tensor.long().amax(0))
    return values.to(tensor.dtype)


def _fit_samples(samples: Samples, model: nn.Module, own: ModelWithInputs | None) -> Samples:
    """Have the user's samples fit the model. `own` is the model with the inputs that it comes with."""
    return samples.fitting(model) if own is None else samples.fitting(model, own.sample(0), own.first)


def _pair_inputs(dotted: str, product: object, inputs: Inputs | Samples) -> ModelWithInputs:
    own = None
    if isinstance(inputs, Samples) and isinstance(product, tuple) and len(product) == 2:
        own = _pair_own_inputs(dotted, product)
        product = own.model
    if not isinstance(product, nn.Module):
        pair = isinstance(product, tuple) and len(product) == 2
        actual = "a pair" if pair else f"a {type(product).__name__}"
        message = f"{dotted}: expected an nn.Module alone, as the suite names its inputs, found {actual}"
        raise BadFactory(message, "return model")
    return ModelWithInputs(
        product, _fit_samples(inputs, product, own) if isinstance(inputs, Samples) else inputs
    )


def _tensors(sample: object) -> tuple[Tensor, ...]:
    """Copy a sample's tensors, so that a model that changes its inputs does not change other samples."""
    if not isinstance(sample, tuple | list) or not sample or not all(isinstance(x, Tensor) for x in sample):
        raise not_tensors(sample)
    for number, tensor in enumerate(sample):
        if not tensor.numel():
            raise no_values(number, tensor)
    require_on_cpu("the model's inputs", {f"input {number}": tensor for number, tensor in enumerate(sample)})
    return tuple(tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in sample)
