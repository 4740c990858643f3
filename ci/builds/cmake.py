"""CMake projects, built one after the other in one folder that records what they were built from; and their
targets, which CMake names by its File API.

https://cmake.org/cmake/help/latest/manual/cmake-file-api.7.html
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TextIO, get_args

from ci.builds.toolchain import BuildTool
from ci.diagnose.logs import nearest
from provisioning.base import units
from provisioning.base.commands import add_flags, quote_command
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.files import replace_text
from provisioning.base.progress import bar_for

LOG = "build.log"
RECORD = "made-by.json"
FORMAT = 6

STEERING = (
    "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
    "ASMFLAGS", "LIBRARY_PATH", "LD_RUN_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "CMAKE_PREFIX_PATH",
    "CMAKE_TOOLCHAIN_FILE", "CMAKE_GENERATOR", "CMAKE_BUILD_TYPE", "CMAKE_INSTALL_PREFIX", "DESTDIR",
    "CMAKE_INCLUDE_PATH", "CMAKE_LIBRARY_PATH", "CMAKE_PROGRAM_PATH", "PYTHONPATH", "PYTHONHOME",
    "NDK_CCACHE",
    # find_package(executorch) looks there first and would find the user's tree.
    "EXECUTORCH_ROOT", "executorch_ROOT", "executorch_DIR",
)  # fmt: skip
"""Variables that silently change what compilers and CMake do. Commands run without them."""

_ERROR = re.compile(
    r"^(?:CMake Error|ninja: error|.*?(?:fatal )?error: |.*undefined reference|.*ld: cannot find)"
)
_CONTEXT_LINES = 12
_NINJA = re.compile(r"\[(\d+)/(\d+)\] ")
_KILLED = re.compile(
    r"Killed signal terminated program|fatal error: Killed|LLVM ERROR: out of memory|bad_alloc"
)
_FULL = "No space left on device"


@dataclass(frozen=True, slots=True)
class BuildCommand:
    title: str
    argv: tuple[str, ...]

    def __str__(self) -> str:
        return quote_command(*self.argv)


@dataclass(frozen=True, slots=True)
class ConfiguredProject:
    name: str
    source: Path
    tree: Path
    """CMake's build directory."""
    definitions: Mapping[str, str]
    arguments: tuple[str, ...] = ()
    install: bool = False
    """Whether its install rules run when it was built."""


@dataclass(frozen=True, slots=True)
class FolderState:
    """The state of a folder that an earlier build used."""

    reasons: tuple[str, ...] = ()
    """Why the folder must be emptied first; empty if it can be used."""
    configured: Mapping[str, str] = field(default_factory=dict)
    """What each project was configured with."""


