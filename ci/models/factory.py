"""Build a model: import the factory, call it, and check what it returns. Also draw the inputs that a suite
names, or read them from a folder with one file per sample: `.npy`, `.npz` with an array for each input, or
`.pt`."""

from __future__ import annotations

import bdb
import hashlib
import importlib
import math
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from ci.models import model_lines
from ci.models.compiler_errors import describe_exception, explain_error, known_of
from ci.models.inputs import (
    Input,
    InputsUsed,
    drawn_compared,
    most_calibrating,
    read_array,
    read_arrays,
    shares_of,
)
from ci.models.mistakes import (
    bad_syntax,
    compiled_by_torch,
    draws_numbers,
    ends_python,
    functions_like,
    inputs_by_name,
    missing_inputs,
    modules_like,
    no_values,
    not_a_function,
    not_a_number,
    not_running,
    not_tensors,
    not_the_model,
    other_count,
    other_kind,
    other_names,
    parameters_of,
    quantized_by_torch,
    require_called,
    require_enough,
    require_fitting,
    require_on_cpu,
    stops_for_debugger,
    wrong_type,
)
from ci.models.model_lines import users_line
from ci.models.sample_files import sample_files
from ci.models.user_model import EXPORTED, BadFactory, search_first, where_paths_begin
from ci.models.vision_operators import define_vision_operators
from provisioning.base.errors import CheckFailed
from provisioning.base.files import repository_of

QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")
"""Packages of modules that torch.ao.quantization puts in place of float ones."""

CALIBRATION_SEED = 1000
"""Samples from this number on are for calibration. Compared samples are numbered from 0."""
DRAWS = 64
"""A model that draws random numbers runs so often with the same inputs, before its outputs count as equal."""

Inputs = Callable[[torch.Generator], tuple[Tensor, ...]]


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
    """The user's data has one file per sample, and replaces the factory's own inputs."""

    files: tuple[Path, ...]
    read: Callable[[Path, Sequence[str]], tuple[Tensor, ...]]
    """It reads a file, given the names of the model's inputs."""
    names: tuple[str, ...] = ()
    like: tuple[Tensor, ...] | None = None
    """Every sample must have the types and shapes of this one."""
    example: tuple[Tensor, ...] | None = None
    """The model comes with this sample, which also calibrates."""

    def fitting(self, model: nn.Module, own: ModelWithInputs | None) -> Samples:
        """Return these samples, which from now on refuse what the model does not take. `own` is the model
        with the inputs that it comes with."""
        samples = replace(self, names=parameters_of(model.forward))
        if own is None:
            first = samples.sample(0)
            require_enough(model.forward, first, self.files[0])
            return replace(samples, like=first)
        return replace(samples, like=own.sample(0), example=own.first)

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
    return Samples(tuple(sample_files(folder)), _sample)


def _sample(path: Path, names: Sequence[str]) -> tuple[Tensor, ...]:
    try:
        tensors = _read(path, names)
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


def _read(path: Path, names: Sequence[str]) -> Sequence[object]:
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


class ChosenSamples(NamedTuple):
    compared: list[tuple[Tensor, ...]]
    calibrating: list[tuple[Tensor, ...]]
    used: InputsUsed


@dataclass(frozen=True)
class ModelWithInputs:
    model: nn.Module
    inputs: Inputs | Samples
    first: tuple[Tensor, ...] | None = None
    """This is the only sample, if the factory returns no input function."""
    notes: tuple[tuple[str, str], ...] = ()
    """Each note has a rule and a message for the author."""
    place: str = ""
    """It is FILE:LINE where the user's function returns the inputs; empty if none does."""

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
    _refuse_script(dotted, product)
    if inputs is None and isinstance(product, nn.Module):
        raise missing_inputs(dotted, factory, product)
    result = _pair_own_inputs(dotted, product) if inputs is None else _pair_inputs(dotted, product, inputs)
    _refuse_compiled(dotted, result.model)
    _refuse_quantized(dotted, result.model)
    state = {name: tensor for name, (tensor, _) in _state(result.model).items()}
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


def _refuse_quantized(dotted: str, model: nn.Module) -> None:
    for name, module in model.named_modules():
        if type(module).__module__.startswith(QUANTIZED):
            raise quantized_by_torch(dotted, name, type(module).__name__)


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
    require_on_cpu(str(path), {name: tensor for name, (tensor, _) in _state(model).items()})
    if inputs is None:
        return replace(own, notes=(*own.notes, *notes))
    fitting = inputs.fitting(model, own) if isinstance(inputs, Samples) else inputs
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
    _refuse_script(dotted, model)
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
    return ModelWithInputs(product, inputs.fitting(product, own) if isinstance(inputs, Samples) else inputs)


