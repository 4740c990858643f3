"""The commands that CMake runs: it configures a copy of the tree's CMake files without a compiler and
generates nothing.

Configuring executes the files. So CMake gets a copy, a home directory of its own and a time limit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import posixpath
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.parity.cmake_texts import commands
from ci.parity.tree import NotEvaluated, Tree, TreePlace, is_python, normal
from provisioning.base.errors import EnvironmentLacking

UNKNOWN = "@qnn-ci-unknown@"
"""Stands for a value that only a real configure step could know."""

MOST_SECONDS = 20.0
MOST_BYTES = 64 << 20
"""The largest file that CMake may write: a hundred traces of ExecuTorch's."""

MOST_ROUNDS = 8
"""How often CMake is run again because it read a file that was not copied yet."""

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

_OUTER = Path(__file__).with_name("outer.cmake")
_END = "qnn-ci: the end"
_FIX = "python -m pip install 'cmake>=3.28'"

_OF_OUTER = ("qnn_ci_", "add_subdirectory", UNKNOWN, _END)
"""What matters of the project around the tree, whose commands are most of a trace."""

_CHECKS = {
    "CheckCCompilerFlag": ("check_c_compiler_flag", 1),
    "CheckCSourceCompiles": ("check_c_source_compiles", 1),
    "CheckCXXCompilerFlag": ("check_cxx_compiler_flag", 1),
    "CheckCXXSourceCompiles": ("check_cxx_source_compiles", 1),
    "CheckCXXSymbolExists": ("check_cxx_symbol_exists", 2),
    "CheckFunctionExists": ("check_function_exists", 1),
    "CheckIncludeFile": ("check_include_file", 1),
    "CheckIncludeFileCXX": ("check_include_file_cxx", 1),
    "CheckLibraryExists": ("check_library_exists", 3),
    "CheckSymbolExists": ("check_symbol_exists", 2),
}
"""CMake's modules that try a compiler, their function, and its argument that names the result variable."""

_FETCHES = {
    "FetchContent": ("FetchContent_Declare", "FetchContent_MakeAvailable", "FetchContent_Populate"),
    "ExternalProject": ("ExternalProject_Add",),
}

_ERROR = re.compile(
    r"CMake Error(?: \([^)]*\))?"
    r"(?: at (?P<file>[^\n]+?):(?P<line>\d+)(?: \((?P<command>\w+)\))?)?:(?P<text>.*)",
    re.DOTALL,
)
_EVALUATED = re.compile(r"(.+):(\d+):EVAL")
_CALLER = re.compile(r"^  (?P<file>[^\n]+?):(?P<line>\d+) \(", re.MULTILINE)


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


def traces(tree: Tree, projects: Sequence[ConfigureInput]) -> tuple[Trace, ...]:
    """One for each project, configured side by side."""
    gaps = [entry for project in projects for entry in project.entries if entry not in tree.files]
    if gaps:
        trouble = NotEvaluated(TreePlace(gaps[0], 1), gaps[0], "the file does not exist")
        return tuple(Trace(troubles=[trouble]) for _ in projects)
    # Of the rest of the tree CMake gets what it asks for, one round later.
    tops = {path.split("/")[0] for project in projects for path in (*project.entries, *project.includes)}
    texts = {path for path in tree.files if path.split("/")[0] in tops and _is_cmake(path)}
    folders = {posixpath.dirname(entry) for project in projects for entry in project.entries}
    names = {path for folder in folders for path in _names(tree, folder)}
    traced: list[set[str]] = [set() for _ in projects]
    result: tuple[Trace, ...] = ()
    for _ in range(MOST_ROUNDS):
        before = len(texts), len(names), [*map(len, traced)]
        result = _configure_all(tree, projects, texts, names, traced)
        for project, trace, targets in zip(projects, result, traced, strict=True):
            declarations = (event for event in trace.events if event.args and event.command in DECLARING)
            # Other targets change nothing in the next round.
            deciding = project.targets - _declared_targets(tree, project, texts)
            targets.update(deciding & {event.args[0] for event in declarations})
            _look(tree, trace, texts, names)
        if before == (len(texts), len(names), [*map(len, traced)]):
            break
    return result


