"""The user's own installations: their files are recorded at their first use, and later changes are named.

    <store>/own/<digest of the path>.json, and .content.json

Names, sizes and times of files are recorded: an SDK has gigabytes, and every stage compares. `validate` also
keeps a checksum of what is loaded or run, and reads a file again if its inode was written to since, which no
program can hide. Of its own trees the store has the hash of each file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.files import open_regular, replace_text
from provisioning.base.rendering import plural
from provisioning.components import ANDROID_NDK, HEXAGON_SDK, QNN_SDK

SCHEMA = 1
RECORDED = (QNN_SDK, ANDROID_NDK, HEXAGON_SDK)
"""A tree of ExecuTorch is the user's to edit."""

NOT_LOADED = frozenset({"docs", "examples", "benchmarks"})
"""Folders of an SDK from which nothing is loaded."""

BYTECODE = "__pycache__"
"""Python writes this folder wherever it imports from."""

PROGRAMS = re.compile(r"(?:.*/)?bin/[^/]+|.*\.(?:so|dll|py)(?:\.[\d.]+)?")
"""What is loaded or run, which every stage looks at."""

MOST_NAMED = 3

State = tuple[int, int]
"""A file's size, and when it was written."""

Content = tuple[int, int, int, int]
"""A file's size, when it was written, when its inode was, and a checksum of its bytes."""


@dataclass(frozen=True, slots=True)
class OwnTree:
    """What was recorded of an installation."""

    component: str
    path: str
    version: str
    files: Mapping[str, State]
    folders: Mapping[str, int]
    """When a name was last added to each folder, or removed from it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What became of an installation since its first use."""

    version_before: str
    version: str
    files: tuple[str, ...]
    """Lines that say what became of each file: `added lib/x.so`."""

    def __str__(self) -> str:
        if self.version_before != self.version:
            before, now = self.version_before or "of no version", self.version or "of no version"
            return f"was {before} at its first use, and is {now} now"
        more = len(self.files) - MOST_NAMED
        rest = f" and {plural(more, 'more file')}" if more > 0 else ""
        return f"changed since its first use: {', '.join(self.files[:MOST_NAMED])}{rest}"


def record(store: Path, component: str, root: Path, version: str) -> OwnTree:
    """Take the installation as it is now."""
    real = os.path.realpath(root)
    files: dict[str, State] = {}
    folders: dict[str, int] = {}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        # Before the names are read: what is added meanwhile is then noticed.
        folders[folder] = _written_at(real, folder)
        for path, entry in _entries(real, folder).items():
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            else:
                files[path] = _state(Path(entry.path))
    tree = OwnTree(component, real, version, files, folders)
    fields = {name: getattr(tree, name) for name in OwnTree.__slots__}
    _content_place(store, root).unlink(missing_ok=True)
    replace_text(_place(store, root), json.dumps({"schema": SCHEMA, **fields}) + "\n")
    return tree


def change_since_first_use(store: Path, component: str, root: Path, version: str) -> Change | None:
    """Return what was added, removed or changed; None if nothing was. The first use is recorded."""
    if component not in RECORDED:
        return None
    before = _read(_place(store, root))
    if before is None or before.component != component:
        # A store that cannot be written to can still be used.
        with contextlib.suppress(OSError):
            record(store, component, root, version)
        return None
    files = tuple(sorted(_differences(before)))
    return Change(before.version, version, files) if files or before.version != version else None


def changed_content(store: Path, root: Path) -> Change | None:
    """Return which programs and libraries have other bytes than when `validate` first read them, though their
    size and time are the same; None if none has."""
    tree = _read(_place(store, root))
    if tree is None:
        return None
    place = _content_place(store, root)
    before = _read_content(place)
    now: dict[str, Content] = {}
    changed = []
    for path in filter(PROGRAMS.fullmatch, tree.files):
        file, known = Path(tree.path, path), before.get(path)
        # What cannot be read, `validate` names.
        with contextlib.suppress(OSError):
            status = file.lstat()
            times = status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if known is not None and known[:3] == times:
                now[path] = known
            elif stat.S_ISREG(status.st_mode):
                now[path] = *times, _checksum(file)
                if known is not None and known[:2] == times[:2] and known[3] != now[path][3]:
                    changed.append(f"changed {path}, and set its time back")
                    now[path] = known
    if now != before:
        # A store that cannot be written to can still be used.
        with contextlib.suppress(OSError):
            replace_text(place, json.dumps(now) + "\n")
    return Change(tree.version, tree.version, tuple(sorted(changed))) if changed else None


def _checksum(file: Path) -> int:
    value = 0
    with open_regular(file) as stream:
        while block := stream.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def _differences(before: OwnTree) -> Iterator[str]:
    """Yield what became of the files that are loaded or run, and of all in a folder that was written to."""
    names: dict[str, set[str]] = {}
    for path in (*before.files, *before.folders):
        if path:
            names.setdefault(path.rpartition("/")[0], set()).add(path)
    for folder, time in before.folders.items():
        was_written = _written_at(before.path, folder) != time
        paths = names.get(folder, set())
        if was_written:
            entries = _entries(before.path, folder)
            yield from (f"added {path}" for path in entries.keys() - paths)
            yield from (f"removed {path}" for path in paths - entries.keys())
            paths &= entries.keys()
        for path in paths & before.files.keys():
            is_looked_at = was_written or PROGRAMS.fullmatch(path)
            if is_looked_at and _state(Path(before.path, path)) != before.files[path]:
                yield f"changed {path}"


def _entries(root: str, folder: str) -> dict[str, os.DirEntry[str]]:
    """Return what is in a folder, by its path below the root."""
    below = f"{folder}/" if folder else ""
    entries: dict[str, os.DirEntry[str]] = {}
    # What cannot be read, `validate` names.
    with contextlib.suppress(OSError), os.scandir(f"{root}/{folder}") as found:
        for entry in found:
            path = below + entry.name
            if path not in NOT_LOADED and entry.name != BYTECODE:
                entries[path] = entry
    return entries


def _written_at(root: str, folder: str) -> int:
    _, time = _state(Path(root, folder))
    return time


def _state(path: Path) -> State:
    try:
        status = path.lstat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _place(store: Path, root: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()
    return store / "own" / f"{digest[:16]}.json"


def _content_place(store: Path, root: Path) -> Path:
    return _place(store, root).with_suffix(".content.json")


def _read_content(place: Path) -> dict[str, Content]:
    try:
        rows = json.loads(place.read_text(encoding="utf-8")).items()
        return {path: (size, written, touched, checksum) for path, (size, written, touched, checksum) in rows}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _read(place: Path) -> OwnTree | None:
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            return None
        files = {path: (size, time) for path, (size, time) in data["files"].items()}
        return OwnTree(data["component"], data["path"], data["version"], files, data["folders"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
