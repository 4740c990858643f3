"""Configure a copy of the CMake files of a tree without a compiler, and generate nothing: CMake then shows
which commands it runs.

Configuring executes the files. So CMake gets a copy, a home directory of its own and a time limit. `traces`
configures each project, and again where CMake read a file that was not copied yet. What CMake wrote is read
by `cmake_trace`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import posixpath
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.parity.cmake_texts import commands
from ci.parity.cmake_trace import (
    CMAKE_FIX,
    DECLARING,
    END_MESSAGE,
    PROPERTIES,
    SOURCE,
    UNKNOWN,
    ConfigureInput,
    Trace,
    read_trace,
    tree_path,
)
from ci.parity.tree import NotEvaluated, Tree, TreePlace, is_python
from provisioning.base.errors import EnvironmentLacking

MOST_ROUNDS = 8
"""How often CMake is run again because it read a file that was not copied yet."""

_OUTER = Path(__file__).with_name("outer.cmake")

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
            read_trace(process, work, number, tree, project)
            for number, (process, project) in enumerate(zip(running, projects, strict=True))
        )


def _cmake() -> Path:
    """This interpreter's own CMake."""
    spec = importlib.util.find_spec("cmake")
    for folder in spec.submodule_search_locations or () if spec else ():
        program = Path(folder) / "data" / "bin" / "cmake"
        if program.is_file():
            return program
    raise EnvironmentLacking("CMake is not beside this Python", fix=CMAKE_FIX)


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
    (source / "CMakeLists.txt").write_text(outer.replace("@END@", END_MESSAGE), encoding="utf-8")


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
