"""Where glibc's ld.so would find a library, by reading only the disk.

Order, for a library that object X needs: DT_RPATH of X and of what loaded X (unless X has DT_RUNPATH),
LD_LIBRARY_PATH, DT_RUNPATH of X, the loader's cache, the default directories. A file of another class or
machine is passed over, as ld.so does.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provisioning.base.commands import captured
from provisioning.elf import Elf, identity

_ORIGIN = re.compile(r"\$(?:\{ORIGIN\}|ORIGIN(?![A-Za-z0-9_]))")
_CACHED = re.compile(r"^\t(\S+) \(.*\) => (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SystemLibraries:
    """The system libraries that the host's loader knows."""

    cache: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    """Soname → files, of /etc/ld.so.cache."""
    directories: tuple[Path, ...] = ()
    provides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Symbol versions that the host's own libraries define, by soname."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A library that was not found, the library that needs it, and the searched places."""

    library: Path
    needed: str
    searched: tuple[str, ...]
    passed_over: tuple[str, ...] = ()
    """Files of that name and of another class or machine."""


def default_directories() -> tuple[Path, ...]:
    names = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64", "usr/lib64", "lib", "usr/lib")
    return tuple(path for name in names if (path := Path("/", name)).is_dir())


def read_cache() -> dict[str, tuple[Path, ...]]:
    """glibc's cache of libraries, as its own program prints it; empty where there is none."""
    program = shutil.which(
        "ldconfig", path=os.pathsep.join([os.environ.get("PATH", ""), "/sbin", "/usr/sbin"])
    )
    libraries: dict[str, tuple[Path, ...]] = {}
    for name, file in _CACHED.findall(captured([program, "-p"]).stdout) if program else ():
        libraries[name] = (*libraries.get(name, ()), Path(file))
    return libraries


def _directory(entry: str, origin: Path) -> Path:
    """The directory that one entry of a search path means; an empty one is the current directory."""
    return Path(os.path.normpath(_ORIGIN.sub(lambda _: str(origin), entry) or "."))


def unresolved(
    libraries: Mapping[Path, Elf],
    *,
    library_path: str,
    system: SystemLibraries,
    read: Callable[[Path], Elf | None],
) -> list[Missing]:
    """The libraries that are missing if each root of the dependency graph is opened with dlopen in a new
    process.

    `read` reads a file that was found outside `libraries`. It is called only for files that are found by the
    libraries' own paths; the system is responsible for its own libraries."""
    entries = re.split("[:;]", library_path) if library_path else []
    directories = [_directory(entry, Path()) for entry in entries]
    environment = [(f"LD_LIBRARY_PATH {directory}", directory) for directory in directories]
    needed_by_others = {
        name for path, elf in libraries.items() for name in elf.needed if name != (elf.soname or path.name)
    }
    roots = [
        path
        for path, elf in libraries.items()
        if path.name not in needed_by_others and elf.soname not in needed_by_others
    ]
    missing: dict[tuple[Path, str], Missing] = {}
    reached: set[Path] = set()
    # Libraries that only need each other have no root, so each unreached one is opened on its own.
    for root in (*roots, *libraries):
        if root in reached:
            continue
        for gap, seen in _open(root, libraries, environment, system, read):
            reached |= seen
            if gap is not None:
                missing.setdefault((gap.library, gap.needed), gap)
    return list(missing.values())


def _open(
    root: Path,
    libraries: Mapping[Path, Elf],
    environment: Sequence[tuple[str, Path]],
    system: SystemLibraries,
    read: Callable[[Path], Elf | None],
) -> Iterator[tuple[Missing | None, set[Path]]]:
    """Breadth first, as ld.so loads: a name that is already loaded is not searched again."""
    queue: list[tuple[Path, Elf, tuple[tuple[Path, Elf], ...]]] = [(root, libraries[root], ())]
    loaded = {root.name, libraries[root].soname}
    seen = {root}
    while queue:
        path, elf, loaders = queue.pop(0)
        chain = ((path, elf), *loaders)
        for name in elf.needed:
            if name in loaded:
                continue
            file, gap, foreign = _find(name, chain, environment, system)
            if file is None:
                yield gap, seen
                continue
            loaded.add(name)
            seen.add(file)
            record = libraries.get(file) or (read(file) if foreign else None)
            if record is not None:
                loaded.add(record.soname)
                queue.append((file, record, chain))
    yield None, seen


def _find(
    name: str,
    chain: Sequence[tuple[Path, Elf]],
    environment: Sequence[tuple[str, Path]],
    system: SystemLibraries,
) -> tuple[Path | None, Missing | None, bool]:
    """(file, the gap when there is none, whether it was found by the libraries' own paths)."""
    path, elf = chain[0]
    wanted = (elf.bits, elf.machine)
    searched: list[str] = []
    passed_over: list[str] = []

    def fits(candidate: Path) -> bool:
        kind = identity(candidate)
        if kind is not None and kind != wanted:
            passed_over.append(str(candidate))
        return kind == wanted

    if "/" in name:
        file = Path(name)
        return (file, None, True) if fits(file) else (None, Missing(path, name, (name,)), False)
    for label, directory in _own_paths(chain, environment):
        searched.append(label)
        if fits(directory / name):
            return Path(os.path.normpath(directory / name)), None, True
    searched.append("the loader's cache")
    for candidate in system.cache.get(name, ()):
        if fits(candidate):
            return candidate, None, False
    for directory in system.directories:
        searched.append(str(directory))
        if fits(directory / name):
            return directory / name, None, False
    return None, Missing(path, name, tuple(dict.fromkeys(searched)), tuple(passed_over)), False


def _own_paths(
    chain: Sequence[tuple[Path, Elf]], environment: Sequence[tuple[str, Path]]
) -> Iterator[tuple[str, Path]]:
    path, elf = chain[0]
    if not elf.runpath:
        for loader, record in chain:
            if not record.runpath:
                yield from _entries("RPATH", record.rpath, loader)
    yield from environment
    yield from _entries("RUNPATH", elf.runpath, path)


def _entries(kind: str, entries: Iterable[str], path: Path) -> Iterator[tuple[str, Path]]:
    for entry in entries:
        directory = _directory(entry, path.parent)
        yield f"{kind} {directory}", directory
