"""The files to check, listed once; and the form in which both builds are seen: libraries of files and
dependencies, each with its line."""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from provisioning.base.errors import CheckFailed

SKIPPED = frozenset({".git", ".hg", "__pycache__", "node_modules", "cmake-out", "buck-out"})
"""Directories without build files of the tree; build directories have a CMakeCache.txt, and submodules a
`.git`.
"""

MOST_SECONDS = 20
"""The time limit for git to list ignored files, which takes some hundredths of a second."""


class Tree:
    """Paths are relative, with `/`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._texts: dict[str, str] = {}

    @cached_property
    def files(self) -> frozenset[str]:
        return frozenset(_walk(self.root))

    @cached_property
    def directories(self) -> frozenset[str]:
        folders = {""}
        for path in self.files:
            folder = posixpath.dirname(path)
            while folder not in folders:
                folders.add(folder)
                folder = posixpath.dirname(folder)
        return frozenset(folders)

    @cached_property
    def _paths_by_directory(self) -> dict[str, list[str]]:
        by_folder: dict[str, list[str]] = {}
        for path in sorted(self.files):
            by_folder.setdefault(posixpath.dirname(path), []).append(path)
        return by_folder

    def read(self, path: str) -> str:
        if path not in self._texts:
            self._texts[path] = re.sub(r"\r\n?", "\n", self._original(path))
        return self._texts[path]

    def _original(self, path: str) -> str:
        try:
            return (self.root / path).read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckFailed(
                f"{path}: expected UTF-8, found {error.object[error.start]:#04x} at byte {error.start}",
                fix=f"save {path} as UTF-8",
            ) from error
        except OSError as error:
            raise CheckFailed(
                f"cannot read {path}: {error.strerror}", fix=f"make {self.root / path} readable"
            ) from error

    def under(self, folder: str) -> Iterator[str]:
        """Files below a folder (`""` is the whole tree), sorted by directory."""
        for directory, paths in self._paths_by_directory.items():
            if not folder or directory == folder or directory.startswith(folder + "/"):
                yield from paths

    def match(self, pattern: str, folder: str = "") -> frozenset[str]:
        """Files below `folder` whose relative path matches the pattern: `*` stays within a directory, `**`
        does not.

        A wildcard matches no name that begins with a dot."""
        if not any(sign in pattern for sign in "*?["):
            path = normal(posixpath.join(folder, pattern))
            return frozenset({path} if path in self.files else ())
        start = len(folder) + 1 if folder else 0
        head, _, tail = pattern.rpartition("/")
        if tail != "**" and not any(sign in head for sign in "*?["):
            # Most patterns name one directory, and most trees have many.
            paths = self._paths_by_directory.get(normal(posixpath.join(folder, head)), [])
            return frozenset(path for path in paths if fits(path[start:], pattern))
        return frozenset(path for path in self.under(folder) if fits(path[start:], pattern))


def normal(path: str) -> str:
    """The path without `.` and `..`; the top is the empty string."""
    plain = posixpath.normpath(path) if path else ""
    return "" if plain == "." else plain


def fits(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern of a glob."""
    return _fit(path.split("/"), pattern.split("/"))


def _fit(names: list[str], pieces: list[str]) -> bool:
    if not pieces or not names:
        return not pieces and not names
    name, piece = names[0], pieces[0]
    hidden = name.startswith(".") and not piece.startswith(".")
    if piece == "**":
        deeper = not hidden and (names[1:] == [] == pieces[1:] or _fit(names[1:], pieces))
        return deeper or _fit(names, pieces[1:])
    return not hidden and fnmatchcase(name, piece) and _fit(names[1:], pieces[1:])


def _ignored_paths(root: Path) -> frozenset[str]:
    """Return what git ignores in the tree: leftovers of builds and downloads. Directories end with `/`.

    Empty if the tree is no checkout or there is no git."""
    if not (root / ".git").exists():
        return frozenset()
    listing = ["ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"]
    command = ["git", "-C", str(root), *listing]
    try:
        process = subprocess.run(command, capture_output=True, check=False, timeout=MOST_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(os.fsdecode(process.stdout).split("\0")) - {""}


def _walk(root: Path) -> Iterator[str]:
    ignored = _ignored_paths(root)
    pending = [("", str(root))]
    while pending:
        prefix, folder = pending.pop()
        with os.scandir(folder) as entries:
            children = list(entries)
        if prefix and any(entry.name in ("CMakeCache.txt", ".git") for entry in children):
            continue
        for entry in children:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                elsewhere = name.startswith("third-party/") or f"{name}/" in ignored
                if entry.name not in SKIPPED and not elsewhere:
                    pending.append((f"{name}/", entry.path))
            elif name not in ignored and entry.is_file():
                yield name


SOURCE_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".S")
HEADER_SUFFIXES = (".h", ".hh", ".hpp", ".inc")
PYTHON_SUFFIXES = (".py", ".pyi")
_DRAFTS = {"1z": "17", "2a": "20", "2b": "23", "2c": "26"}
"""What compilers called a standard before it had its number."""
SCHEMAS = (".fbs", ".idl")
"""Files of which code is generated."""


