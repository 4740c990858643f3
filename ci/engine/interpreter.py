"""The inputs of a Python process that the process itself knows: modules, failed look-ups, queries.

`begin` is called once, before anything heavy is imported. `touched` returns what was touched since.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.machinery
import os
import site
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from ci.engine.watch import IGNORED, QUERY_BEGINS, QUERY_ENDS, Stamp, listing_of, source_of, stamp_of
from provisioning.base.files import hash_file

UNSET = "unset"

ALL = "*"
"""Stands for a query about all packages."""

TOOLKIT = Path(__file__).resolve().parents[2]
OURS = tuple(f"{TOOLKIT / name}/" for name in ("ci", "provisioning"))
"""Our own code reads these; its key has them already."""

_asked: dict[str, str] = {}
"""Variables that were not there, with whose code asked for them. They serve messages alone."""
_notes = -1
"""The file that they are written to, which children of the work have too."""
_absent_modules: set[str] = set()
_queries: dict[str, set[str]] = {}
"""By directory: the queries about the packages that are installed there."""
_opened: set[str] = set()
_known: set[str] = set()
_began = 0.0


class _Absent:
    """The last finder on the path: a name that gets this far does not exist."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if path is None:
            _absent_modules.add(name)


class _Queries:
    """The first finder on the path: records queries about installed packages."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        return None

    @staticmethod
    def find_distributions(context: Any) -> Iterable[Any]:
        if query := f"name:{context.name}" if context.name else _query_of_all():
            for folder in context.path:
                _queries.setdefault(os.path.abspath(folder), set()).add(query)
        return ()


def _query_of_all() -> str:
    """A query about all packages: for the entry points of a group, or by user code for anything."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        if frame.f_code.co_name == "entry_points":
            group = frame.f_locals.get("params", {}).get("group")
            if group:
                return f"group:{group}"
        frame = frame.f_back
    reader = _reader(("importlib/metadata/__init__.py", "importlib_metadata/__init__.py"), depth=3)
    return ALL if reader == "user" else ""


class _Everything(set[str]):
    """Stands for a directory's listing: Python then looks up each candidate, and the watch sees which."""

    def __contains__(self, name: object) -> bool:
        return True


def begin() -> None:
    """Record absent variables and modules, and opened files, from now on; children inherit it.

    The user's directories are not listed, so a new file beside a suite is no change. Their bytecode is not
    used, because Python checks only its size and time."""
    global _began
    if _began:
        return
    _began = time.time()
    _tell_of_queries()
    environ: Any = type(os.environ)
    environ.__getitem__ = _note_absent(environ.__getitem__)
    sys.meta_path.insert(0, _Queries)
    sys.meta_path.append(_Absent)
    sys.addaudithook(_note_event)
    loader: Any = importlib.machinery.SourceFileLoader
    stats, finder = loader.path_stats, importlib.machinery.FileFinder
    fill: Any = finder._fill_cache  # type: ignore[attr-defined]

    def path_stats(self: Any, path: str) -> Any:
        if not is_installed(path):
            raise OSError("bytecode is not used")
        return stats(self, path)

    def fill_cache(self: Any) -> None:
        if is_installed(self.path):
            fill(self)
        else:
            self._path_cache = self._relaxed_path_cache = _Everything()

    loader.path_stats = path_stats
    finder._fill_cache = fill_cache  # type: ignore[attr-defined]
    sys.path_importer_cache.clear()


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
    stamps.

    `absent_modules` has for each directory of the search path the top-level names that must stay absent.
    """
    opened: dict[str, list[int]] = {}
    changed = []
    names = {*_opened, *_module_files(), *_libraries()}
    # The source decides, not its bytecode, which may have just been written.
    for name in sorted({source_of(name) or name for name in names}):
        path = os.path.abspath(name)
        if path.startswith(IGNORED) or not os.path.isfile(path):
            continue
        if ".dist-info/" in path:
            # Torch reads the entry points of all distributions. Those that were imported count by their
            # files.
            continue
        info = os.stat(path)
        opened[path] = list(stamp_of(info))
        if max(info.st_ctime, info.st_mtime) > _began:
            changed.append(path)
    return {
        "opened": opened,
        "absent_modules": absent_modules(sys.path, _homes(), _absent_modules),
        "queries": _queries_made(),
        "listed": {folder: listing_of(folder) for folder in _package_folders()},
        "suspect": changed,
    }


def opened_names() -> set[str]:
    """The files that were opened since `begin`, or were not there when they were to be; for bytecode its
    source."""
    names = {os.path.abspath(source_of(path) or path) for path in _opened}
    return {name for name in names if not name.startswith(IGNORED)}


def as_installed(path: str) -> bool:
    """True if the file has the bytes that its distribution's RECORD names.

    Installers share files by hard links, so installing into another environment changes a file's ctime and
    nothing else."""
    # The loader names a library by its user's folder: numpy/_core/../../numpy.libs/x.so.
    folder, mark, relative = os.path.normpath(path).rpartition("/site-packages/")
    if not mark:
        return False
    site = f"{folder}{mark}"
    recorded = _recorded(site, os.stat(site).st_mtime_ns).get(relative)
    return recorded is not None and recorded == _digest(path, stamp_of(os.stat(path)))


@cache
def _recorded(site: str, changed: int) -> Mapping[str, str]:
    """The digests of all files that distributions brought, by path below the folder. Installing a
    distribution changes the folder's time."""
    lines = (
        line.partition(",sha256=")
        for record in Path(site).glob("*.dist-info/RECORD")
        for line in record.read_text(encoding="utf-8", errors="replace").splitlines()
    )
    return {name: rest.partition(",")[0] for name, digest, rest in lines if digest}


