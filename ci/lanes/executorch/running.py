"""`run` of a .pte, or of a context binary, which becomes one: by qnn_executor_runner, on the emulator."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.artifacts import refusals
from ci.artifacts.program import CompiledProgram, ContextStrings, Method, TensorInfo, read
from ci.closed import closed
from ci.lanes.executorch.wrap_context import wrap
from ci.models.arrays import Array, Sample
from ci.models.inputs import GraphSignature, Tensor, drawn, read_inputs
from ci.one_model.model import OneModel
from ci.one_model.output import Ran, require_program
from ci.runner import call_runner, ready_runner
from ci.suite.installed import ready_environment
from provisioning.base.command_line import Parser
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.progress import at_work
from provisioning.base.rendering.text import plural


def ran(model: OneModel, files: Sequence[str], repeat: int) -> Ran:
    path, selection = Parser.user_folder() / model.typed, model.selection
    require_program(path, model.typed)
    refusals.refuse(path)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-run-") as scratch:
        folder = Path(scratch)
        program, contents = path, read(path)
        if isinstance(contents, ContextStrings):
            program = folder / "wrapped.pte"
            wrap(path, contents, selection, program, model.work.timeout)
            contents = read(program)
        assert isinstance(contents, CompiledProgram)
        inputs = inputs_of_program(program, files)
        runner = ready_runner(os.environ, selection.reports)
        environment = closed(ready_environment(selection, os.environ).merged(os.environ))
        listed = runner.write_inputs(folder / "inputs.txt", [write_raw(inputs, folder)])
        outputs, figures = folder / "outputs", folder / "figures"
        outputs.mkdir()
        command = runner.command(program, listed, outputs, "--iteration", str(repeat), figures=figures)
        with at_work(f"running {model.typed}"):
            call_runner(command, path, folder / "run.log", environment, model.work.timeout)
        run = runner.of_one(figures, repeat)
        loading = f"; loading took {run.load_ms:.3g} ms" if run.load_ms is not None else ""
        where = f"{_where(contents)}{loading}; by {runner.described}"
        found = dict(_outputs(outputs, _method(program, contents), run.shapes))
        return Ran(inputs, found, run.milliseconds, where)


def inputs_of_program(program: Path, files: Sequence[str]) -> Sample:
    """The user's, in the order of a .pte's inputs, which have no names; else drawn by its own shapes."""
    contents = read(program)
    if isinstance(contents, ContextStrings):
        raise UsageError(f"{program} is a context binary", fix=session("run", program))
    signature = GraphSignature(tuple(_inputs(program, _method(program, contents))), ())
    if not files:
        return drawn(signature)
    if len(files) == 1 and files[0].endswith(".npz"):
        return read_inputs(files, signature)
    named = [text.partition("=")[2] or text for text in files]
    if len(named) != len(signature.inputs):
        message = f"expected --input {len(signature.inputs)} times, found {len(named)}"
        raise UsageError(message, fix="one for each input")
    both = zip(signature.inputs, named, strict=True)
    return read_inputs([f"{tensor.name}={file}" for tensor, file in both], signature)


def write_raw(inputs: Sample, folder: Path) -> Iterator[Path]:
    for name, array in inputs.items():
        path = folder / f"{name}.raw"
        array.tofile(path)
        yield path


def _method(program: Path, contents: CompiledProgram) -> Method:
    for method in contents.methods:
        if method.name == "forward" or len(contents.methods) == 1:
            return method
    raise CheckFailed(f"{program}: it has no method forward", fix=session("inspect", program))


def _inputs(program: Path, method: Method) -> Iterator[Tensor]:
    for index, input_ in enumerate(method.inputs):
        if not isinstance(input_, TensorInfo):
            message = f"{program}: input {index} is no tensor: {input_}"
            raise CheckFailed(message, fix="export it with tensors only")
        yield Tensor(f"input_{index}", input_.dtype, input_.shape)


def _outputs(
    folder: Path, method: Method, shapes: Sequence[Sequence[int]] | None
) -> Iterator[tuple[str, Array]]:
    import numpy

    for index, tensor in enumerate(method.outputs):
        dtype, planned = (tensor.dtype, tensor.shape) if isinstance(tensor, TensorInfo) else ("float64", ())
        values = numpy.fromfile(folder / f"output_0_{index}.raw", dtype=dtype)
        yield f"output_{index}", values.reshape(shapes[index] if shapes else planned)


def _where(contents: CompiledProgram) -> str:
    """What of it runs on the emulator, and what on the CPU."""
    parts = Counter[str]()
    for delegate in contents.delegates:
        context = delegate.context
        build = f", {' and '.join(context.socs)}, QNN {' and '.join(context.build_ids)}" if context else ""
        parts[f"{delegate.options.processor.upper() if delegate.options else delegate.backend}{build}"] += 1
    kernels = sum((Counter(method.kernels) for method in contents.methods), Counter[str]())
    on_cpu = ", ".join(f"{count} {name}" for name, count in kernels.items())
    delegated = [f"{plural(count, 'part')} on the emulator ({name})" for name, count in parts.items()]
    return "; ".join([*delegated, f"on the CPU: {on_cpu}" if on_cpu else "nothing on the CPU"])
