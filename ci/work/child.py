"""What a process that does a user's work receives and reports: its variables (manifests/variables.toml), its
output, what it is doing, and its costs."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ci.work.digests import known_folders
from ci.work.trouble import InTrouble, trouble_of_error
from provisioning.base.commands import Fix
from provisioning.base.documents import Model, load
from provisioning.base.settings import MANIFESTS

__all__ = [
    "NOT_CACHED",
    "UNFORESEEN",
    "Answer",
    "Meter",
    "blame",
    "closed_environment",
    "cpu_seconds",
    "declared_variables",
    "doing",
    "error_reply",
    "field_of",
    "key_of_declared",
    "loaded_libraries",
    "output_to",
    "printed_so_far",
    "quiet",
    "reporting",
    "text_since",
    "variables_table",
]

_libc = ctypes.CDLL(None)

own_folder: Path | None = None
"""The folder for the temporary files of the task that this process does."""

_log = -1
"""The descriptor of the file that receives this process's output, if it is not the standard output."""

DOING = "doing"
"""The file in that folder that says what the process is doing."""

Order = dict[str, Any]
"""The request to a process, as it comes through a pipe."""
Answer = Callable[[Order], dict[str, object]]
"""Returns the reply to a request; both are JSON."""

FOR_LIBRARIES = "OMP_NUM_THREADS"

SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
"""The system has its own libraries in these folders."""

GC_THRESHOLD = 10_000
"""How many new objects trigger Python's garbage collector. Imports and exports create millions that stay; the
default of 700 costs a sixth of their time."""


@contextlib.contextmanager
def one_thread_for_libraries() -> Iterator[None]:
    """Set one thread while libraries are loaded, which is when they read the number; the user's code then
    finds the user's own value."""
    before = os.environ.get(FOR_LIBRARIES)
    os.environ[FOR_LIBRARIES] = "1"
    yield
    if before is not None:
        os.environ[FOR_LIBRARIES] = before
    else:
        os.environ.pop(FOR_LIBRARIES, None)


class Variables(Model):
    schema_: Literal[1] = Field(alias="schema")
    passed: tuple[str, ...]
    upstream: tuple[str, ...]
    secrets: tuple[str, ...]
    fixed: dict[str, str]


@cache
def variables_table() -> Variables:
    return load(MANIFESTS / "variables.toml", Variables)


def closed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker whose stage has `environ`. The variables that its lane and suite declare
    are added later."""
    return {**variables_table().fixed, **declared_variables(variables_table().passed, environ)}


def declared_variables(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in names if name in environ}


def key_of_declared(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The digests of the values, which may be secrets."""
    return {name: _digest(environ[name]) if name in environ else "" for name in sorted(names)}


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def field_of(variable: str) -> str:
    """The field of a suite that passes this variable to its models."""
    return (
        "secrets" if any(fnmatchcase(variable, name) for name in variables_table().secrets) else "variables"
    )


def doing(activity: str) -> None:
    """Say in a word what this process does from now on, for the process that waits for it."""
    if own_folder:
        with contextlib.suppress(OSError):
            (own_folder / DOING).write_text(activity, encoding="utf-8")


def log_answer(answer: Answer, order: Order) -> dict[str, object]:
    log = order.get("log")
    try:
        with output_to(Path(log)) if log else contextlib.nullcontext():
            doing(str(order.get("do", "")))
            try:
                return answer(order)
            except Exception:
                traceback.print_exc()
                raise
    except Exception as error:
        if trouble := trouble_of_error(error, places_of(order)):
            return {"trouble": asdict(trouble)}
        raise


WRITTEN, WRITTEN_FILES = ("into", "folder", "scratch"), ("path", "log")
"""The names of the folders and of the files in an order that its work writes to."""


def folders_of(order: Mapping[str, object]) -> list[Path]:
    """The folders that an order names for its work to write to."""
    paths = {name: Path(value) for name, value in order.items() if value and isinstance(value, str)}
    folders = [paths[name] for name in WRITTEN if name in paths]
    return [*folders, *(paths[name].parent for name in WRITTEN_FILES if name in paths)]


def places_of(order: Mapping[str, object]) -> list[Path]:
    """Every folder that the work of an order writes to."""
    return [*folders_of(order), Path(tempfile.gettempdir())]


def blame(error: BaseException, order: Mapping[str, object]) -> None:
    """Raise InTrouble if the machine is to blame. Called by workers whose replies contain the errors of the
    work."""
    if trouble := trouble_of_error(error, places_of(order)):
        raise InTrouble(trouble) from error


