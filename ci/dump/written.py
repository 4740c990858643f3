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

from provisioning.base.command_line import add_timeout
from provisioning.base.commands import captured_module
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.settings import Selection, add_selection, selection_of

CALLS, PARAMETERS = "saver_output.c", "params.bin"
SAVED = "Record all QNN API calls"
AUDIT = {
    "onnx": "nox -s audit -- {model} --soc {soc}",
    "executorch": "a suite with this factory, and nox -s test_lowering -- --suite it, names the operator",
}
_LAST_LINES = 12


def configure(parser: argparse.ArgumentParser, output: str, meaning: str) -> None:
    parser.add_argument(
        "model",
        type=Path,
        metavar="MODEL",
        help="a MODEL.onnx that is not compiled yet, or for ExecuTorch FOLDER/file.py:factory",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar=output, help=meaning)
    parser.add_argument(
        "--scheme",
        default="fp16",
        metavar="S",
        help="how a factory's model is quantized, as in a suite: 8a8w, 16a8w, … [%(default)s]",
    )
    add_selection(parser)
    add_timeout(parser, "it")


@contextmanager
def written_by_child(kind: str, args: argparse.Namespace) -> Iterator[Path]:
    """A folder with the child's files; it is removed afterwards."""
    import tempfile

    selection = selection_of(args)
    lane, arguments, environ = (_of_onnx if is_onnx(args.model) else _of_factory)(args, selection)
    output = args.output.absolute()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent)
    except OSError as error:
        raise EnvironmentLacking(
            f"{output.parent}: {error.strerror}", remedy="-o names another place"
        ) from error
    with folder as name:
        module, arguments = f"ci.{lane}.dump", [kind, *arguments]
        done = captured_module(module, arguments, environ, args.timeout, args.model, cwd=name)
        # ExecuTorch ends the process itself after writing the calls, with a meaningless exit code.
        if done.returncode and not (lane == "executorch" and SAVED in done.stderr + done.stdout):
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise CheckFailed(
                f"{args.model}: refused for {selection.soc}: {lines[-1] if lines else 'it ended'}",
                remedy=AUDIT[lane].format(model=args.model, soc=selection.soc),
                output="\n".join(lines[-_LAST_LINES:]),
            )
        yield Path(name)


def is_onnx(model: Path) -> bool:
    return ":" not in model.name or model.suffix == ".onnx"


def _of_onnx(args: argparse.Namespace, selection: Selection) -> tuple[str, list[str], dict[str, str]]:
    from ci.onnx.compile import require_installed
    from provisioning.manifest import soc_named

    soc, model = soc_named(selection.soc), args.model
    require_installed()
    if model.suffix != ".onnx" or not model.is_file():
        raise UsageError(
            f"{model}: expected an ONNX model that is there, or module:factory",
            remedy="name a .onnx file; of a program that is prepared on the device: python -m ci inspect"
            " MODEL.pte --extract DIR",
        )
    return "onnx", [str(model.absolute()), str(soc.id), str(soc.arch)], dict(os.environ)


def _of_factory(args: argparse.Namespace, selection: Selection) -> tuple[str, list[str], dict[str, str]]:
    from pydantic import ValidationError

    from ci.executorch.suite import Case
    from provisioning.components import QNN_SDK
    from provisioning.environment import resolve
    from provisioning.manifest import soc_named

    soc_named(selection.soc)
    run = {"scheme": args.scheme, "socs": [selection.soc]}
    try:
        case = Case.model_validate_json(
            json.dumps({"factory": args.model.name.replace(".py:", ":"), "run": [run]})
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"{args.model.name}, --scheme {args.scheme}: {first['msg']}",
            remedy="module:factory, --scheme 8a8w",
        ) from error
    found = resolve(selection, os.environ, needs=(QNN_SDK,))
    words = [case.model_dump_json(by_alias=True), selection.soc, str(args.model.absolute().parent)]
    return "executorch", words, found.merged(os.environ)


def move(source: Path, target: Path) -> None:
    """Put a finished file or folder in place in one step."""
    try:
        if target.is_dir() and source.is_dir():
            target.rmdir()
        source.chmod(0o755 if source.is_dir() else 0o644)
        source.replace(target)
    except OSError as error:
        raise UsageError(
            f"{target}: {error.strerror}", remedy="-o names a place that is free, or an empty folder"
        ) from error


def publish_calls(folder: Path, target: Path) -> list[Path]:
    made = folder / "saver_output"
    for name in (CALLS, PARAMETERS):
        if not (made / name).is_file():
            raise CheckFailed(f"QNN's Saver wrote no {name}", remedy="report it with the model")
    staged = folder / "calls"
    shutil.move(made, staged)
    move(staged, target)
    return sorted(target.iterdir())
