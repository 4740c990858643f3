"""Say what is wrong where users give something else in place of a model, its inputs or samples, and which
line to write instead.

Each function refuses one mistake, or returns the error for one: the factory returned only the model, a sample
lacks an input, the model lies on a GPU."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor, nn

from ci.models import model_lines
from ci.models.user_model import BadFactory

NAMED = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
RETURN = "`return model, (x,)`"
AS_PT2 = (
    "export it with these inputs, which takes them apart:"
    ' torch.export.save(torch.export.export(model, inputs), "net.pt2"); then compile net.pt2'
)
AS_PT2_BY_NAME = AS_PT2.replace("(model, inputs)", "(model, (), inputs)")
ON_CPU = "`return model.cpu(), tuple(x.cpu() for x in inputs)`"
SCALARS = (bool, int, float, str, type(None))


def parameters_of(forward: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of the inputs that a model's forward takes by position."""
    parameters = inspect.signature(forward).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in POSITIONAL)


def _inputs_of(forward: Callable[..., object], *, first: int = 0) -> tuple[str, ...]:
    """Return the inputs that forward requires; its first one if it requires none."""
    parameters = [*inspect.signature(forward).parameters.values()][first:]
    places = [parameter for parameter in parameters if parameter.kind in NAMED]
    names = [parameter.name for parameter in places if parameter.default is inspect.Parameter.empty]
    return tuple(names or [parameter.name for parameter in places[:1]] or ["x"])


def require_enough(forward: Callable[..., object], sample: Sequence[Tensor], file: Path) -> None:
    """Refuse a sample without an input that the model needs."""
    if len(sample) < len(names := _inputs_of(forward)):
        raise other_count(str(file), len(sample), names)


def require_fitting(model: nn.Module, sample: Sequence[Tensor], place: str) -> None:
    """Refuse inputs that the model's forward does not take. `place` is where they are returned."""
    signature = inspect.signature(model.forward)
    by_name = [
        name for name, row in signature.parameters.items() if row.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    needed = [name for name in by_name if signature.parameters[name].default is inspect.Parameter.empty]
    if needed:
        raise _keyword_only_error(type(model).__name__, [*parameters_of(model.forward), *needed], needed)
    try:
        signature.bind(*sample)
    except TypeError:
        names = _inputs_of(model.forward)
        message = f"forward takes {', '.join(names)}: expected {len(names)} inputs, found {len(sample)}"
        where = f" at {place}" if place else ""
        raise BadFactory(message, f"`return model, {_tuple(names)}`{where}, {_tensors_like(names)}") from None


def _keyword_only_error(kind: str, names: Sequence[str], needed: Sequence[str]) -> BadFactory:
    listed = ", ".join(names)
    call = ", ".join(f"{name}={name}" if name in needed else name for name in names)
    return BadFactory(
        f"{kind}.forward takes {', '.join(needed)} by name alone (behind its `*`), and torch.export gives a"
        " program's inputs by position",
        f"leave the `*` of forward out; or wrap the model:\n"
        f"class ByPosition(torch.nn.Module):\n"
        f"    def __init__(self, model):\n"
        f"        super().__init__()\n"
        f"        self.model = model\n"
        f"    def forward(self, {listed}):\n"
        f"        return self.model({call})\n"
        f"and `return ByPosition(model), {_tuple(names)}`",
    )


WRONG_TYPES = (
    (
        re.compile(
            r"Input type \(.*\) and (?:bias|weight) type \((?:torch\.)?float"
            r"|expected m1 and m2 to have the same dtype, but got: (?:long|int|double|unsigned).* != float"
            r"|mat1 and mat2 must have the same dtype, but got (?:Long|Int|Byte|Double).* and Float"
        ),
        "float",
    ),
    (re.compile("one of the following scalar types: Long, Int|tensors used as indices must be long"), "long"),
)
"""Each pattern matches what torch says if an input has another type than the model needs; beside it is the
method that converts a tensor to the right type."""


def wrong_type(error: Exception, sample: Sequence[Tensor], place: str) -> BadFactory | None:
    """Return the error for a model whose own inputs have a type that it does not take; None for other
    errors."""
    method = next((method for pattern, method in WRONG_TYPES if pattern.search(str(error))), "")
    wrong = {"float": torch.float32, "long": torch.int64}.get(method)
    if wrong is None or all(tensor.dtype is wrong for tensor in sample):
        return None
    message = f"forward does not take inputs of these types, {_kinds(sample)}: {error}"
    where = f" at {place}" if place else ""
    return BadFactory(message, f"`return model, (x.{method}(),)`{where}")


def not_running(words: str, line: str, sample: Sequence[Tensor], place: str) -> BadFactory:
    """Return the error for a model that raises with its first inputs."""
    return BadFactory(
        f"the model does not run with its inputs, {_kinds(sample)}: {words}",
        f"give forward the inputs that it takes, at {place}" + (f"; or correct {line}" if line else ""),
    )


def stops_for_debugger(line: str) -> BadFactory:
    return BadFactory(
        f"the model stops for a debugger before {line}, and its process has no terminal to answer it",
        "remove breakpoint() or pdb.set_trace() there",
    )


def _kinds(sample: Sequence[Tensor]) -> str:
    return ", ".join(f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in sample)


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)},)" if len(names) == 1 else f"({', '.join(names)})"


