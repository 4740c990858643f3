"""Read what CMake wrote while it configured a project: the commands that it ran, with their places, the
properties of each target, and its errors.

`cmake_configure` runs CMake and calls `read_trace`. What the commands declare is found by `cmake_targets`."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.parity.tree import NotEvaluated, Tree, TreePlace, normal
from provisioning.base.errors import EnvironmentLacking

UNKNOWN = "@qnn-ci-unknown@"
"""Stands for a value that only a real configure step could know."""


PROPERTIES = (
    "TYPE",
    "IMPORTED",
    "SOURCE_DIR",
    "SOURCES",
    "INTERFACE_SOURCES",
    "LINK_LIBRARIES",
    "INTERFACE_LINK_LIBRARIES",
    "COMPILE_DEFINITIONS",
    "INTERFACE_COMPILE_DEFINITIONS",
    "COMPILE_OPTIONS",
    "INTERFACE_COMPILE_OPTIONS",
    "INCLUDE_DIRECTORIES",
    "INTERFACE_INCLUDE_DIRECTORIES",
    "COMPILE_FLAGS",
    "COMPILE_FEATURES",
    "CXX_STANDARD",
    "HEADER_SETS",
    "INTERFACE_HEADER_SETS",
)
"""The properties that are read of each target."""

DECLARING = ("add_library", "add_executable", "pybind11_add_module")
"""Commands that declare a target, their first argument."""

END_MESSAGE = "qnn-ci: the end"
CMAKE_FIX = "python -m pip install 'cmake>=3.28'"

_OF_OUTER = ("qnn_ci_", "add_subdirectory", UNKNOWN, END_MESSAGE)
"""What matters of the project around the tree, whose commands are most of a trace."""


_ERROR = re.compile(
    r"CMake Error(?: \([^)]*\))?"
    r"(?: at (?P<file>[^\n]+?):(?P<line>\d+)(?: \((?P<command>\w+)\))?)?:(?P<text>.*)",
    re.DOTALL,
)
_EVALUATED = re.compile(r"(.+):(\d+):EVAL")
_CALLER = re.compile(r"^  (?P<file>[^\n]+?):(?P<line>\d+) \(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ExecutedCommand:
    """An executed command. Paths in `args` begin with SOURCE or BINARY, with no directory of the machine."""

    command: str
    args: tuple[str, ...]
    file: str
    """A file of the tree; empty for the project around it."""
    line: int
    folder: str
    """The directory that its relative paths begin in."""

    @property
    def place(self) -> TreePlace:
        return TreePlace(self.file, self.line)


SOURCE, BINARY = "/source", "/binary"


@dataclass(slots=True)
class Trace:
    events: list[ExecutedCommand] = field(default_factory=list)
    targets: list[dict[str, str]] = field(default_factory=list)
    """Properties by name; `HEADERS` are those of file sets, `DEFINITIONS` those of the directory."""
    variables: frozenset[str] = frozenset()
    """Names that had a value before the tree's first command."""
    unknown: set[str] = field(default_factory=set)
    """Names that got UNKNOWN in answer to a question about the machine."""
    troubles: list[NotEvaluated] = field(default_factory=list)
    complete: bool = False


def read_trace(
    process: subprocess.Popen[bytes], work: Path, number: int, tree: Tree, project: ConfigureInput
) -> Trace:
    """Read what CMake wrote while it configured a project."""
    errors = (work / f"errors{number}").read_text(encoding="utf-8", errors="replace")
    file = work / f"trace{number}"
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    if not lines or '"version"' not in lines[0]:
        last = errors.strip().splitlines()[-1:] or [f"it ended with {process.returncode}"]
        raise EnvironmentLacking(f"CMake gives no trace: {last[0]}", fix=CMAKE_FIX)
    local = _localiser(work, number)
    reader = _TraceReader(tree)
    for row in _rows_of_trace(lines, f"{work}/source/CMakeLists.txt"):
        reader.add(_executed_command(row, local))
    trace = reader.trace
    trace.troubles += _errors(errors, tree, local, project)
    if not trace.complete and not trace.troubles:
        trace.troubles.append(_stopped(trace, project))
    return trace


def _stopped(trace: Trace, project: ConfigureInput) -> NotEvaluated:
    place = trace.events[-1].place if trace.events else TreePlace(project.entries[0], 1)
    why = f"CMake was stopped after {project.seconds:.0f} s or {project.size >> 20} MB: a loop without end?"
    return NotEvaluated(place, place.file, why)


def _rows_of_trace(lines: Iterable[str], outer: str) -> Iterator[dict[str, Any]]:
    """Parse the lines that matter: most are of CMake's own modules, or of the project around the tree, whose
    file is `outer`."""
    outer_in_json = json.dumps(outer)
    for line in lines:
        if not line.startswith("{") or not line.endswith("}"):
            continue  # The last line of a process that was killed.
        if "/source/" not in line and UNKNOWN not in line:
            continue  # CMake's own modules.
        if outer_in_json in line and not any(word in line for word in _OF_OUTER):
            continue
        row = json.loads(line)
        if "cmd" in row:
            yield row


@dataclass(frozen=True, slots=True)
class _TracedCommand:
    """A command as the trace has it, with SOURCE and BINARY in place of this machine's directories."""

    command: str
    args: tuple[str, ...]
    path: str
    line: int
    depth: int
    """How many files and functions it is inside of."""