def _refuse_compiled(dotted: str, model: nn.Module) -> None:
    for name, module in model.named_modules():
        # The class that torch.compile returns is slow to import.
        if "_orig_mod" in module._modules:
            raise compiled_by_torch(dotted, name)


def _refuse_script(dotted: str, model: object) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        message = f"{dotted} returns a ScriptModule, which torch.export does not support"
        raise BadFactory(message, "return the nn.Module itself, without torch.jit.script and torch.jit.trace")


def _tensors(sample: object) -> tuple[Tensor, ...]:
    """Copy a sample's tensors, so that a model that changes its inputs does not change other samples."""
    if not isinstance(sample, tuple | list) or not sample or not all(isinstance(x, Tensor) for x in sample):
        raise not_tensors(sample)
    for number, tensor in enumerate(sample):
        if not tensor.numel():
            raise no_values(number, tensor)
    require_on_cpu("the model's inputs", {f"input {number}": tensor for number, tensor in enumerate(sample)})
    return tuple(tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in sample)


def require_float32(tensors: Iterable[Tensor]) -> None:
    """Refuse types that a compiled program would read or write as another type."""
    for tensor in tensors:
        if tensor.dtype in (torch.float64, torch.bfloat16):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise BadFactory(
                f"the model has inputs or outputs in {kind}, which the compiler does not support: use float32"
                " (model.float(), and its inputs); fp16 then computes it in fp16",
                "return model.float(), tuple(x.float() for x in inputs)",
            )


def refuse_halves(model: nn.Module, precision: str) -> None:
    """Refuse a model with float16 weights: quantizing observes float32, and gives nonsense for float16."""
    halves = [name for name, weight in model.named_parameters() if weight.dtype is torch.float16]
    if halves:
        raise BadFactory(
            f"the model is in float16 (.half()): {halves[0]} is, and {precision} quantizes a float32 model",
            "return model.float(), tuple(x.float() for x in inputs); --precision fp16 computes it in float16",
        )


REMOVED_BY = {"WeightNorm": "remove_weight_norm", "SpectralNorm": "remove_spectral_norm"}
"""Maps the class of a hook that computes a weight in each run to the function that makes this weight a
constant."""


def computed_weights(model: nn.Module) -> dict[str, str]:
    """Return the weights that are computed in each run, by name, each with the call that makes it a
    constant."""
    calls = {}
    for name, module in model.named_modules():
        place = f'model.get_submodule("{name}")' if name else "model"
        for weight in module.parametrizations if parametrize.is_parametrized(module) else ():
            call = f'torch.nn.utils.parametrize.remove_parametrizations({place}, "{weight}")'
            calls[f"{name}.{weight}".lstrip(".")] = call
        for hook in module._forward_pre_hooks.values():
            if remove := REMOVED_BY.get(type(hook).__name__):
                calls[f"{name}.{hook.name}".lstrip(".")] = f"torch.nn.utils.{remove}({place})"
    return calls


def refuse_computed(calls: Mapping[str, str]) -> tuple[str, str]:
    names = list(calls)
    more = f", and the same for {', '.join(names[1:])}" if len(names) > 1 else ""
    message = (
        f"{', '.join(names)}: computed in each run (weight_norm, spectral_norm or another parametrization),"
        " but the compiler needs constant weights"
    )
    return message, f"before the model is returned, {calls[names[0]]}{more}"


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


def infer(model: nn.Module, sample: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the outputs of one inference, in their own storage. The sample stays unchanged.

    Raises BadFactory for a model that keeps state: its outputs would depend on how often it ran before."""
    before = _state(model)
    outputs = run_copied(model, sample)
    for name, (tensor, version) in _state(model).items():
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


def _state(model: nn.Module) -> dict[str, tuple[Tensor, int]]:
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
    with _Changes(lambda: _state(model)[name][1]) as changes:
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


def is_quantized(model: nn.Module) -> bool:
    graph = getattr(model, "graph", None) or getattr(getattr(model, "model", None), "graph", None)
    return graph is not None and any("quantized_decomposed" in str(node.target) for node in graph.nodes)