def _is_cmake(path: str) -> bool:
    return path.endswith((".cmake", "/CMakeLists.txt")) or path == "CMakeLists.txt"


def _names(tree: Tree, folder: str) -> Iterator[str]:
    """A folder's files whose names CMake may ask for; it decides nothing by Python's."""
    return (path for path in tree.under(folder) if not is_python(path))


def _look(tree: Tree, trace: Trace, texts: set[str], names: set[str]) -> None:
    """Add the tree's files that CMake looked for: those that it read, and those of folders."""
    for event in trace.events:
        if event.command not in ("add_subdirectory", "configure_file", "file", "if", "elseif", "include"):
            continue
        condition = event.command in ("if", "elseif")
        for arg in event.args:
            path = tree_path(re.split(r"[*?\[]", arg)[0], event.folder)
            if not path or (condition and not arg.startswith(SOURCE)):
                continue  # A word of a condition is rarely a file.
            folder = path if path in tree.directories else posixpath.dirname(path)
            if path in tree.files:
                (names if condition or event.args[0].startswith("GLOB") else texts).add(path)
            elif folder and folder in tree.directories:
                names.update(_names(tree, folder))


def _configure_all(
    tree: Tree, projects: Sequence[ConfigureInput], texts: set[str], names: set[str], traced: list[set[str]]
) -> tuple[Trace, ...]:
    """`traced` are targets that each project declared before, also by functions that get the name."""
    cmake = _cmake()
    with tempfile.TemporaryDirectory(prefix="qnn-ci-cmake-") as temporary:
        work = Path(temporary).resolve()
        source = work / "source"
        _copy(tree, source, projects, texts, names)
        _write_modules(work / "modules")
        running = []
        for number, project in enumerate(projects):
            declared = _declared_targets(tree, project, texts) | traced[number]
            variant = work / f"variant{number}.cmake"
            includes = [path for path in project.includes if path in texts]
            settings = _settings(work, project, declared, includes)
            variant.write_text("\n".join(settings) + "\n", encoding="utf-8")
            running.append(_start(cmake, work, number, variant, project))
        _wait(running, projects)
        return tuple(
            _read(process, work, number, tree, project)
            for number, (process, project) in enumerate(zip(running, projects, strict=True))
        )


def _cmake() -> Path:
    """This interpreter's own CMake."""
    spec = importlib.util.find_spec("cmake")
    for folder in spec.submodule_search_locations or () if spec else ():
        program = Path(folder) / "data" / "bin" / "cmake"
        if program.is_file():
            return program
    raise EnvironmentLacking("CMake is not beside this Python", fix=_FIX)


def _copy(
    tree: Tree, source: Path, projects: Sequence[ConfigureInput], texts: set[str], names: set[str]
) -> None:
    """Copy the texts, and create empty files under the other names."""
    outside = {folder for project in projects for folder in project.outside}
    for folder in outside | {posixpath.dirname(path) for path in (*texts, *names)}:
        (source / folder).mkdir(parents=True, exist_ok=True)
    for path in names:
        os.close(os.open(source / path, os.O_CREAT | os.O_WRONLY))
    for path in texts:
        (source / path).write_text(tree.read(path), encoding="utf-8")
    for folder in outside:
        (source / folder / "CMakeLists.txt").write_text("", encoding="utf-8")
    indent = " " * 4
    values = [f"{indent}get_property(value_{name} TARGET ${{target}} PROPERTY {name})" for name in PROPERTIES]
    outer = _OUTER.read_text(encoding="utf-8")
    outer = outer.replace("@PROPERTIES@", "\n".join(values))
    outer = outer.replace("@VALUES@", " ".join(f'"${{value_{name}}}"' for name in PROPERTIES))
    (source / "CMakeLists.txt").write_text(outer.replace("@END@", _END), encoding="utf-8")


def _declared_targets(tree: Tree, project: ConfigureInput, texts: set[str]) -> set[str]:
    """Names of targets that the tree's own files may declare."""
    folders = tuple(f"{posixpath.dirname(entry)}/" for entry in project.entries)
    near = (tree.read(path) for path in texts if path.startswith(folders))
    declarations = (command for text in near for command in commands(text) if command.name in DECLARING)
    return {word.text for command in declarations for word in command.words[:1]}