def _tensors_like(names: Sequence[str]) -> str:
    return f"with a tensor for each, as by `{names[0]} = torch.rand(1, 3, 224, 224)`"


def missing_inputs(dotted: str, factory: object, model: nn.Module) -> BadFactory:
    """Return the error for a factory that returns only the model."""
    names = _inputs_of(model.forward)
    line = f"`return model, {_tuple(names)}` {_tensors_like(names)}"
    if inspect.isclass(factory):
        name = factory.__name__
        function = f"`def make_{name}(): return {name}(), {_tuple(names)}`"
        line = f"{function} {_tensors_like(names)}; and name make_{name}"
    return BadFactory(
        f"{dotted} gives the model alone, and nothing gives its inputs: {', '.join(names)}",
        f'{line}; or --calibrate DIR, with samples (in a suite samples = "DIR")',
    )


def not_a_function(dotted: str, value: object) -> BadFactory:
    """Return the error for a factory's name that stands for no function."""
    module, _, name = dotted.partition(":")
    product, hint = "model, (x,)", " with a model and its inputs"
    if isinstance(value, nn.Module):
        names = _inputs_of(value.forward)
        product, hint = f"{name}, {_tuple(names)}", f" {_tensors_like(names)}"
    kind = "nothing of that name" if value is None else f"a {type(value).__name__}"
    fix = f"`def make_{name}(): return {product}`{hint}; and name make_{name}"
    fix = (functions_like(module, name) if value is None else "") or fix
    return BadFactory(f"{dotted}: expected a function that returns the model, found {kind}", fix)


def functions_like(module: str, name: str) -> str:
    """Say which function of an imported module may be meant; empty if it defines none itself."""
    functions = [
        function
        for function, value in vars(sys.modules[module]).items()
        if inspect.isfunction(value) and value.__module__ == module and not function.startswith("_")
    ]
    if near := get_close_matches(name, functions, n=1):
        return f"did you mean {module}:{near[0]}?"
    return f"use one of: {', '.join(f'{module}:{function}' for function in functions)}" if functions else ""


def require_called(dotted: str, factory: Callable[..., object], arguments: Mapping[str, object]) -> None:
    """Refuse a factory that cannot be called with these arguments."""
    try:
        signature = inspect.signature(factory)
    except ValueError:
        # A function in C tells no signature.
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        unknown = next((name for name in arguments if name not in signature.parameters), "")
        if near := get_close_matches(unknown, signature.parameters, n=1):
            raise BadFactory(f"{dotted}: {error}", f"did you mean {near[0]}?") from None
        names = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.default is inspect.Parameter.empty and parameter.kind in POSITIONAL
        ]
        name = dotted.rpartition(":")[2]
        call = f"{name}({', '.join(f'{argument}=…' for argument in names)})"
        product = call
        forward = getattr(factory, "forward", None)
        if forward and isinstance(factory, type) and issubclass(factory, nn.Module):
            product = f"{call}, {_tuple(_inputs_of(forward, first=1))}"
        others = ", ".join(f"{dotted.rpartition(':')[0]}:{other}" for other in _callable_alone(factory))
        table = f"{{ {', '.join(f'{argument} = …' for argument in names)} }}"
        alone = f"name one that takes nothing: {others}; or " if others else ""
        wrapped = f"`def make_{name}(): return {product}`, and name make_{name}"
        raise BadFactory(
            f"{dotted} takes {', '.join(signature.parameters) or 'no arguments'}: {error}",
            f"{alone}{wrapped}; in a suite `arguments = {table}`",
        ) from None


