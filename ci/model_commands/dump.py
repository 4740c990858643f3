"""`dump`: a model in another form: its QNN calls as C, its graph as a DLC, a context binary as a program.

QNN writes calls or a DLC in place of a compiled context. A child process writes each in its own folder,
because QNN writes the last part when the process ends, and some of it to the working folder."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.artifacts.dlc import read_dlc
from ci.pipeline.compile_flags import ONNX, plain_model_of
from ci.pipeline.models.user_model import MODEL_HELP, user_model
from ci.pipeline.options import OneModel
from provisioning.base.command_line import Parser, add_timeout, valued
from provisioning.base.commands import captured_module, session, without_result
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import Selection, user_path

EXAMPLES = """\
  python -m ci dump calls model.onnx --soc SM8750 -o calls/
  python -m ci dump calls mymodels.py:net --scheme 8a8w -o calls/     # ExecuTorch's calls
  python -m ci dump dlc model.onnx --soc SM8750 -o model.dlc
  python -m ci dump dlc mymodels.py:net --scheme 8a8w -o model.dlc     # as ExecuTorch lowers it
  python -m ci dump program context.bin -o model.pte
  python -m ci inspect model.pte --extract contexts/     # and back
"""

FORMS = {
    "calls": "QNN's calls for it as C with their parameters, to reproduce a bug with Qualcomm",
    "dlc": "the QNN graph as a DLC, which a device compiles",
    "program": "the ExecuTorch program of a QNN context binary, such as AI Hub's",
}
CALLS, PARAMETERS = "saver_output.c", "params.bin"
SAVED = "Record all QNN API calls"
ONNX_DUMP, EXECUTORCH_DUMP = "ci.lanes.onnx.dump", "ci.lanes.executorch.dump"


def configure(parser: argparse.ArgumentParser) -> None:
    forms = "; ".join(f"{name}: {meaning}" for name, meaning in FORMS.items())
    parser.add_argument("form", choices=FORMS, metavar="FORM", help=forms)
    parser.add_argument("model", metavar="MODEL", help=f"{MODEL_HELP}, not compiled yet; or CONTEXT.bin")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="file or folder")
    scheme = "how a PyTorch model is quantized, as in a suite: 8a8w, 16a8w, … [fp16]"
    valued(parser, "--scheme", "S", scheme)
    add_selection(parser)
    add_timeout(parser, "it")


def run(args: argparse.Namespace) -> int:
    form, output = args.form, args.output.absolute()
    if form != "calls" and output.is_dir():
        raise UsageError(f"{args.output} is a directory", fix="name a file with -o")
    if form == "program":
        if args.scheme:
            raise UsageError("--scheme is for a model, but a context is already compiled", fix="leave it out")
        context = user_path(args.model, "CONTEXT.bin", str(Parser.user_folder()))
        return _program(context, args.output, selection_of(args), args.timeout)
    model = plain_model_of(args)
    with _dumped(form, model, output) as folder:
        written = _calls(folder) if form == "calls" else _graph(folder, model.typed)
        _move(written, output, model.typed)
    if form == "dlc":
        print(f"{output.stat().st_size:>12,}  {args.output}, QNN {read_dlc(output).qnn}")
        return 0
    for path in sorted(output.iterdir()):
        print(f"{path.stat().st_size:>12,}  {args.output / path.name}")
    print("compile it against the SDK's headers with the backend in question; send both files with the bug")
    return 0


def _program(context: Path, output: Path, selection: Selection, timeout: float) -> int:
    from ci.artifacts.program import ContextStrings, read
    from ci.lanes.executorch.wrap_context import wrap
    from ci.pipeline.output import keep_origins, require_own

    contents = read(context)
    if not isinstance(contents, ContextStrings):
        raise UsageError(f"{context} is already a program", fix="name a context binary")
    require_own([output], str(context))
    soc = wrap(context, contents, selection, output, timeout)
    keep_origins([output], str(context))
    print(f"{output.stat().st_size:>12,}  {output}, for {soc}")
    return 0


@contextmanager
def _dumped(form: str, model: OneModel, output: Path) -> Iterator[Path]:
    """A folder with the child's files; it is removed afterwards."""
    import tempfile

    from provisioning.manifest import soc_named

    soc = model.selection.soc
    soc_named(soc)
    module, arguments, environ = (_of_onnx if model.lane == ONNX else _of_pytorch)(model)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent)
    except OSError as error:
        raise EnvironmentLacking(
            f"{output.parent}: {error.strerror}", fix="name another place with -o"
        ) from error
    with folder as name:
        done = captured_module(module, [form, *arguments], environ, model.work.timeout, model.typed, cwd=name)
        # ExecuTorch ends the process itself after writing the calls, with a meaningless exit code.
        if done.returncode and not (module == EXECUTORCH_DUMP and SAVED in done.stderr + done.stdout):
            fix = session("audit", model.typed, "--soc", soc)
            raise without_result(done, f"{model.typed}: refused for {soc}", fix)
        yield Path(name)


Child = tuple[str, list[str], dict[str, str]]
"""The module, its arguments and its environment."""


def _of_onnx(model: OneModel) -> Child:
    from ci.engine.closed import closed
    from ci.lanes.onnx.compile import require_installed
    from provisioning.manifest import soc_named

    require_installed()
    soc = soc_named(model.selection.soc)
    named = user_model(model.typed, Parser.user_folder())
    return ONNX_DUMP, [str(named.file), str(soc.id), str(soc.arch)], closed(os.environ)


def _of_pytorch(model: OneModel) -> Child:
    from ci.engine.closed import closed
    from ci.lanes.executorch.user_program import program_of
    from provisioning.components import QNN_SDK
    from provisioning.environment import resolve

    environment = resolve(model.selection, os.environ, needs=(QNN_SDK,))
    return EXECUTORCH_DUMP, [json.dumps(program_of(model).order)], closed(environment.merged(os.environ))


def _calls(folder: Path) -> Path:
    output = folder / "saver_output"
    for name in (CALLS, PARAMETERS):
        if not (output / name).is_file():
            raise CheckFailed(f"QNN's Saver wrote no {name}", fix="report it with the model")
    return output


def _graph(folder: Path, typed: str) -> Path:
    graphs = sorted(folder.glob("*.dlc"))
    if len(graphs) != 1:
        raise CheckFailed(
            f"{typed}: expected one QNN graph, found {len(graphs)}",
            fix="split the model, or move the operators on the CPU to its beginning or end",
        )
    read_dlc(graphs[0])
    return graphs[0]


def _move(source: Path, target: Path, typed: str) -> None:
    """Put a model's finished file or folder in place in one step."""
    from ci.pipeline.output import keep_origins, require_own

    require_own([target], typed)
    try:
        if target.is_dir() and source.is_dir():
            target.rmdir()
        source.chmod(0o755 if source.is_dir() else 0o644)
        source.replace(target)
        keep_origins([target], typed)
    except OSError as error:
        raise UsageError(
            f"{target}: {error.strerror}", fix="name a new place with -o, or an empty folder"
        ) from error