def _settings(
    work: Path, project: ConfigureInput, declared: set[str], includes: Sequence[str]
) -> Iterator[str]:
    folders = ";".join(posixpath.dirname(entry) for entry in project.entries)
    yield f"set(QNN_CI_FOLDERS {_bracket(folders)})"
    yield f"set(QNN_CI_INCLUDES {_bracket(';'.join(includes))})"
    variables = {**project.variables, **{f"QNN_CI_LIST_{name}": text for name, text in project.lists.items()}}
    for name, value in variables.items():
        yield f"set({name} {_bracket(value)})"
    for name in sorted(project.targets - declared):
        if re.fullmatch(r"[\w.+:-]+", name):
            kind = "SHARED" if name in project.shared else "INTERFACE"
            yield f"add_library({name} {kind} IMPORTED GLOBAL)"
    for name in project.ignored:
        yield f"function({name})\nendfunction()"
    yield f"list(PREPEND CMAKE_MODULE_PATH {_bracket((work / 'modules').as_posix())})"


def _write_modules(modules: Path) -> None:
    """Replace CMake's modules that try a compiler or download something."""
    modules.mkdir()
    for module, (name, position) in _CHECKS.items():
        text = f'function({name})\n  set(${{ARGV{position}}} {UNKNOWN} CACHE INTERNAL "")\nendfunction()\n'
        (modules / f"{module}.cmake").write_text(text, encoding="utf-8")
    for module, functions in _FETCHES.items():
        text = "".join(f"function({name})\nendfunction()\n" for name in functions)
        (modules / f"{module}.cmake").write_text(text, encoding="utf-8")


def _bracket(value: str) -> str:
    equals = "="
    while f"]{equals}]" in value:
        equals += "="
    return f"[{equals}[{value}]{equals}]"


def _start(
    cmake: Path, work: Path, number: int, variant: Path, project: ConfigureInput
) -> subprocess.Popen[bytes]:
    home = work / f"home{number}"
    home.mkdir()
    # Nobody answers at port 9, so `file(DOWNLOAD)` brings nothing.
    offline = dict.fromkeys(("http_proxy", "https_proxy", "ftp_proxy"), "http://127.0.0.1:9")
    environment = {"HOME": str(home), "LC_ALL": "C", "PATH": os.defpath, **offline}
    # Limits of the system hold even if this process is killed and cannot stop what it began.
    limits = f"ulimit -t {2 * round(project.seconds)}; ulimit -f {project.size // 512}"
    with (work / f"errors{number}").open("wb") as errors:
        return subprocess.Popen(
            [
                *("/bin/sh", "-c", f'{limits}; exec "$0" "$@"', str(cmake)),
                *("-S", str(work / "source"), "-B", str(work / f"build{number}")),
                # The outer project builds nothing, but CMake looks for make all the same.
                *("-G", "Unix Makefiles", f"-DCMAKE_MAKE_PROGRAM={cmake}"),
                *("-Wno-dev", "--no-warn-unused-cli", f"-DQNN_CI_VARIANT={variant}"),
                *("--trace-expand", "--trace-format=json-v1", f"--trace-redirect={work / f'trace{number}'}"),
            ],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )


def _wait(running: Sequence[subprocess.Popen[bytes]], projects: Sequence[ConfigureInput]) -> None:
    """Wait until all have ended. One that takes too long is stopped."""
    start = time.monotonic()
    try:
        for process, project in zip(running, projects, strict=True):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, start + project.seconds - time.monotonic()))
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _read(
    process: subprocess.Popen[bytes], work: Path, number: int, tree: Tree, project: ConfigureInput
) -> Trace:
    """Read what CMake wrote while it configured a project."""
    errors = (work / f"errors{number}").read_text(encoding="utf-8", errors="replace")
    file = work / f"trace{number}"
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    if not lines or '"version"' not in lines[0]:
        last = errors.strip().splitlines()[-1:] or [f"it ended with {process.returncode}"]
        raise EnvironmentLacking(f"CMake gives no trace: {last[0]}", fix=_FIX)
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
        elif traced.command == "message" and traced.args[-1] == _END:
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
        if not match or _END in part or match["file"] is None:
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
