"""A program that is one QNN context and nothing else, as a job for a device that runs contexts.

What the program's runner would do is done here: the samples get the order, names, types and shapes of the
context's own inputs, and the context's outputs become the program's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ci.artifacts.compiled_onnx import context_of_model, read_model
from ci.artifacts.context_graph import LIBRARY, ContextGraph, ContextTensor, graphs_in
from ci.artifacts.program import QNN_BACKEND, CompiledProgram, Delegate, Method, bytes_of, context_in, read
from ci.suite.accuracy import Unusable
from ci.suite.contexts import ContextJob
from ci.suite.device_outputs import plain_name
from ci.suite.judged_samples import JudgedSamples
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.rendering import plural
from provisioning.stage_variables import HOST_LIBRARIES

if TYPE_CHECKING:
    from ci.models.inputs import Array, Sample

CONTEXT = "context.bin"
ONNX = ".onnx"
STATE = "mutbuf_"
"""ExecuTorch names the inputs and outputs so that keep a value from one inference to the next."""
OTHER = "the context has other inputs and outputs than this program"
NUMBERED = re.compile(r"input_(\d+)")
"""ExecuTorch names the context's inputs so, and its runner gives them in the order of these numbers."""


def onnx_library() -> Path:
    """Return the libQnnSystem of lane `onnx`. Raises EnvironmentLacking where its packages are not."""
    package = find_spec("onnxruntime_qnn")
    if package is None or package.origin is None:
        raise EnvironmentLacking("onnxruntime-qnn is not installed", fix=session("test_onnx"))
    return Path(package.origin).with_name(LIBRARY)


def sdk_library(sdk: Path) -> Path:
    return sdk / "lib" / HOST_LIBRARIES / LIBRARY


class NotOneContext(CheckFailed):
    """Reports a program that a device for contexts cannot run as a whole."""


@dataclass(frozen=True, slots=True)
class SamePart:
    """An input or output of the program, and the context's that is the same."""

    name: str
    tensor: ContextTensor


@dataclass(frozen=True, slots=True)
class PreparedJob:
    job: ContextJob
    outputs: tuple[SamePart, ...]

    def read_outputs(self, folder: Path, like: Sequence[Sample]) -> list[Sample]:
        """Return the program's outputs of each sample, in the types and shapes of `like`. Raises Unusable for
        outputs of another program."""
        samples = []
        for number, sample in enumerate(like):
            arrays = {row.name: _read_output(folder / f"Result_{number}", row.tensor) for row in self.outputs}
            samples.append(
                {name: _program_values(arrays[name], array, name) for name, array in sample.items()}
            )
        return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWanted:
    """The device that is to run contexts."""

    name: str
    profile: bool = False
    """Whether to measure latency, memory and layers too."""


def prepare_job(
    name: str, program: Path, samples: JudgedSamples, library: Path, wanted: DeviceWanted, folder: Path
) -> PreparedJob:
    """Write the program's context and its samples into the folder. `library` is a libQnnSystem. Raises
    NotOneContext if the program has more than a context."""
    content, sources = _parts_of_onnx(program) if program.suffix == ONNX else _parts_of_pte(program)
    folder.mkdir(parents=True, exist_ok=True)
    context = folder / CONTEXT
    context.write_bytes(content)
    graphs = graphs_in(context, library)
    if len(graphs) != 1:
        raise _refusal(f"its context has {plural(len(graphs), 'graph')}")
    (graph,) = graphs
    inputs, outputs = sources.matched(graph)
    unknown = {row.name for row in inputs} - {*samples.inputs[0]}
    if unknown or {row.name for row in outputs} != {*samples.emulated[0]}:
        raise _refusal(OTHER)
    raws = [_write_sample(folder, number, inputs, row) for number, row in enumerate(samples.inputs)]
    job = ContextJob(
        program=name,
        context=context,
        soc=samples.facts.soc,
        build_id=samples.facts.build_id,
        inputs=tuple(row.tensor for row in inputs),
        samples=tuple(raws),
        outputs=tuple(row.tensor for row in outputs),
        device=wanted.name,
        profile=wanted.profile,
    )
    return PreparedJob(job, outputs)


@dataclass(frozen=True, slots=True)
class _Sources:
    """What the context's inputs and outputs are in the program: by name, or else in this order."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    by_name: bool = False
    numbered: bool = False
    """Whether the order is that of the numbers in the names of inputs."""

    def matched(self, graph: ContextGraph) -> tuple[tuple[SamePart, ...], tuple[SamePart, ...]]:
        """Return the inputs in the context's own order, and its outputs."""
        if self.by_name:
            return _same_names(graph.inputs), _same_names(graph.outputs)
        if any(STATE in tensor.name for tensor in graph.inputs):
            raise _refusal("its context keeps values from one inference to the next")
        in_order = sorted(graph.inputs, key=_number_of) if self.numbered else graph.inputs
        if (len(in_order), len(graph.outputs)) != (len(self.inputs), len(self.outputs)):
            raise _refusal(OTHER)
        names = {tensor.name: name for tensor, name in zip(in_order, self.inputs, strict=True)}
        inputs = tuple(SamePart(names[tensor.name], tensor) for tensor in graph.inputs)
        outputs = zip(self.outputs, graph.outputs, strict=True)
        return inputs, tuple(SamePart(name, tensor) for name, tensor in outputs)