def _callable_alone(factory: object) -> list[str]:
    """Return the functions of a factory's module that can be called without arguments."""
    module = sys.modules.get(getattr(factory, "__module__", ""))
    functions = inspect.getmembers(module, inspect.isfunction)
    return [
        name
        for name, function in functions
        if function.__module__ == factory.__module__ and not _required(function)
    ]


def _required(function: Callable[..., object]) -> list[str]:
    """Return the names of the parameters that a call must give."""
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in VARIADIC
    ]


def not_the_model(dotted: str, product: object) -> BadFactory:
    """Return the error for a factory that returns no pair of a model and its inputs."""
    kind = f"a {type(product).__name__}"
    if isinstance(product, tuple):
        kind = f"({', '.join(type(part).__name__ for part in product)})"
    message = f"{dotted}: expected a pair of an nn.Module and its inputs, found {kind}"
    if inspect.iscoroutine(product):
        product.close()
        return BadFactory(message, "write `def` in place of `async def`")
    if inspect.isgenerator(product):
        return BadFactory(message, "write `return` in place of `yield`")
    if isinstance(product, Mapping) and all(isinstance(value, Tensor) for value in product.values()):
        return BadFactory(f"{message} of tensors, as state_dict() gives", f"{RETURN}, with the module itself")
    model = product[0] if isinstance(product, tuple) and product else product
    if inspect.isclass(model) and issubclass(model, nn.Module):
        name, forward = model.__name__, getattr(model, "forward")  # noqa: B009
        inputs = _tuple(_inputs_of(forward, first=1))
        return BadFactory(f"{message}: {name} is a class", f"make a model of it: `return {name}(), {inputs}`")
    if isinstance(product, tuple) and callable(model) and not isinstance(model, nn.Module):
        name = getattr(model, "__name__", type(model).__name__)
        return BadFactory(
            message, f"make {name} a torch.nn.Module, whose forward does what a call of it does"
        )
    return BadFactory(message, RETURN)


def require_on_cpu(dotted: str, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu":
            message = f"{dotted}: {name} is on {tensor.device}, but a model is compiled on the CPU"
            size = ", ".join(map(str, tensor.shape))
            values = f"it has no values there: make it on the CPU, as torch.rand({size})"
            raise BadFactory(message, values if tensor.is_meta else ON_CPU)


def inputs_by_name(inputs: Mapping[str, object], model: nn.Module) -> BadFactory:
    """Return the error for inputs by name, which a program does not have."""
    names = parameters_of(model.forward)[: len(inputs)]
    message = "expected a tuple of tensors as inputs, found a dict: a program has no names"
    if set(names) != set(inputs):
        return BadFactory(message, AS_PT2_BY_NAME)
    values = ", ".join(f'inputs["{name}"]' for name in names)
    return BadFactory(message, f"give them in the order of forward: `return model, ({values},)`")


def not_tensors(inputs: object) -> BadFactory:
    """Return the error for a model's inputs that are not all tensors."""
    words = "expected a tuple of tensors as inputs"
    if not isinstance(inputs, tuple | list) or not inputs:
        return BadFactory(f"{words}, found {_kind(inputs)}", _fix_of_array(inputs) or RETURN)
    number = next(number for number, value in enumerate(inputs) if not isinstance(value, Tensor))
    message = f"input {number}: expected a tensor, found {_kind(inputs[number])}"
    if all(isinstance(value, int | float) for value in inputs):
        return BadFactory(message, f"make a tensor of the numbers: `return model, (torch.tensor({inputs}),)`")
    return BadFactory(message, _fix_of_array(inputs[number]) or AS_PT2)


def _fix_of_array(value: object) -> str:
    """Return the line that makes a tensor of an array; empty if the value is no array."""
    is_array = hasattr(value, "__array__") and not isinstance(value, Tensor)
    return "`return model, (torch.from_numpy(array),)`" if is_array else ""


def _kind(value: object) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__} {value.dtype}{list(value.shape)}"
    if isinstance(value, SCALARS):
        return f"{type(value).__name__} {value!r:.60}"
    return f"a {type(value).__name__}"


def ends_python(what: str, error: SystemExit) -> BadFactory:
    """Return the error for user code that raises SystemExit while it is imported or called."""
    frames = traceback.extract_tb(error.__traceback__)
    place = model_lines.users_line(frames).strip(" ()")
    guard = 'under `if __name__ == "__main__":`'
    if any(Path(frame.filename).name == "argparse.py" for frame in frames):
        return BadFactory(
            f"{what} reads a command line with argparse at {place}, and has none of its own here",
            f"put what calls argparse {guard}, and give the function its values: `def net(width=64):`",
        )
    line = place.rpartition(":")[2]
    is_top = any(frame.name == "<module>" and str(frame.lineno) == line for frame in frames)
    fix = f"put line {line} {guard}" if is_top else f"return the model and its inputs at {place}"
    return BadFactory(f"{what} ends Python at {place}: sys.exit({error.code!r})", fix)