def _executed_command(row: Mapping[str, Any], local: Callable[[str], str]) -> _TracedCommand:
    path, line = local(row["file"]), row["line"]
    if evaluated := _EVALUATED.fullmatch(path):
        path, line = evaluated[1], int(evaluated[2])
    # One call for all arguments: a trace has some 100,000 commands.
    args = tuple(local("\0".join(row["args"])).split("\0")) if row["args"] else ()
    return _TracedCommand(row["cmd"].lower(), args, path, line, row["global_frame"])


class _TraceReader:
    """Makes a Trace of the commands, in their order.

    The project around the tree runs commands whose arguments are for us: which variables had a value before
    the tree's first command, the properties of each target, and that CMake came to its end."""

    def __init__(self, tree: Tree) -> None:
        self.trace = Trace()
        self._tree = tree
        self._folders: list[tuple[int, str]] = []
        """The directories that CMake is in, each with the depth of the command that entered it."""
        self._has_begun = False
        """Whether the tree's own commands are running."""

    @property
    def _folder(self) -> str:
        return self._folders[-1][1] if self._folders else ""

    def add(self, traced: _TracedCommand) -> None:
        while self._folders and traced.depth <= self._folders[-1][0]:
            self._folders.pop()
        if traced.command == "set" and traced.args[1:2] == (UNKNOWN,):
            self.trace.unknown.add(traced.args[0])
        if traced.path == f"{SOURCE}/CMakeLists.txt":
            self._add_answer(traced)
        elif self._has_begun and traced.path.startswith(f"{SOURCE}/"):
            self._add_event(traced)
        if traced.command == "add_subdirectory" and traced.args:
            self._folders.append((traced.depth, tree_path(traced.args[0], self._folder) or ""))

    def _add_answer(self, traced: _TracedCommand) -> None:
        """Read a command of the project around the tree."""
        if traced.command == "qnn_ci_known":
            self.trace.variables = frozenset(traced.args[0].split(";"))
            self._has_begun = True
        elif traced.command == "qnn_ci_target":
            names = ("NAME", "HEADERS", "DEFINITIONS", "FLAGS", *PROPERTIES)
            self.trace.targets.append(dict(zip(names, traced.args, strict=True)))
        elif traced.command == "message" and traced.args[-1] == END_MESSAGE:
            self.trace.complete = True

    def _add_event(self, traced: _TracedCommand) -> None:
        """Keep a command of the tree."""
        file = _tree_path(traced.path)
        if file in self._tree.files and traced.path != f"{SOURCE}/CMakeLists.txt":
            event = ExecutedCommand(traced.command, traced.args, file, traced.line, self._folder)
            self.trace.events.append(event)


def _localiser(work: Path, number: int) -> Callable[[str], str]:
    source, binary = str(work / "source"), str(work / f"build{number}")

    def local(text: str) -> str:
        return text.replace(source, SOURCE).replace(binary, BINARY)

    return local


def _errors(
    text: str, tree: Tree, local: Callable[[str], str], project: ConfigureInput
) -> Iterator[NotEvaluated]:
    for part in re.split(r"^(?=CMake \w+)", text, flags=re.MULTILINE):
        match = _ERROR.match(part)
        if not match or END_MESSAGE in part or match["file"] is None:
            continue
        body, _, callers = match["text"].partition("Call Stack")
        places = [(match["file"], match["line"]), *_CALLER.findall(callers)]
        inside = [
            TreePlace(path, int(line))
            for file, line in places
            if (path := _tree_path(local(file))) in tree.files
        ]
        # The tree's own first file is replaced by the project around it.
        inside = [place for place in inside if place.file != "CMakeLists.txt"]
        place = inside[0] if inside else TreePlace(project.entries[0], 1)
        why = " ".join(plain(local(body)).split())
        unknown = re.match(r'Unknown CMake command "(\w+)"', why)
        if unknown:
            construct = f"{unknown[1]}()"
        elif match["command"] == "message":
            construct = "message(FATAL_ERROR)"
        else:
            construct = f"{match['command']}()" if match["command"] else place.file
        yield NotEvaluated(place, construct, f"CMake stops: {why}")


def plain(text: str) -> str:
    """The text as a reader knows it: without the paths of our copy, and without our word for the unknown."""
    return text.replace(f"{SOURCE}/", "").replace(f"{BINARY}/", "").replace(UNKNOWN, "(unknown)")


def _tree_path(file: str) -> str:
    return normal(file.removeprefix(f"{SOURCE}/"))


def tree_path(text: str, folder: str) -> str | None:
    """The path in the tree for a path of a command in this folder; None if it is outside or unknown."""
    if not text or "\0" in text or UNKNOWN in text:
        return None
    full = posixpath.normpath(posixpath.join(SOURCE, folder, text))
    if full == SOURCE:
        return ""
    return full[len(SOURCE) + 1 :] if full.startswith(f"{SOURCE}/") else None


MOST_SECONDS = 20.0

MOST_BYTES = 64 << 20
"""The largest file that CMake may write: a hundred traces of ExecuTorch's."""


@dataclass(frozen=True, slots=True)
class ConfigureInput:
    """The input of a configure step."""

    entries: tuple[str, ...]
    variables: Mapping[str, str]
    includes: tuple[str, ...] = ()
    """Files that are included before the entries, where they exist."""
    ignored: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    targets: frozenset[str] = frozenset()
    """Targets that other projects define."""
    shared: frozenset[str] = frozenset()
    """The targets of these that are shared libraries."""
    lists: Mapping[str, str] = field(default_factory=dict)
    """What a command that prints one of the tree's Starlark lists would print, by the list's name."""
    seconds: float = MOST_SECONDS
    size: int = MOST_BYTES