def _same_names(tensors: Sequence[ContextTensor]) -> tuple[SamePart, ...]:
    return tuple(SamePart(tensor.name, tensor) for tensor in tensors)


def _number_of(tensor: ContextTensor) -> int:
    match = NUMBERED.match(tensor.name)
    if match is None:
        raise _refusal(f"its context's input {tensor.name} has no number")
    return int(match[1])


def _parts_of_onnx(program: Path) -> tuple[bytes, _Sources]:
    model = read_model(program)
    if model.kernels:
        raise _refusal(f"this program has operators on the CPU: {_kernel_list(model.kernels)}")
    if len(model.nodes) != 1:
        raise _refusal(f"this program has {len(model.nodes)} contexts")
    return context_of_model(program), _Sources(by_name=True)


def _parts_of_pte(program: Path) -> tuple[bytes, _Sources]:
    contents = read(program)
    if not isinstance(contents, CompiledProgram):
        raise _refusal("this file is no program of ExecuTorch")
    method, delegate = _only_parts(contents)
    suffix, context = context_in(bytes_of(program)[delegate.offset : delegate.offset + delegate.size])
    if suffix != ".bin":
        raise _refusal("the device itself compiles it (online_prepare)")
    # In samples, a .pte's inputs and outputs are called by their numbers alone.
    (arguments,) = method.arguments
    inputs = tuple(text.removeprefix("input_") for text in arguments if text.startswith("input_"))
    outputs = tuple(text.removeprefix("output_") for text in arguments[len(inputs) :])
    numbered = delegate.options is not None and not delegate.options.wrapped
    return bytes(context), _Sources(inputs, outputs, numbered=numbered)


def _only_parts(contents: CompiledProgram) -> tuple[Method, Delegate]:
    if len(contents.methods) != 1:
        raise _refusal(f"this program has {plural(len(contents.methods), 'method')}")
    (method,) = contents.methods
    if method.kernels:
        raise _refusal(f"this program has operators on the CPU: {_kernel_list(method.kernels)}")
    if len(contents.delegates) != 1 or method.delegate_calls != 1:
        raise _refusal(f"this program has {plural(len(contents.delegates), 'delegate')}")
    (delegate,) = contents.delegates
    processor = delegate.options.processor if delegate.options else ""
    if delegate.backend != QNN_BACKEND or processor != "htp":
        raise _refusal(f"this program is for {processor or delegate.backend}")
    if method.instructions != 1 or delegate.segment is None:
        raise _refusal("this program does more than to call its delegate")
    return method, delegate


def _kernel_list(kernels: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in kernels.items())


def _refusal(reason: str) -> NotOneContext:
    return NotOneContext(
        f"AI Hub runs one context alone, and {reason}",
        fix="run it over adb or ssh, where the whole program runs, and judge its outputs with --on folder",
    )


def _write_sample(folder: Path, number: int, inputs: Sequence[SamePart], sample: Sample) -> tuple[Path, ...]:
    paths = []
    for index, row in enumerate(inputs):
        path = folder / f"input_{number}_{index}.raw"
        _context_values(sample[row.name], row).tofile(path)
        paths.append(path)
    return tuple(paths)


def _context_values(array: Array, row: SamePart) -> Array:
    """Return the values as the context takes them: its runner gives it the program's bytes."""
    import numpy

    tensor = row.tensor
    dtype = numpy.dtype(tensor.dtype)
    if array.size == math.prod(tensor.shape) and array.dtype.itemsize == dtype.itemsize:
        return numpy.ascontiguousarray(array).view(dtype).reshape(tensor.shape)
    if array.size == math.prod(tensor.shape) and {array.dtype.kind, dtype.kind} <= set("iu"):
        narrow = array.astype(dtype)
        if (narrow == array).all():
            return narrow.reshape(tensor.shape)
    raise _refusal(f"its input {row.name} is {_describe(array)}, its context's {_describe_tensor(tensor)}")


def _program_values(array: Array, like: Array, name: str) -> Array:
    import numpy

    if array.size == like.size and array.dtype.itemsize == like.dtype.itemsize:
        return numpy.ascontiguousarray(array).view(like.dtype).reshape(like.shape)
    if array.size == like.size and {array.dtype.kind, like.dtype.kind} <= set("iu"):
        # QNN has no integers of 64 bits.
        return array.astype(like.dtype).reshape(like.shape)
    raise Unusable("shape", f"output {name}: expected {_describe(like)}, found {_describe(array)}")


def _read_output(folder: Path, tensor: ContextTensor) -> Array:
    import numpy

    path = folder / f"{plain_name(tensor.name)}.raw"
    if not path.is_file():
        raise Unusable("missing", f"{folder.name} has no {path.name}")
    array = numpy.fromfile(path, tensor.dtype)
    if array.size != math.prod(tensor.shape):
        expected = _describe_tensor(tensor)
        raise Unusable("shape", f"{path.name}: expected {expected}, found {array.size} values")
    return array.reshape(tensor.shape)


def _describe(array: Array) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _describe_tensor(tensor: ContextTensor) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