@dataclass(frozen=True, slots=True, order=True)
class TreePlace:
    """A line of a file of the tree; `str` is what findings carry."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class NamedItem:
    """A file or a dependency that a library names, and where."""

    name: str
    place: TreePlace
    scope: str = "PRIVATE"
    """PUBLIC and INTERFACE ones (Buck's exported ones) reach whoever links the library."""


@dataclass(frozen=True, slots=True)
class NotEvaluated:
    """Something that could not be evaluated. `construct` names it, so that its identity survives moved
    lines."""

    place: TreePlace
    construct: str
    why: str


@dataclass(slots=True)
class Target:
    """A target of either build: a library, a program, or a rule that makes files of others. `files` are paths
    in the tree; generated ones are left out, for neither side has them on disk."""

    name: str
    kind: str
    place: TreePlace
    folder: str
    """The directory of the tree that declares it."""
    files: list[NamedItem] = field(default_factory=list)
    dependencies: list[NamedItem] = field(default_factory=list)
    included: dict[str, NamedItem] = field(default_factory=dict)
    """Buck's headers by the name that they are included by, where this is not their path in the tree."""
    generated: set[str] = field(default_factory=set)
    """The names that Buck's headers are included by which a rule generates."""
    namespace: TreePlace | None = None
    """The line of Buck's `header_namespace`; None if it is not set, so that the package's path is used."""
    definitions: list[NamedItem] = field(default_factory=list)
    """Preprocessor definitions, `NAME` or `NAME=VALUE`, without `-D`."""
    options: list[NamedItem] = field(default_factory=list)
    """Compile options, one flag each."""
    standard: NamedItem | None = None
    """The C++ standard by its number, `17`; None if the target itself sets none."""
    archive: TreePlace | None = None
    """The line that says that users of this library link all of it."""
    includes: list[NamedItem] = field(default_factory=list)
    """Directories of the tree in which headers are searched."""
    platforms: tuple[str, ...] = ()
    """The platforms that Buck names; empty if it names none."""
    command: tuple[str, ...] = ()
    """The words of a generating rule, the program first; one that a target builds has that target's name."""

    def add_flag(self, flag: str, place: TreePlace, scope: str = "PRIVATE") -> None:
        """A flag of the compiler: a definition, the standard or another option."""
        if flag.startswith("-D"):
            self.add_definition(flag[2:].strip(), place, scope)
        elif match := re.fullmatch(r"-std=(?:c|gnu)\+\+(\w+)", flag):
            self.standard = NamedItem(_DRAFTS.get(match[1], match[1]), place)
        else:
            self.options.append(NamedItem(flag, place, scope))

    def add_definition(self, text: str, place: TreePlace, scope: str) -> None:
        """Add a definition. `X=1` is what a compiler makes of `X`."""
        self.definitions.append(NamedItem(text.removesuffix("=1"), place, scope))

    @property
    def compiled(self) -> list[NamedItem]:
        return [item for item in self.files if is_source(item.name)]


@dataclass(frozen=True, slots=True)
class Glob:
    """One pattern of a glob call, and the files that it matched; `exclude` says which list it was in."""

    pattern: str
    package: str
    place: TreePlace
    matched: frozenset[str]
    exclude: bool = False


@dataclass(slots=True)
class Side:
    """One build system's view of the tree for one variant."""

    libraries: dict[str, Target] = field(default_factory=dict)
    """The targets that compile something, by name."""
    outside: dict[str, Target] = field(default_factory=dict)
    """CMake's libraries of other projects, with what the tree's files say that they hand on."""
    rules: list[Target] = field(default_factory=list)
    """The targets that compile nothing: `genrule`, `export_file`, `filegroup`, `add_custom_command`."""
    resources: list[NamedItem] = field(default_factory=list)
    """Files that a library brings along."""
    labels: list[NamedItem] = field(default_factory=list)
    """Targets that Buck's rules name, by label."""
    declared: set[str] = field(default_factory=set)
    """Labels of every Buck rule, including those that compile nothing."""
    packages: set[str] = field(default_factory=set)
    """Directories whose build files were evaluated."""
    globs: list[Glob] = field(default_factory=list)
    troubles: list[NotEvaluated] = field(default_factory=list)
    missing_files: list[NamedItem] = field(default_factory=list)
    """Files that are named but are not on disk."""
    failed: set[str] = field(default_factory=set)
    """Directories (of Buck) that could not be evaluated to their end."""
    stopped: bool = False
    """Whether evaluation ended early, so that missing things mean nothing."""

    def add(self, part: Side) -> None:
        self.libraries |= part.libraries
        for name in ("rules", "resources", "labels", "globs", "troubles", "missing_files"):
            getattr(self, name).extend(getattr(part, name))
        self.declared |= part.declared
        self.packages |= part.packages
        self.failed |= part.failed
        self.stopped = self.stopped or part.stopped


def package_of(label: str) -> str:
    """The directory of `//directory:name`."""
    return label.removeprefix("//").partition(":")[0]


def is_source(path: str) -> bool:
    return path.endswith(SOURCE_SUFFIXES)


def is_header(path: str) -> bool:
    return path.endswith(HEADER_SUFFIXES)


def is_python(path: str) -> bool:
    return path.endswith(PYTHON_SUFFIXES)


def is_native(path: str) -> bool:
    """Whether both builds cover it; Python is Buck's alone."""
    return path.endswith((*SOURCE_SUFFIXES, *HEADER_SUFFIXES))


def first_places(items: Iterable[NamedItem]) -> dict[str, TreePlace]:
    places: dict[str, TreePlace] = {}
    for item in items:
        places.setdefault(item.name, item.place)
    return places