@dataclass(frozen=True, slots=True)
class Build:
    folder: Path
    cmake: BuildTool
    ninja: BuildTool
    projects: tuple[ConfiguredProject, ...]
    jobs: int
    identity: Mapping[str, str] = field(default_factory=dict)
    """What everything in the folder was built from. Another value empties the folder."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the commands, beside the user's own environment without STEERING."""
    owned: tuple[str, ...] = ("build",)
    """Folders below `folder` that are emptied."""
    listing: str = ""
    """What of the sources CMake looks at only when it configures."""

    @property
    def log(self) -> Path:
        return self.folder / LOG

    def run(self, *, clean: bool = False, prepare: Callable[[], None] = lambda: None) -> FolderState:
        """Configure and build all projects; `prepare` makes what they need in the folder. Returns its state
        before."""
        state = FolderState(("--clean",)) if clean else self.state()
        if state.reasons:
            if not clean:
                sys.stderr.write(f"building everything again: {'; '.join(state.reasons)}\n")
            self.empty()
        configured = dict(state.configured)
        self._record(configured)
        prepare()
        self.log.write_text("", encoding="utf-8")
        for project in self.projects:
            # Ninja itself has CMake configure again when a CMake file changed.
            if configured.get(project.name) != (digest := self._configured(project)):
                configured.pop(project.name, None)
                self._record(configured)
                # It has options of earlier builds, and what a configuring that failed did not find.
                (project.tree / "CMakeCache.txt").unlink(missing_ok=True)
                ask(project.tree)
                self._execute(self.configuring(project))
                configured[project.name] = digest
                self._record(configured)
            self._execute(self.building(project))
            if project.install:
                self._execute(self.installing(project))
        return state

    def _execute(self, command: BuildCommand) -> None:
        execute(command, self.log, self.environ(os.environ), jobs=self.jobs)

    def commands(self) -> Iterator[BuildCommand]:
        """The commands of a build in an empty folder."""
        for project in self.projects:
            yield self.configuring(project)
            yield self.building(project)
            if project.install:
                yield self.installing(project)

    def configuring(self, project: ConfiguredProject) -> BuildCommand:
        definitions = self._definitions(project)
        return BuildCommand(
            f"configuring {project.name}",
            (
                str(self.cmake.path),
                *("-S", os.path.normpath(project.source)),
                *("-B", os.path.normpath(project.tree), "-G", "Ninja"),
                *(f"-D{name}={value}" for name, value in sorted(definitions.items())),
                *project.arguments,
            ),
        )

    def building(self, project: ConfiguredProject) -> BuildCommand:
        tree = os.path.normpath(project.tree)
        command = (str(self.cmake.path), "--build", tree, "--parallel", str(self.jobs))
        return BuildCommand(f"building {project.name}", command)

    def installing(self, project: ConfiguredProject) -> BuildCommand:
        command = (str(self.cmake.path), "--install", os.path.normpath(project.tree))
        return BuildCommand(f"installing {project.name}", command)

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        environment = {name: value for name, value in environ.items() if name not in STEERING}
        return {**environment, "NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C.UTF-8", **self.variables}

    def state(self) -> FolderState:
        if not self.folder.is_dir() or not any(self.folder.iterdir()):
            return FolderState()
        try:
            record = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise ValueError(record["format"])
            identity, configured = record["identity"], record["configured"]
        except (OSError, ValueError, KeyError, TypeError):
            return FolderState(("its inputs are not known",))
        reasons = _differences(identity, self._identity())
        return FolderState(reasons) if reasons else FolderState((), configured)

    def empty(self) -> None:
        """Remove what builds put there and nothing else."""
        (self.folder / RECORD).unlink(missing_ok=True)
        for name in self.owned:
            if (self.folder / name).exists():
                shutil.rmtree(self.folder / name)

    def _definitions(self, project: ConfiguredProject) -> dict[str, str]:
        return {"CMAKE_MAKE_PROGRAM": str(self.ninja.path), **project.definitions}

    def _identity(self) -> dict[str, str]:
        # CMake's caches name these: a moved folder fails, and another CMake reuses half of the cache.
        own = {
            "cmake": self.cmake.identity,
            "ninja": str(self.ninja.path),
            "build directory": str(self.folder),
        }
        return {**self.identity, **own}

    def _configured(self, project: ConfiguredProject) -> str:
        """Everything that configuring depends on but CMake files, which Ninja watches."""
        arguments = [self._definitions(project), project.arguments, self.listing]
        return hashlib.sha256(json.dumps(arguments).encode()).hexdigest()

    def _record(self, configured: Mapping[str, str]) -> None:
        record = {"format": FORMAT, "identity": self._identity(), "configured": dict(configured)}
        replace_text(self.folder / RECORD, json.dumps(record, indent=2, sort_keys=True) + "\n")


