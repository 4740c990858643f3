"""What the commands for one .onnx share: their logs, their lines, and how flags are read."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ci.lanes.onnx.compile import require_installed
from ci.lanes.onnx.graph import Size, load_graph
from ci.suite.precision import precision_named
from provisioning.base import units
from provisioning.base.command_line import Parser
from provisioning.base.errors import ToolkitError, UsageError
from provisioning.base.progress import at_work


@contextmanager
def logs_folder() -> Iterator[Path]:
    """A folder for logs. It is kept only if an error message names it."""
    folder = Path(tempfile.mkdtemp(prefix="qnn-ci-onnx-"))
    kept = False
    try:
        yield folder
    except ToolkitError as error:
        kept = str(folder) in f"{error.message} {error.fix}"
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    say(f"{what} …")
    began = time.monotonic()
    with at_work(what):
        yield
    say(f"{what}: {units.seconds(time.monotonic() - began)}")


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def require_file(path: Path) -> None:
    if not path.is_file():
        problem = "it is a directory" if path.is_dir() else "there is no such file"
        raise UsageError(f"{path}: {problem}", fix="name an .onnx that is there")


def precision_of(model: Path, precision: str | None) -> str:
    """The precision that the user named; else a quantized model stays as it is, and others get fp16."""
    if precision:
        return precision_named(precision).name
    require_installed()
    require_file(model)
    operators = {node.op_type for node in load_graph(model).graph.node}
    return "qdq" if "QuantizeLinear" in operators else "fp16"


def dimensions_of(assignments: Sequence[str]) -> dict[str, Size]:
    sizes: dict[str, Size] = {}
    for assignment in assignments:
        match = re.fullmatch(r"([^=]+)=([1-9]\d*(?:,[1-9]\d*)*)", assignment)
        if not match:
            message = f"--dimension {assignment}: expected NAME=N with N from 1 on, or all sizes of an input"
            raise UsageError(message, fix="--dimension batch=1, or --dimension x=1,3,64,64")
        numbers = tuple(map(int, match[2].split(",")))
        name, size = match[1], numbers if len(numbers) > 1 else numbers[0]
        if sizes.setdefault(name, size) != size:
            raise UsageError(f"--dimension {name} is both {sizes[name]} and {size}", fix="give it once")
    return sizes


def search_path() -> Path:
    """Where the user's modules and relative paths of samples are searched."""
    return Parser.user_folder()
