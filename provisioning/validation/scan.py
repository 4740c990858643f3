"""The libraries of a tree, read once and remembered for as long as the files stay what they are."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from provisioning import elf as elves
from provisioning.build_id import build_ids
from provisioning.elf import LINKER_SCRIPT, BrokenElf, Elf, NotElf
from provisioning.validation import probe
from provisioning.validation.context import Library
from provisioning.validation.probe import Answer

SCHEMA = 3
"""Raise it when a record's content changes."""

# Variables that steer loaders, Python, QNN or executorch; our own only say where reports and the like go.
_WATCHED = re.compile(r"LD_|PYTHON|QNN(?!_CI_)|QAIRT|ADSP|EXECUTORCH|ET_|GLIBC|LIBNATIVE")

LIBRARY = re.compile(r".+\.so(?:\.\d[\w.]*)?")

# What content of the wrong shape raises, wherever the shape is wrong first.
_DAMAGE = (ValueError, KeyError, TypeError, IndexError, AttributeError)

_MOST_ANSWERS = 64

# A file that changed so lately may change again with the same times: file systems tick in milliseconds.
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Record:
    """What one file says. `elf` is None when it is not ELF, and `fault` says why."""

    elf: Elf | None
    fault: str
    build_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes when a file does. ctime cannot be set back by the programs that set mtime back."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        stat = path.stat()
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    @property
    def settled(self) -> bool:
        return time.time_ns() - max(self.mtime_ns, self.ctime_ns) > _SETTLED_NS


class Cache:
    """Records by path and stamp, in one file. Losing it costs a second; it never answers for another file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[str, list[Any]] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        self._changed = False
        if path is not None:
            with contextlib.suppress(OSError, *_DAMAGE):
                content = json.loads(path.read_bytes())
                if content.get("schema") == SCHEMA:
                    self._entries = dict(content["files"])
                    self._answers = dict(content["answers"])

    def known(self, path: Path) -> Record | None:
        """The record of the file as it is now, if it is remembered."""
        try:
            return self.get(path, Stamp.of(path))
        except OSError:
            return None

    def get(self, path: Path, stamp: Stamp) -> Record | None:
        entry = self._entries.get(str(path))
        try:
            return _decoded(entry[1]) if entry and entry[0] == list(_key(stamp)) else None
        except _DAMAGE:
            return None

    def put(self, path: Path, stamp: Stamp, record: Record) -> None:
        if stamp.settled:
            self._entries[str(path)] = [list(_key(stamp)), _encoded(record)]
            self._changed = True

    def answer(self, key: str) -> Answer | None:
        try:
            return replace(Answer(**self._answers[key]), remembered=True)
        except _DAMAGE:
            return None

    def put_answer(self, key: str, answer: Answer) -> None:
        self._answers[key] = asdict(answer)
        self._changed = True

    def save(self) -> None:
        """Replace the file in one step. Whoever cannot write keeps no cache, and is told by being slower."""
        if self._path is None or not self._changed:
            return
        kept = {path: entry for path, entry in self._entries.items() if os.path.lexists(path)}
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            answers = dict(list(self._answers.items())[-_MOST_ANSWERS:])
            content = {"schema": SCHEMA, "files": kept, "answers": answers}
            part.write_text(json.dumps(content), encoding="utf-8")
            part.replace(self._path)


def _key(stamp: Stamp) -> tuple[int, ...]:
    return (stamp.device, stamp.inode, stamp.size, stamp.mtime_ns, stamp.ctime_ns)


def _encoded(record: Record) -> dict[str, Any]:
    return {
        "elf": None if record.elf is None else asdict(record.elf),
        "fault": record.fault,
        "build_ids": record.build_ids,
    }


def _decoded(data: dict[str, Any]) -> Record:
    fields = data["elf"]
    if fields is not None:
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
        fields["versions"] = tuple((library, version) for library, version in fields["versions"])
    return Record(None if fields is None else Elf(**fields), data["fault"], tuple(data["build_ids"]))


def libraries(root: Path, cache: Cache) -> list[Library]:
    """Every shared library below `root`, without linker scripts and without links to others of the tree."""
    found: list[Library] = []
    waiting: list[tuple[Path, str]] = []
    for path, place in _candidates(root):
        record = cache.known(path)
        if record is None:
            waiting.append((path, place))
        else:
            found.append(_library(path, place, record))
    found += [_library(path, place, record_of(path, cache)) for path, place in waiting]
    return sorted((library for library in found if library.fault != LINKER_SCRIPT), key=lambda f: f.place)


def _library(path: Path, place: str, record: Record) -> Library:
    return Library(path, place, record.elf, record.fault, record.build_ids)


def record_of(path: Path, cache: Cache) -> Record:
    """One file, by the cache. What cannot be opened is no fact about the file, and is not remembered."""
    known = cache.known(path)
    if known is not None:
        return known
    try:
        before = Stamp.of(path)
        record = read(path)
        if Stamp.of(path) == before:
            cache.put(path, before, record)
        return record
    except OSError as error:
        if path.is_symlink() and not path.exists():
            return Record(None, f"a link to {path.readlink()}, which is not there", ())
        return Record(None, f"cannot be read: {error.strerror or error}", ())


def answer_key(soc: str, variables: Mapping[str, str]) -> str | None:
    """What the compiler's answer depends on: its own files, the SDK's, the loader's cache, the variables.

    None when that cannot be told, or when a file is too young to be told from its next version.
    """
    package = importlib.util.find_spec("executorch")
    if package is None or not package.submodule_search_locations:
        return None
    home = Path(next(iter(package.submodule_search_locations)))
    files = [Path(probe.__file__), Path("/etc/ld.so.cache"), home / "data" / "bin" / "flatc"]
    for directory in (
        home / "backends/qualcomm/python",
        home / "backends/qualcomm/serialization",
        home / "lib",
    ):
        files += sorted(path for path in directory.glob("*") if path.is_file())
    for entry in re.split("[:;]", variables.get("LD_LIBRARY_PATH", "")):
        files += sorted(path for path in Path(entry).glob("*") if path.is_file())
    try:
        stamps = [(str(path), Stamp.of(path)) for path in files if path.exists()]
    except OSError:
        return None
    if not all(stamp.settled for _, stamp in stamps):
        return None
    watched = {name: value for name, value in variables.items() if _WATCHED.match(name)}
    material = [
        soc,
        sys.executable,
        [[path, *_key(stamp)] for path, stamp in stamps],
        sorted(watched.items()),
    ]
    return hashlib.sha256(json.dumps(material).encode()).hexdigest()


def read(path: Path) -> Record:
    """Raises OSError for what cannot be opened."""
    try:
        elf = elves.read(path)
    except (NotElf, BrokenElf) as error:
        return Record(None, error.reason, ())
    return Record(elf, "", build_ids(path))


def _candidates(root: Path) -> Iterator[tuple[Path, str]]:
    inside = os.path.realpath(root)
    walked: set[str] = set()
    for directory, directories, names in os.walk(root, followlinks=True):
        # Links between directories may repeat a part of the tree, lead round in circles, or out of the tree
        # to where all of it, and much else, is below.
        real = os.path.realpath(directory)
        if real in walked or (real != inside and _within(inside, real)):
            directories.clear()
            continue
        walked.add(real)
        directories.sort()
        for name in sorted(names):
            if not LIBRARY.fullmatch(name):
                continue
            path = Path(directory, name)
            if path.is_symlink() and path.exists() and _within(os.path.realpath(path), inside):
                continue
            yield path, path.relative_to(root).as_posix()


def _within(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory
