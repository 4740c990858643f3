"""Cached results: the store keeps what work returned under the digest of everything that decides it.

A key consists of named values, never of paths or times. A result that is found was written by work with equal
values."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ci.work.child import SYSTEM, variables_table
from ci.work.digests import Digests, digests_of_installed, site_folders
from ci.work.plain import Facts
from ci.work.request import files_below
from provisioning.base.files import hash_file, replace_text
from provisioning.base.findings import Metric as Json
from provisioning.base.settings import ROOT
from provisioning.base.units import size
from provisioning.store.results import remove_results, results_folder, results_limit, sweep_is_due

__all__ = [
    "NEW",
    "CachedResult",
    "CachedResults",
    "ExportReply",
    "Key",
    "digest_of",
    "folder_digest",
    "surroundings",
]

FORMAT = 1
"""A part of every key: another number invalidates every cached result."""

Key = Mapping[str, Json]

STARTED = time.time()
"""What this process has used since then, its later steps may read again: a run may take many hours."""

NEW = "not run before"
SHOWN = 40
"""`difference` shows this many characters of a value."""


def digest_of(values: Json) -> str:
    text = json.dumps({"format": FORMAT, "values": values}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CachedResult:
    facts: Facts
    folder: Path | None = None
    """The folder of its files, if it has any. The folder is never changed."""


class CachedResults:
    """The cached results of one kind of work. Parallel processes may use them.

    A record is `<kind>/<2>/<key>.json`; its files are in a folder beside it, which is named after their
    content. Therefore no folder is replaced while another process reads it."""

    def __init__(self, store: Path, kind: str) -> None:
        self._store, self._top = store, results_folder(store) / kind
        self._digests = Digests(store)
        self._limit = results_limit()
        self._has_grown = False
        self._count = itertools.count()

    def find(self, key: Key) -> CachedResult | None:
        """Return the result; None if there is none, if its record is of another key, or if its files are not
        as they were written."""
        path = self._record(digest := digest_of(dict(key)))
        document = _load(path)
        if document is None or document.get("key") != digest:
            return None
        folder = path.with_name(document["folder"]) if document["folder"] else None
        if not self._is_whole(folder, document["files"]):
            return None
        for place in filter(None, (path, folder)):
            with contextlib.suppress(OSError):
                os.utime(place)
        return CachedResult(document["facts"], folder)

    def keep(
        self, subject: str, key: Key, facts: Mapping[str, object], folder: Path | None = None
    ) -> CachedResult:
        """Keep a result; `folder`, which `scratch` returned, moves into the store. Raises OSError."""
        digest = digest_of(dict(key))
        path, files = self._record(digest), digests_in(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        place = path.with_name(f"{digest}-{digest_of(dict(files))[:16]}") if folder else None
        if folder and place:
            self._put(folder, place, files)
            self._has_grown = True
        record = {"key": digest, "facts": dict(facts), "folder": place.name if place else "", "files": files}
        _store(path, record)
        _store(self._subject(subject), {"key": dict(key)})
        document = json.loads(json.dumps(dict(facts)))
        return CachedResult(document, place)

    def _put(self, folder: Path, place: Path, files: Mapping[str, str]) -> None:
        """Move the folder to its place. A complete one that is already there stays: another process may have
        written it just now, and reads it."""
        try:
            folder.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if self._is_whole(place, files):
                shutil.rmtree(folder, ignore_errors=True)
                # The newest folder of a record is the one that it uses.
                os.utime(place)
            else:
                shutil.rmtree(place, ignore_errors=True)
                folder.rename(place)

    def forget(self, key: Key) -> None:
        """Remove the result of this key, because the same work has failed since."""
        self._record(digest_of(dict(key))).unlink(missing_ok=True)

    def difference(self, subject: str, key: Key) -> str:
        """Name the row in which this key differs from the last one of the same program."""
        document = _load(self._subject(subject))
        if not document:
            return NEW
        before, now = dict(flat(document["key"])), dict(flat(json.loads(json.dumps(dict(key)))))
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                return f"{name}: {_abbreviate(before.get(name))} → {_abbreviate(now.get(name))}"
        return "its cached result is gone, damaged, or passes no more"

    def digest(self, path: Path) -> str:
        """The digest of a file, kept by its size, times and inode."""
        return self._digests.of(path)

    def scratch(self) -> Path:
        """Make a new folder for a result, on the store's file system."""
        folder = self._top / "work" / f"{os.getpid()}-{time.monotonic_ns()}-{next(self._count)}"
        folder.mkdir(parents=True)
        return folder

    def close(self) -> None:
        self._digests.save()
        self._sweep()

    def _sweep(self) -> None:
        """Remove old results, once a day and whenever they may exceed their limit."""
        try:
            removed = (
                remove_results(self._store, self._limit, used_since=STARTED)
                if self._has_grown or sweep_is_due(self._store)
                else []
            )
        except OSError as error:
            sys.stderr.write(f"warning: old results stay in {self._top.parent}: {error.strerror}\n")
        for row in removed:
            sys.stderr.write(f"cached results: {row.count} removed, {size(row.size)}: {row.reason}\n")

    def _record(self, digest: str) -> Path:
        return self._top / digest[:2] / f"{digest}.json"

    def _subject(self, name: str) -> Path:
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        return self._top / "last" / f"{digest}.json"

    def _is_whole(self, folder: Path | None, files: Mapping[str, str]) -> bool:
        try:
            is_same = all(folder and self.digest(folder / name) == digest for name, digest in files.items())
            return is_same and set(names_in(folder)) == files.keys()
        except OSError:
            return False