NOT_CACHED = "not_cached"
"""In the reply of work whose result must not be cached, this says why."""

UNFORESEEN = "unforeseen"
"""The kind of an error of our own."""


def reporting(work: Answer, error_of: Callable[[Exception, Order], dict[str, Any]]) -> Answer:
    """Wrap work so that its reply contains its costs, or under `error` why it failed: `error_of` turns an
    exception into kind, message, fix and exit_code. Raises InTrouble."""

    def answer(order: Order) -> dict[str, object]:
        meter = Meter()
        try:
            reply = work(order)
        except Exception as error:
            traceback.print_exc()
            blame(error, order)
            return {"error": error_reply(**error_of(error, order))}
        return {**reply, **asdict(meter.read())}

    return answer


def error_reply(kind: str, message: str, **more: Any) -> dict[str, object]:
    """The error in a reply, from which Refused is made. `more` may have a fix, an exit code, and details."""
    reply = {"kind": kind, "message": message, "fix": "", "exit_code": 1, **more}
    # JSON knows text alone: the commands in it go beside it.
    parts = {"parts": fix.parts} if isinstance(fix := reply["fix"], Fix) else {}
    return {**reply, **parts}


@dataclass(frozen=True, slots=True)
class WorkCosts:
    """The costs of work."""

    seconds: float
    """The elapsed time."""
    cpu_seconds: float
    """The processor time, including that of child processes."""
    peak: int
    """The peak memory in bytes."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What another process spent on this process's task before it was forked."""

    cpu_seconds: float = 0.0
    peak: int = 0
    waited: float = 0.0
    """For this time it waited for orders."""


_before = _Before()


class Meter:
    """Measures time, CPU time and memory from its creation on."""

    def __init__(self) -> None:
        # Resets the kernel's record of the peak memory.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._start, self._cpu = time.monotonic(), cpu_seconds()

    def read(self) -> WorkCosts:
        seconds = time.monotonic() - self._start - _before.waited
        peak = max(_before.peak, memory_of_process("VmHWM"))
        return WorkCosts(round(seconds, 3), round(cpu_seconds() - self._cpu, 3), peak)


@contextlib.contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Send all output to this log, including that of C and C++ code and of child processes."""
    global _log
    descriptors, before = [os.dup(1), os.dup(2)], _log
    _print_to(log)
    try:
        yield
    finally:
        flush_output()
        for number, old in zip((1, 2), descriptors, strict=True):
            os.dup2(old, number)
            os.close(old)
        os.close(_log)
        _log = before


def _print_to(log: Path) -> None:
    global _log
    log.parent.mkdir(parents=True, exist_ok=True)
    # A file of its own: another command may do work of this name at the same time, and what the compiler
    # prints of that work would be taken for this one's.
    own = log.with_name(f".{os.getpid()}.log")
    _log = os.open(own, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    own.replace(log)
    flush_output()
    os.dup2(_log, 1)
    os.dup2(_log, 2)


def go_on(log: Path, cpu: float, peak: int, waited: float) -> None:
    """Go on with a task that another process began: print to this log, and count the processor time and the
    memory that it took until then, but not the time that it waited."""
    global _before
    _print_to(log)
    _before = _Before(_before.cpu_seconds + cpu, max(_before.peak, peak), _before.waited + waited)


def flush_output() -> None:
    """Write out what Python and C code have printed so far."""
    sys.stdout.flush()
    sys.stderr.flush()
    _libc.fflush(None)


def loaded_libraries() -> list[str]:
    """The libraries that this process has loaded from outside its Python's environment and the system. Those
    of the environment are known by its packages, and those of Python's own modules by its version."""
    known = (*known_folders(), *SYSTEM)
    rows = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text("utf-8").splitlines())
    libraries = {row[5] for row in rows if len(row) == 6 and "x" in row[1] and ".so" in Path(row[5]).name}
    return sorted(path for path in libraries if not path.startswith(known))


def memory_of_process(field: str) -> int:
    """This process's memory in bytes, as the kernel counts it."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def cpu_seconds() -> float:
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return _before.cpu_seconds + own


def printed_so_far() -> int:
    """The number of bytes in the log of this process."""
    flush_output()
    return os.fstat(_log).st_size


def text_since(begin: int) -> str:
    """Return what this process has printed to its log after this byte."""
    end = printed_so_far()
    return os.pread(_log, max(0, end - begin), begin).decode("utf-8", "replace")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings and advice, such as those of ONNX's exporter and quantizer, which do not apply here."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