def compiled_by_torch(where: str, name: str) -> BadFactory:
    """Return the error for a model, or its part `name`, that torch.compile has wrapped."""
    part = f"model.{name}" if name else "model"
    line = f"`{part} = {part}._orig_mod`"
    return BadFactory(
        f"{where}: {part} is wrapped by torch.compile, which compiles it for this machine",
        f"return the model without torch.compile: {line} before it is returned",
    )


def quantized_by_torch(where: str, name: str, kind: str) -> BadFactory:
    """Return the error for a model in which torch.ao.quantization has replaced the module `name`."""
    return BadFactory(
        f"{where}: model.{name} is a {kind} of torch.ao.quantization, which is for this machine's processor",
        "return the float model: --precision 8a8w quantizes it",
    )


def not_a_number(name: str, weight: Tensor) -> BadFactory:
    count = int(weight.isnan().sum())
    return BadFactory(
        f"{name} holds NaN in {count:,} of its {weight.numel():,} values",
        "load the weights of a training that did not diverge, and compare their file's checksum; in a suite"
        " whose outputs are to have NaN: non_finite = true",
    )


def draws_numbers(function: str, line: str) -> BadFactory:
    """Return the error for a model whose outputs differ in each run, because `function` at `line` draws
    random numbers."""
    fix = "draw them outside, and make them an input; or once, in __init__: self.register_buffer"
    if "dropout" in function:
        fix = f"give dropout the model's own mode{line}: training=self.training; or use nn.Dropout"
    return BadFactory(f"{function} draws random numbers in each run{line}, so no two outputs are alike", fix)


def bad_syntax(error: SyntaxError) -> BadFactory:
    place = f"{model_lines.relative_path(error.filename or '')}:{error.lineno}"
    code = (error.text or "").strip()
    return BadFactory(f"{place}: {error.msg}: `{code}`", f"correct {place}, which Python cannot read")


def modules_like(name: str, folder: Path) -> list[str]:
    """Return the module in this folder that may be meant by a name that is nowhere."""
    return get_close_matches(name, [path.stem for path in folder.glob("*.py")], n=1)


def no_values(number: int, tensor: Tensor) -> BadFactory:
    shape = ", ".join(str(size or 1) for size in tensor.shape)
    return BadFactory(
        f"input {number}: expected values, found {_kinds([tensor])}, which has none",
        f"give each size at least 1: `return model, (torch.rand({shape}),)`",
    )


def other_names(path: Path, found: Sequence[str], expected: Sequence[str]) -> BadFactory:
    arrays = ", ".join(f"{name}={name}" for name in expected)
    return BadFactory(
        f"{path}: expected arrays named {', '.join(expected)}, as forward does, found {', '.join(found)}",
        f'`numpy.savez("{path}", {arrays})`',
    )


def other_count(where: str, found: int, expected: Sequence[str]) -> BadFactory:
    message = f"{where}: expected {len(expected)} inputs ({', '.join(expected)}), found {found}"
    arrays = ", ".join(f"{name}={name}" for name in expected)
    return BadFactory(message, f"one .npz for each sample: `numpy.savez(path, {arrays})`")


def other_kind(where: str, name: str, expected: Tensor, found: Tensor) -> BadFactory:
    """Return the error for a sample that has another type or shape than the model's own inputs."""
    dtype, found_dtype = (str(tensor.dtype).removeprefix("torch.") for tensor in (expected, found))
    message = (
        f"{where}: expected {dtype}{list(expected.shape)} for {name}, found {found_dtype}{list(found.shape)}:"
        " a compiled program has fixed sizes and types"
    )
    if expected.shape == found.shape:
        fix = f'save it as {dtype}: `numpy.save(path, array.astype("{dtype}"))`, or tensor.to(torch.{dtype})'
    elif expected.shape == (1, *found.shape):
        fix = "save it with the batch, of one: `numpy.save(path, array[None])`, or tensor[None]"
    else:
        sizes = ", ".join(map(str, found.shape))
        fix = (
            f"make it {list(expected.shape)}, as the model's own inputs are; or change those:"
            f" `{name} = torch.zeros({sizes})` where the function returns them, or where the .pt2 is exported"
        )
    return BadFactory(message, fix)
