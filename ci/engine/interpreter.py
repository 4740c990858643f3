"""The inputs of a Python process that the process itself knows: its modules, and variables that it lacks.

`begin` is called once, before anything heavy is imported. `touched` returns what was touched since. What a
fork of the process touches is watched."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import os
import site
import sys
import sysconfig
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from ci.engine.watch import IGNORED, QUERY_BEGINS, QUERY_ENDS, listing_of, modules_of, source_of, stamp_of

UNSET = "unset"

LOCKED = "QNN_CI_LOCKED_PACKAGES"
"""Tells an environment with a suite's own packages where the locked ones are."""

OURS = tuple(f"{Path(__file__).resolve().parents[2] / name}/" for name in ("ci", "provisioning"))
"""Our own code reads these; its key has them already."""

_asked: dict[str, str] = {}
"""Variables that were not there, with whose code asked for them. They serve messages alone."""
_notes = -1
"""The file that they are written to, which children of the work have too."""
_opened: set[str] = set()
_began = 0.0


class _Everything(set[str]):
    """Stands for a directory's listing: Python then looks up each candidate, and the watch sees which."""

    def __contains__(self, name: object) -> bool:
        return True


def begin() -> None:
    """Record absent variables and opened files, from now on; children inherit it.

    The user's directories are not listed, so a new file beside a suite is no change. Their bytecode is not
    used, because Python checks only its size and time."""
    global _began
    if _began:
        return
    _began = time.time()
    _tell_of_queries()
    told = _told(os.stat)
    for supported in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
        supported.add(told)
    os.fstat, os.stat = _told(os.fstat), told
    environ: Any = type(os.environ)
    environ.__getitem__ = _note_absent(environ.__getitem__)
    sys.addaudithook(_note_event)
    loader: Any = importlib.machinery.SourceFileLoader
    stats, finder = loader.path_stats, importlib.machinery.FileFinder
    fill: Any = finder._fill_cache  # type: ignore[attr-defined]

    def path_stats(self: Any, path: str) -> Any:
        if not is_library(path):
            raise OSError("bytecode is not used")
        return stats(self, path)

    def fill_cache(self: Any) -> None:
        if is_library(self.path):
            fill(self)
        else:
            self._path_cache = self._relaxed_path_cache = _Everything()

    loader.path_stats = path_stats
    finder._fill_cache = fill_cache  # type: ignore[attr-defined]
    sys.path_importer_cache.clear()


def _told(ask: Any) -> Any:
    """Where user code asks of an open file, its path is asked too, so that the watch sees it: each opening
    makes the same system call."""

    def asked_of_path(path: Any, **how: Any) -> Any:
        if isinstance(path, int) and _reader("/genericpath.py", 2) == "user":
            with contextlib.suppress(OSError):
                os.stat(f"/proc/self/fd/{path}")
        return ask(path, **how)

    return asked_of_path


def _tell_of_queries() -> None:
    """A query about packages lists each folder of the search path. The watch is told, so that a file written
    there, such as a report, is no input: the query itself is one."""
    import importlib.metadata

    searched: Any = importlib.metadata.FastPath  # type: ignore[attr-defined]
    children = searched.children

    def children_of_query(self: Any) -> Any:
        os.access(QUERY_BEGINS, os.F_OK)
        try:
            return children(self)
        finally:
            os.access(QUERY_ENDS, os.F_OK)

    searched.children = children_of_query


def touched() -> dict[str, Any]:
    """What was touched since `begin`: the files of modules, opened files and loaded libraries with their
    stamps; and the names in the folders where modules and libraries are searched, which could come first."""
    opened: dict[str, list[int]] = {}
    changed = []
    names = {*_opened, *_module_files(), *_libraries()}
    # The source decides, not its bytecode, which may have just been written.
    for name in sorted({source_of(name) or name for name in names}):
        path = os.path.abspath(name)
        if path.startswith((*IGNORED, "/dev/")) or not os.path.isfile(path):
            continue
        info = os.stat(path)
        opened[path] = list(stamp_of(info))
        if max(info.st_ctime, info.st_mtime) > _began:
            changed.append(path)
    searched = {os.path.abspath(folder) for folder in sys.path} | _package_folders()
    return {
        "opened": opened,
        "queried": {folder: modules_of(folder) for folder in searched if not is_installed(folder)},
        "listed": {folder: listing_of(folder) for folder in _library_folders()},
        "suspect": changed,
    }


