"""The files of the memory: entries by keys, sets of inputs that entries share, and the files of results.

An entry is `<kind>/<2>/<key>/<inputs>.json`, the files of its result are in a folder beside it."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.engine.digests import Digests
from ci.engine.inputs import Input, key_of
from provisioning.base.files import hash_file, replace_text
from provisioning.base.findings import Metric as Json

UNUSED_SECONDS = 60 * 86400.0
ORPHAN_SECONDS = 86400.0
"""A folder without an entry may belong to another process that has not written its entry yet."""

Document = dict[str, Any]


class Entries:
    def __init__(self, top: Path, kind: str, digests: Digests) -> None:
        self.top, self.kind, self._digests = top, top / kind, digests
        self._sets: dict[str, tuple[Input, ...] | None] = {}
        self._count = itertools.count()

    def folder(self, key: Mapping[str, Json]) -> Path:
        name = key_of(key)
        return self.kind / name[:2] / name

    def of(self, key: Mapping[str, Json]) -> Iterator[Path]:
        """The files of a key, most recently used first."""
        entries = []
        for path in self.folder(key).glob("*.json"):
            with contextlib.suppress(OSError):
                entries.append((path.stat().st_mtime_ns, path))
        yield from (path for _, path in sorted(entries, reverse=True))

    def write(self, key: Mapping[str, Json], name: str, document: Document, most: int) -> None:
        """Beside at most so many others."""
        folder = self.folder(key)
        folder.mkdir(parents=True, exist_ok=True)
        store(folder / name, document)
        for path in list(self.of(key))[most:]:
            path.unlink(missing_ok=True)

    def subject(self, name: str) -> Path:
        """The file with the last key of work of this name."""
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        return self.kind / "subjects" / f"{digest}.json"

    def scratch(self) -> Path:
        """A new folder for a result, on the store's file system."""
        folder = self.kind / "work" / f"{os.getpid()}-{time.monotonic_ns()}-{next(self._count)}"
        folder.mkdir(parents=True)
        return folder

    def place(self, key: Mapping[str, Json], entry: Document, files: Mapping[str, str]) -> Path:
        """Where the files of a result belong. Named by their content, so that it is never replaced while
        another process reads it."""
        return self.folder(key) / f"{name_of(entry)}-{key_of(dict(files))[:16]}"

    def product(self, folder: Path, entry: Document) -> Path | None:
        """The files of a result, if it has any; `folder` is its key's."""
        return folder / entry["folder"] if entry["folder"] else None

    def kept(self, key: Mapping[str, Json], entry: Document, product: Path | None) -> Document:
        """What an entry says of the files of its result, which are moved into their place."""
        if product is None:
            return {"folder": None, "files": {}}
        files = digests_of(product)
        folder = self.place(key, entry, files)
        self.put(product, folder, files)
        return {"folder": folder.name, "files": files}

    def put(self, product: Path, folder: Path, files: Mapping[str, str]) -> None:
        """Move a result's files into their place, unless they are there."""
        if self.damage(folder, files):
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            product.rename(folder)
        else:
            shutil.rmtree(product, ignore_errors=True)

    def damage(self, folder: Path | None, files: Mapping[str, str]) -> str:
        for name, digest in files.items():
            try:
                if folder is None or self._digests.of(str(folder / name))[0] != digest:
                    return f"{name} of the result is damaged"
            except OSError:
                return f"{name} of the result is missing"
        return ""

    def set_file(self, name: str) -> Path:
        return self.top / "sets" / name[:2] / f"{name}.json"

    def set(self, name: str) -> tuple[Input, ...] | None:
        """The inputs of a set; None if it is missing or damaged."""
        if self._sets.get(name) is None:
            path = self.set_file(name)
            self._sets[name] = None
            with contextlib.suppress(OSError, ValueError):
                text = path.read_text(encoding="utf-8")
                if hashlib.sha256(text.encode()).hexdigest() == name:
                    self._sets[name] = tuple((kind, name, state) for kind, name, state in json.loads(text))
                    os.utime(path)
        return self._sets[name]

    def write_set(self, inputs: Sequence[Input]) -> str:
        name, text = set_of(inputs)
        if self.set(name) is None:
            replace_text(self.set_file(name), text)
            self._sets[name] = tuple(inputs)
        return name


def name_of(entry: Document) -> str:
    """Entries of one key differ in their inputs."""
    return key_of({"inputs": entry["inputs"], "sets": entry["sets"]})[:32]


def set_of(inputs: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The name of a set of inputs, and its text."""
    text = json.dumps([list(input_) for input_ in inputs], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest(), text


def load(path: Path) -> Document | None:
    """A stored document. A damaged one is removed and gives None."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        if whole["digest"] == key_of(whole["document"]):
            document: Document = whole["document"]
            return document
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    return None


def store(path: Path, document: Document) -> None:
    replace_text(path, json.dumps({"digest": key_of(document), "document": document}))


def digests_of(product: Path, digest: Callable[[Path], str] = hash_file) -> dict[str, str]:
    paths = sorted(path for path in product.rglob("*") if path.is_file())
    return {path.relative_to(product).as_posix(): digest(path) for path in paths}


def prune(top: Path, pause: float = 0.0) -> None:
    """Remove entries that were not used for a long time, folders without an entry, and leftovers of killed
    runs; nothing if that was done in the last `pause` seconds, since it reads every entry."""
    try:
        # Use the file system's clock, which all machines that share the store have in common.
        clock, pruned = top / "clock", top / "pruned"
        clock.touch()
        now = clock.stat().st_mtime
        if pruned.exists() and now - pruned.stat().st_mtime < pause:
            return
        pruned.touch()
    except OSError:
        return
    for kind in (path for path in top.glob("*") if path.is_dir()):
        patterns = ("*/*.json", "??/*/*.json")
        for path in (path for pattern in patterns for path in kind.glob(pattern)):
            _remove_unused(path, now - UNUSED_SECONDS)
        for folder in (*kind.glob("work/*"), *kind.glob("??/*/*-*")):
            entry = folder.with_name(f"{folder.name.partition('-')[0]}.json")
            named = load(entry) if folder.parent.name != "work" else None
            if folder.is_dir() and not (named and named.get("folder") == folder.name):
                _remove_unused(folder, now - ORPHAN_SECONDS)


def _remove_unused(path: Path, before: float) -> None:
    with contextlib.suppress(OSError):
        if path.stat().st_mtime < before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
