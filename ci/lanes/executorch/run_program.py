"""`run` of a compiled program: run it on the emulator, with the user's inputs or drawn ones, and say which
part ran where. A context binary is first wrapped into a program."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.artifacts.program import CompiledProgram, ContextStrings, Method, TensorInfo, read
from ci.artifacts.torch_files import refuse_torch_file
from ci.lanes.executorch.wrap import wrap
from ci.models.inputs import Array, GraphSignature, Sample, Tensor, draw_sample, read_inputs
from ci.one_model.model import OneModel
from ci.one_model.named_files import require_program
from ci.one_model.output import Ran
from ci.suite.ready_environment import ready_environment
from ci.suite.runner import call_runner, ready_runner
from ci.work import closed_environment
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.parser import Parser
from provisioning.base.progress import show_working
from provisioning.base.rendering import plural

NUMBERS = {"int": "int64", "bool": "bool", "float": "float64"}
"""The types in which the runner writes outputs that are plain numbers."""


def run_program(model: OneModel, files: Sequence[str]) -> Ran:
    path, selection = Parser.user_folder() / model.typed, model.selection
    require_program(path, model.typed)
    refuse_torch_file(path)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-run-") as scratch:
        folder = Path(scratch)
        program, contents = path, read(path)
        if isinstance(contents, ContextStrings):
            program = folder / "wrapped.pte"
            wrap(path, contents, selection, program, model.work.timeout)
            contents = read(program)
        assert isinstance(contents, CompiledProgram)
        inputs = _inputs_for(program, contents, files)
        qnn_environment = ready_environment(selection, os.environ)
        runner = ready_runner(os.environ, selection.reports, qnn_environment.executorch)
        environment = closed_environment(qnn_environment.merged(os.environ))
        input_list = runner.write_inputs(folder / "inputs.txt", [write_raw(inputs, folder)])
        outputs, figures = folder / "outputs", folder / "figures"
        outputs.mkdir()
        command = runner.command(program, input_list, outputs, figures=figures)
        with show_working(f"running {model.typed}"):
            error = call_runner(command, folder / "run.log", environment, model.work.timeout)
        if error:
            raise CheckFailed(f"{path}: {error}", fix=session("inspect", path))
        where = f"{_describe_placement(contents)}; by {runner.described}"
        values = dict(_read_outputs(outputs, _forward_method(program, contents), runner.shapes_in(figures)))
        return Ran(inputs, values, where)


def _inputs_for(program: Path, contents: CompiledProgram, files: Sequence[str]) -> Sample:
    """Return the user's inputs; without any, draw them by the program's own shapes.

    A .pte's inputs have no names, so files count by their position, and a `NAME=` before one is ignored."""
    signature = GraphSignature(tuple(_input_tensors(program, _forward_method(program, contents))), ())
    if not files:
        return draw_sample(signature)
    if len(files) == 1 and files[0].endswith(".npz"):
        return read_inputs(files, signature)
    paths = [text.partition("=")[2] or text for text in files]
    if len(paths) != len(signature.inputs):
        message = f"expected --input {len(signature.inputs)} times, found {len(paths)}"
        raise UsageError(message, fix="one for each input")
    pairs = zip(signature.inputs, paths, strict=True)
    return read_inputs([f"{tensor.name}={file}" for tensor, file in pairs], signature)


def write_raw(inputs: Sample, folder: Path) -> Iterator[Path]:
    for name, array in inputs.items():
        path = folder / f"{name}.raw"
        array.tofile(path)
        yield path


def _forward_method(program: Path, contents: CompiledProgram) -> Method:
    for method in contents.methods:
        if method.name == "forward" or len(contents.methods) == 1:
            return method
    raise CheckFailed(f"{program}: it has no method forward", fix=session("inspect", program))


def _input_tensors(program: Path, method: Method) -> Iterator[Tensor]:
    for index, input_ in enumerate(method.inputs):
        if not isinstance(input_, TensorInfo):
            message = f"{program}: input {index} is no tensor: {input_}"
            raise CheckFailed(message, fix="export it with tensors only")
        yield Tensor(f"input_{index}", input_.dtype, input_.shape)


def _read_outputs(
    folder: Path, method: Method, shapes: Sequence[Sequence[int]] | None
) -> Iterator[tuple[str, Array]]:
    import numpy

    for index, tensor in enumerate(method.outputs):
        file = folder / f"output_0_{index}.raw"
        if isinstance(tensor, TensorInfo):
            values = numpy.fromfile(file, dtype=tensor.dtype)
            yield f"output_{index}", values.reshape(shapes[index] if shapes else tensor.shape)
        elif tensor in NUMBERS:
            yield f"output_{index}", numpy.fromfile(file, dtype=NUMBERS[tensor]).reshape(())


def _describe_placement(contents: CompiledProgram) -> str:
    """Say which part runs on the emulator, and which on the CPU."""
    parts = Counter[str]()
    for delegate in contents.delegates:
        context = delegate.context
        build = f", {' and '.join(context.socs)}, QNN {' and '.join(context.build_ids)}" if context else ""
        parts[f"{delegate.options.processor.upper() if delegate.options else delegate.backend}{build}"] += 1
    kernels = sum((Counter(method.kernels) for method in contents.methods), Counter[str]())
    on_cpu = ", ".join(f"{count} {name}" for name, count in kernels.items())
    delegated = [f"{plural(count, 'part')} on the emulator ({name})" for name, count in parts.items()]
    return "; ".join([*delegated, f"on the CPU: {on_cpu}" if on_cpu else "nothing on the CPU"])