class Ticker:
    """A bar on a terminal; elsewhere a line for each tenth of the way."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar = bar_for(sys.stderr)
        self._tenth = -1
        self._total = 0

    def step(self, count: int, total: int) -> None:
        """Set the progress. A smaller total belongs to a project that is built inside this one, and is
        ignored."""
        if total < self._total:
            return
        self._total = total
        if self._bar:
            self._bar.draw(self._title, count, total, f"{count} of {total}")
        elif total and count * 10 // total != self._tenth:
            self._tenth = count * 10 // total
            print(f"{self._title}: {count} of {total}", file=sys.stderr, flush=True)

    def end(self, text: str) -> None:
        if self._bar:
            self._bar.remove()
            self._bar.print(text)
        else:
            print(text, file=sys.stderr, flush=True)


def execute(command: BuildCommand, log: Path, environ: Mapping[str, str], *, jobs: int = 1) -> None:
    """Append all that the command prints to the log.

    Raises CheckFailed with the first error, or EnvironmentLacking when memory or disk ran out.
    """
    ticker = Ticker(command.title)
    start = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", errors="replace") as out:
        out.write(f"$ {command}\n")
        out.flush()
        offset = out.tell()
        outcome = "interrupted"
        try:
            code = _stream(command, out, environ, ticker)
            outcome = "done" if code == 0 else "failed"
        finally:
            ticker.end(f"{command.title}: {outcome} in {units.seconds(time.monotonic() - start)}")
    if code != 0:
        with log.open(encoding="utf-8", errors="replace") as stream:
            stream.seek(offset)
            raise failure(command, code, stream.read(), log, jobs)


def failure(
    command: BuildCommand, code: int, text: str, log: Path, jobs: int
) -> CheckFailed | EnvironmentLacking:
    if _FULL in text:
        return EnvironmentLacking(
            f"{command.title}: the disk is full",
            fix="free some space, or build elsewhere with --build-dir",
            output=text,
        )
    if _KILLED.search(text):
        return EnvironmentLacking(
            f"{command.title}: a compiler was killed for lack of memory, with {jobs} at once",
            fix=add_flags("--jobs", str(max(1, jobs // 2))),
            output=text,
        )
    error = first_error(text)
    cause = nearest(error)
    return CheckFailed(
        f"{command.title} failed with exit code {code}:\n{error}" + (f"\n  {cause}" if cause else ""),
        fix=f"{cause.fix}; the whole log is {log}" if cause else f"read {log}",
        output=text,
    )


def first_error(text: str) -> str:
    """One error of CMake's, to its last line, or a compiler's with what follows it; the log's end if none is
    recognised."""
    lines = text.splitlines()
    at = next((number for number, line in enumerate(lines) if _ERROR.match(line)), -_CONTEXT_LINES)
    context = lines[at:]
    if context and context[0].startswith("CMake Error"):
        context = [context[0], *itertools.takewhile(lambda line: line[:1] in ("", " "), context[1:])]
    return "\n".join(f"  {line}" for line in context[:_CONTEXT_LINES] if line.strip())


def _stream(command: BuildCommand, out: TextIO, environ: Mapping[str, str], ticker: Ticker) -> int:
    """Write what the command prints to `out`; returns its exit code."""
    with subprocess.Popen(
        command.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environ),
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                out.write(line)
                if progress := _NINJA.match(line):
                    ticker.step(int(progress.group(1)), int(progress.group(2)))
        except BaseException:
            # Otherwise Ninja and its compilers would keep running.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            raise
        return process.wait()


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"{name} was {before.get(name) or 'none'}, is {now.get(name) or 'none'}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    )


API = Path(".cmake/api/v1")
QUERY = API / "query/codemodel-v2"
"""CMake answers when it configures a build directory with this file."""

Loaded = Literal["EXECUTABLE", "SHARED_LIBRARY", "MODULE_LIBRARY"]
"""The types of targets that are run or loaded."""


@dataclass(frozen=True, slots=True)
class CMakeTarget:
    name: str
    kind: str
    build: Path
    """The build directory of its project."""
    defined_in: Path
    """The folder of the CMake file that defines it."""
    artifacts: tuple[Path, ...]
    sources: tuple[Path, ...]
    objects: str
    """What the paths of its object files begin with, below `build`."""
    linked: tuple[str, ...]
    """Names of the libraries on its link line, those of static libraries included."""
    parts: tuple[str, ...]
    """Identities of the targets that it depends on."""
    identity: str

    @property
    def is_loaded(self) -> bool:
        return self.kind in get_args(Loaded)


def ask(build: Path) -> None:
    (build / QUERY).parent.mkdir(parents=True, exist_ok=True)
    (build / QUERY).touch()


def targets(build: Path) -> list[CMakeTarget]:
    """The targets of a project that was configured after `ask`."""
    reply = build / API / "reply"
    try:
        # Configuring again gives another name.
        index = _read(max(reply.glob("index-*.json")))
        model = _read(reply / index["reply"]["codemodel-v2"]["jsonFile"])
        (configuration,) = model["configurations"]
        source = Path(model["paths"]["source"])
        return [
            _target(_read(reply / entry["jsonFile"]), source, build) for entry in configuration["targets"]
        ]
    except (OSError, ValueError, KeyError) as error:
        raise CheckFailed(
            f"{reply}: expected CMake's answer about its targets, found {type(error).__name__}: {error}",
            fix="build with --clean",
        ) from error


def linked_into(shipped: Iterable[CMakeTarget], candidates: Iterable[CMakeTarget]) -> list[CMakeTarget]:
    """`shipped`, and all targets whose object files went into them."""
    candidates = list(candidates)
    by_identity = {(target.build, target.identity): target for target in candidates}
    by_file: dict[str, list[CMakeTarget]] = {}
    for target in candidates:
        for artifact in target.artifacts:
            by_file.setdefault(artifact.name, []).append(target)
    members: dict[tuple[Path, str], CMakeTarget] = {}
    queue = list(shipped)
    while queue:
        target = queue.pop()
        if members.setdefault((target.build, target.identity), target) is not target:
            continue
        # A project that uses the installed libraries of another one names them by their files.
        queue += [library for name in target.linked for library in by_file.get(name, ())]
        parts = (by_identity.get((target.build, part)) for part in target.parts)
        queue += [part for part in parts if part is not None and part.kind == "OBJECT_LIBRARY"]
    return list(members.values())


def files_read(targets_: Iterable[CMakeTarget], dependencies: Mapping[Path, str]) -> Iterator[Path]:
    """The sources of targets, and the headers that their compiling read.

    `dependencies`: what `ninja -t deps` prints, by build directory."""
    owners = list(targets_)
    for target in owners:
        yield from target.sources
    for build, text in dependencies.items():
        prefixes = tuple(target.objects for target in owners if target.build == build)
        inside = False
        for line in text.splitlines():
            if line.startswith("    "):
                if inside:
                    yield build / line[4:]
            else:
                inside = line.startswith(prefixes)


def _target(reply: Mapping[str, Any], source: Path, build: Path) -> CMakeTarget:
    name, paths = reply["name"], reply["paths"]
    fragments = [
        word
        for fragment in reply.get("link", {}).get("commandFragments", ())
        if fragment.get("role") == "libraries"
        for word in shlex.split(fragment["fragment"])
    ]
    return CMakeTarget(
        name=name,
        kind=reply["type"],
        build=build,
        defined_in=source / paths["source"],
        artifacts=tuple(build / artifact["path"] for artifact in reply.get("artifacts", ())),
        sources=tuple(source / entry["path"] for entry in reply.get("sources", ())),
        objects=str(PurePosixPath(paths["build"], "CMakeFiles", f"{name}.dir")) + "/",
        linked=tuple(PurePosixPath(word).name for word in fragments if not word.startswith("-")),
        parts=tuple(dependency["id"] for dependency in reply.get("dependencies", ())),
        identity=reply["id"],
    )


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