def flat(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values in dicts and lists, by dotted name."""
    parts: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    empty = True
    for part, inner in parts:
        empty = False
        yield from flat(inner, f"{name}.{part}" if name else str(part))
    if empty:
        yield name, value


def _abbreviate(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def names_in(folder: Path | None) -> list[str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []
    return [path.relative_to(folder).as_posix() for path in paths if folder]


def digests_in(folder: Path | None) -> dict[str, str]:
    return {name: hash_file(folder / name) for name in names_in(folder) if folder}


def _load(path: Path) -> dict[str, Any] | None:
    """Read a record. A damaged one is removed, and None is returned."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["digest"] == digest_of(record["document"]):
            return dict(record["document"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    return None


def whole(record: Path) -> list[Path]:
    """The file of a record and the files that belong to it; empty if any of them is not as it was written."""
    document = _load(record) or {}
    name, files = document.get("folder"), document.get("files")
    if (
        document.get("key") != record.stem
        or not isinstance(name, str)
        or not isinstance(files, dict)
        or not isinstance(document.get("facts"), dict)
    ):
        return []
    folder = record.with_name(f"{record.stem}-{digest_of(files)[:16]}") if name or files else None
    if name != (folder.name if folder else "") or digests_in(folder) != files:
        return []
    return [record, *(folder / file for file in files if folder)]


def _store(path: Path, document: Mapping[str, Any]) -> None:
    replace_text(path, json.dumps({"digest": digest_of(dict(document)), "document": document}))


def python_name() -> str:
    return f"{sys.implementation.name} {sys.version.split()[0]} {os.uname().machine}"


@cache
def processor() -> str:
    """The kind of processor: libraries choose by it how they compute."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    first = text.partition("\n\n")[0]
    lines = re.findall(r"^(?:model name|flags|Features|CPU \w+)\s*:.*$", first, re.MULTILINE)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def surroundings(
    store: Path, environ: Mapping[str, str], packages: Path | None = None, projects: tuple[Path, ...] = ()
) -> dict[str, Json]:
    """The rows of a key that all work of one home shares. `packages` is the suite's own environment, and
    `projects` are the projects that it has installed editable."""
    search = [*map(os.path.abspath, filter(None, environ.get("PYTHONPATH", "").split(os.pathsep)))]
    folders, digests = site_folders(packages), Digests(store)
    code: list[Json] = [folder_digest(Path(folder), CODE, digests.of) for folder in search]
    libraries: list[Json] = [
        libraries_in(Path(folder), digests.of)
        for folder in filter(None, environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    ]
    digests.save()
    return {
        "python": python_name(),
        "processor": processor(),
        "variables": {name: environ[name] for name in variables_table().fixed if name in environ},
        "packages": dict(digests_of_installed(folders, search, store, projects)),
        "PYTHONPATH": code,
        "LD_LIBRARY_PATH": libraries,
        "toolkit": toolkit(),
    }


def libraries_in(folder: Path, digest: Callable[[Path], str]) -> Json:
    """The digest of the libraries that the loader may find in a folder; those of the system do not count."""
    if f"{os.path.realpath(folder)}/".startswith(SYSTEM):
        return "the system"
    paths = [path for form in ("*.so*", "glibc-hwcaps/*/*.so*") for path in sorted(folder.glob(form))]
    names = [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
    return digest_of([[name, digest(folder / name)] for name in names])


TOOLKIT = ("ci", "provisioning", "qnn_ci")
USERS = "ci/models/shipped/"
"""The models that the toolkit ships are treated like a user's: they count by what they build."""


@cache
def toolkit() -> str:
    """The digest of the toolkit's own modules, no matter which of them the work imports."""
    paths = [path for name in TOOLKIT for path in (ROOT / name).rglob("*.py")]
    digests = {path.relative_to(ROOT).as_posix(): hash_file(path) for path in paths}
    return digest_of({name: digest for name, digest in digests.items() if not name.startswith(USERS)})


CODE = (".py", ".so", ".json", ".yaml", ".fbs")


def folder_digest(
    folder: Path, suffixes: tuple[str, ...] = (".py",), digest: Callable[[Path], str] = hash_file
) -> str:
    """The digest of all files below a folder whose names end with one of the suffixes, without hidden
    ones."""
    return digest_of([[name, digest(folder / name)] for name in files_below(folder, suffixes)])


Lines = Mapping[str, tuple[str, str]]
"""Maps a node to FILE:LINE and the code of that line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReply:
    """An export's reply about its model, beside what a lane's programs depend on."""

    lines: Lines = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    """The files of the model's code."""
    libraries: tuple[str, ...] = ()
    """The libraries that its process has loaded from outside its Python's environment and the system."""


def relocate_lines(facts: Facts, old_lines: Lines, new_lines: Lines) -> Facts | None:
    """Replace the lines in facts by those where the nodes are now. None if two nodes of one old line are on
    different lines now: a text does not say which node it means."""
    replacements: dict[str, str] = {}
    for node, (place, code) in old_lines.items():
        place_now, code_now = new_lines.get(node, (place, code))
        # A line's code stands in backticks in a text, or alone.
        pairs = ((place, place_now), (f"`{code}`", f"`{code_now}`"))
        if any(old and replacements.setdefault(old, new) != new for old, new in pairs):
            return None
    changes = {old: new for old, new in replacements.items() if old != new}
    if not changes:
        return facts
    names = "|".join(map(re.escape, sorted(changes, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w/.])(?:{names})(?!\w)")

    def replace_lines(value: object) -> object:
        if isinstance(value, str):
            alone = changes.get(f"`{value}`")
            return alone.strip("`") if alone else pattern.sub(lambda match: changes[match[0]], value)
        if isinstance(value, dict):
            return {name: replace_lines(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [*map(replace_lines, value)]
        return value

    texts = {name: replace_lines(value) for name, value in facts.items() if name != "lines"}
    return {**texts, "lines": dict(new_lines)}
