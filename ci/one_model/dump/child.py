"""QNN's work for a model, written down instead of done: its calls as C, or the graph as a DLC.

Neither is possible together with a compiled context. A child process writes each in its own folder, because
QNN writes the last part when the process ends, and some of it to the working folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.pipeline.compile_flags import ONNX
from ci.pipeline.models.user_model import MODEL_HELP, user_model
from ci.pipeline.options import OneModel
from provisioning.base.command_line import Parser, add_timeout
from provisioning.base.commands import captured_module, session, without_result
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.selection import add_selection

CALLS, PARAMETERS = "saver_output.c", "params.bin"
SAVED = "Record all QNN API calls"

ONNX_DUMP, EXECUTORCH_DUMP = "ci.lanes.onnx.dump", "ci.lanes.executorch.dump"


def configure(parser: argparse.ArgumentParser, output: str, meaning: str) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=f"{MODEL_HELP}; not compiled yet",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar=output, help=meaning)
    parser.add_argument(
        "--scheme",
        metavar="S",
        help="how a PyTorch model is quantized, as in a suite: 8a8w, 16a8w, … [fp16]",
    )
    add_selection(parser)
    add_timeout(parser, "it")


@contextmanager
def dumped(kind: str, model: OneModel, output: Path) -> Iterator[Path]:
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
            f"{output.parent}: {error.strerror}", fix="-o names another place"
        ) from error
    with folder as name:
        done = captured_module(module, [kind, *arguments], environ, model.work.timeout, model.typed, cwd=name)
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


def move(source: Path, target: Path, typed: str) -> None:
    """Put a model's finished file or folder in place in one step."""
    from ci.engine.output import keep_origins, require_own

    require_own([target], typed)
    try:
        if target.is_dir() and source.is_dir():
            target.rmdir()
        source.chmod(0o755 if source.is_dir() else 0o644)
        source.replace(target)
        keep_origins([target], typed)
    except OSError as error:
        raise UsageError(
            f"{target}: {error.strerror}", fix="-o names a place that is free, or an empty folder"
        ) from error


def publish_calls(folder: Path, target: Path, typed: str) -> list[Path]:
    output = folder / "saver_output"
    for name in (CALLS, PARAMETERS):
        if not (output / name).is_file():
            raise CheckFailed(f"QNN's Saver wrote no {name}", fix="report it with the model")
    staged = folder / "calls"
    shutil.move(output, staged)
    move(staged, target, typed)
    return sorted(target.iterdir())