@cache
def _digest(path: str, stamp: Stamp) -> str:
    """As a RECORD writes it."""
    return base64.urlsafe_b64encode(bytes.fromhex(hash_file(Path(path)))).decode().rstrip("=")


def forget(notes: int) -> None:
    """Start again in a fork: the parent reports what it touched itself. `notes` is a file for the names of
    absent variables."""
    global _notes
    _notes = notes
    _asked.clear()
    _absent_modules.clear()
    _queries.clear()
    _known.update(sys.modules)


def touched_since() -> dict[str, Any]:
    """The arguments of `absent_modules` since `forget`, and queries. No files: the fork is watched."""
    if "pkg_resources" in sys.modules.keys() - _known:
        for folder in sys.path:
            _queries.setdefault(os.path.abspath(folder), set()).add(ALL)
    modules = [list(sys.path), _homes(), sorted(_absent_modules)]
    return {"modules": modules, "queries": _queries_made()}


def all_that_may_be_touched() -> dict[str, Any]:
    """What a fork that crashed may have asked Python for: whatever is in the folders of the search path or
    installed there. Its files were watched."""
    folders = {os.path.abspath(folder) for folder in sys.path if os.path.isdir(folder)}
    return {
        "listed": {folder: listing_of(folder) for folder in folders},
        "queries": {folder: [ALL] for folder in folders},
    }


def absent_modules(
    path: Iterable[str], homes: Mapping[str, str], absent: Iterable[str]
) -> dict[str, list[str]]:
    """By directory of the search path, the modules that would shadow what was imported if they were added
    there.

    A module found in one directory must stay absent from all earlier ones; a module found nowhere must stay
    absent from all."""
    real = cache(os.path.realpath)
    entries = list(dict.fromkeys(os.path.abspath(folder) for folder in path))
    missing: dict[str, list[str]] = {}
    for index, entry in enumerate(entries):
        later = {real(entry) for entry in entries[index + 1 :]}
        names = {name for name, home in homes.items() if home != entry and real(home) in later}
        names |= {name for name in absent if name not in homes}
        # A missing directory may be created.
        if names and not os.path.isfile(entry):
            missing[entry] = sorted(names)
    return missing


@cache
def installations() -> tuple[str, ...]:
    """Where distributions and Python itself are installed, each ending in a slash."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    folders |= {f"{sys.prefix}/lib", f"{sys.base_prefix}/lib/python{sys.version_info[0]}"}
    # Also the folders of `pip install --target` and of .pth files.
    folders |= {folder for folder in sys.path if folder.endswith(("/site-packages", "/dist-packages"))}
    return tuple(sorted({f"{spelt}/" for folder in folders for spelt in (folder, os.path.realpath(folder))}))


def is_installed(path: str) -> bool:
    return f"{path}/".startswith(installations())


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
            return "library" if is_installed(name) else "user"
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
            if not is_installed(folder) and not f"{folder}/".startswith(OURS):
                folders.add(folder)
    return folders


def _queries_made() -> dict[str, list[str]]:
    return {folder: sorted(queries) for folder, queries in _queries.items()}


def _libraries() -> Iterator[str]:
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        name = line.partition("/")[2]
        if name and not name.endswith(" (deleted)") and not name.startswith(("memfd:", "dev/", "SYSV")):
            yield f"/{name}"


def _homes() -> dict[str, str]:
    """The directories of the top-level modules that were imported since `forget`."""
    homes = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name and name not in _known and isinstance(file, str):
            folder, _, file = file.rpartition("/")
            homes[name] = folder.rpartition("/")[0] if file.startswith("__init__.") else folder
    return homes