def opened_names() -> set[str]:
    """The files that were opened since `begin`, or were not there when they were to be; for bytecode its
    source."""
    names = {os.path.abspath(source_of(path) or path) for path in _opened}
    return {name for name in names if not name.startswith((*IGNORED, "/dev/"))}


def begin_fork(notes: int) -> None:
    """In a fork, whose parent reports what it touched itself. `notes` is a file for the names of absent
    variables."""
    global _notes
    _notes = notes
    _asked.clear()


def searched() -> list[str]:
    """The folders that each import may ask for the time of."""
    folders = {os.path.abspath(folder) for folder in sys.path}
    for module in list(sys.modules.values()):
        with contextlib.suppress(Exception):
            # Of a package without __init__ it is no list.
            folders.update(map(str, getattr(module, "__path__", ())))
    return sorted(folder for folder in folders if not is_installed(folder))


@cache
def installations() -> tuple[str, ...]:
    """Where this environment has its distributions, each ending in a slash: their content is in every key."""
    folders = {*site.getsitepackages(), sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}
    folders |= {site.getusersitepackages()} if site.ENABLE_USER_SITE else set()
    if locked := os.environ.get(LOCKED):
        folders.add(locked)
    return tuple(sorted({f"{spelt}/" for folder in folders for spelt in (folder, os.path.realpath(folder))}))


def is_installed(path: str) -> bool:
    return f"{path}/".startswith(installations())


@cache
def _libraries_of_python() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], f"{sys.base_prefix}/lib/python{sys.version_info[0]}"}
    return tuple(f"{spelt}/" for folder in folders for spelt in (folder, os.path.realpath(folder)))


def is_library(path: str) -> bool:
    """Whether it is installed, or Python's own."""
    return f"{path}/".startswith((*installations(), *_libraries_of_python()))


def digest_of_value(value: str | None) -> str:
    """The digest of a value; values may be secrets."""
    return UNSET if value is None else hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()


def asked(notes: int) -> dict[str, str]:
    """What a fork and its children wrote to `notes`."""
    lines = os.pread(notes, 1 << 20, 0).decode("utf-8", "surrogateescape").splitlines()
    return {name: reader for reader, _, name in (line.partition(" ") for line in lines)}


def _note_absent(get: Any) -> Any:
    """`__getitem__` of os.environ that notes what is not there."""

    def get_noted(self: Any, name: Any) -> Any:
        try:
            return get(self, name)
        except KeyError:
            if _notes >= 0 and isinstance(name, str | bytes):
                _note(os.fsdecode(name))
            raise

    return get_noted


def _note(name: str) -> None:
    if name not in _asked and (reader := _reader()):
        _asked[name] = reader
        # The user's code may have closed it.
        with contextlib.suppress(OSError):
            os.write(_notes, f"{reader} {name}\n".encode("utf-8", "surrogateescape"))


def _reader(through: str | tuple[str, ...] = "/os.py", depth: int = 3) -> str:
    """Who asks: `user`, `library`, or empty for our own code."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        name = frame.f_code.co_filename
        # These modules and the abstract mapping are called between the reader and what is read.
        if name[:1] != "<" and not name.endswith(through):
            if name.startswith(OURS):
                return ""
            return "library" if is_library(name) else "user"
        frame = frame.f_back
    return "library"


def _note_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str) and arguments[1] in ("r", "rb", None):
        _opened.add(arguments[0])


def _module_files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file[:1] == "/":
            yield file


def _package_folders() -> set[str]:
    """Folders of imported packages that were not installed: a new file there can shadow a module."""
    folders = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file[:1] == "/" and (hasattr(module, "__path__") or "." in name):
            folder = os.path.dirname(file)
            if not is_library(folder) and not f"{folder}/".startswith(OURS):
                folders.add(folder)
    return folders


def _libraries() -> Iterator[str]:
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        name = line.partition("/")[2]
        if name and not name.endswith(" (deleted)") and not name.startswith(("memfd:", "dev/", "SYSV")):
            yield f"/{name}"


def _library_folders() -> Iterator[str]:
    """The folders where ld.so searches first, with those in them for kinds of processors."""
    for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
        yield os.path.abspath(folder)
        yield from map(str, Path(folder).absolute().glob("glibc-hwcaps/*"))
