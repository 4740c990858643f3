"""What work depends on: the kinds of inputs, their state now, and what a change of one is called."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ci.engine.closed import homes, key_of_environment, table
from ci.engine.distributions import installed, site_folders
from ci.engine.interpreter import digest_of_value
from ci.engine.packages import DistributionMetadata, packages_in
from ci.engine.repository import repository_of
from ci.engine.watch import (
    LOADER_CACHE,
    Stamp,
    absence_of,
    changed_too_recently,
    details_of,
    listing_of,
    stamp_of,
)
from provisioning.base.files import hash_file, replace_text
from provisioning.base.findings import Metric as Json
from provisioning.base.settings import ROOT
from provisioning.loader_search import read_cache

FORMAT = 3
"""Part of every key: changing it invalidates everything that was remembered."""

MOST_DIGESTS = 50_000

INSTALLED = "installed"
"""The part of a key that has all of this interpreter's distributions, so that their files are no inputs."""

READS = 5
"""How often a file is read that changes meanwhile."""

# Torch searches all distributions for plugins. These listings and entry points do not count; what is
# imported counts by its own files.
PACKAGES, ENTRY_POINTS = ("/site-packages", "/dist-packages"), ".dist-info/entry_points.txt"
EDITABLE = re.compile(r"/(?:site|dist)-packages/(?:[^/]+\.pth|__editable__[^/]+)$")
"""Files that hold the absolute paths of editable projects."""

Input = tuple[str, str, str]
"""Kind, name and state of one input; `State` computes the current state."""


class Roots:
    """Names for directories that differ between clones and machines: `{suite}/net.py`."""

    def __init__(self, named: Mapping[str, Path | str]) -> None:
        self.named = dict(named)
        self._named = [(name, str(path).rstrip("/")) for name, path in named.items()]
        pairs = {(name, spelt) for name, path in self._named for spelt in (path, os.path.realpath(path))}
        order = list(named)
        self._prefixes = sorted(pairs, key=lambda pair: (-len(pair[1]), order.index(pair[0])))

    def name(self, path: str) -> str:
        for name, prefix in self._prefixes:
            if path == prefix or path.startswith(f"{prefix}/"):
                return f"{{{name}}}{path[len(prefix) :]}"
        return path

    def names_in(self, text: str) -> str:
        """The text with a name for each root. Its own braces are doubled, so that none looks like a name."""
        names = {path: name for name, path in reversed(self._prefixes)}
        roots = "|".join(re.escape(path) for _, path in self._prefixes)
        pattern = rf"(?<![\w./-])({roots})(?![\w.-])"
        return re.sub(pattern, lambda match: f"{{{names[match[1]]}}}", text.replace("{", "{{"))

    def of_user(self, environ: Mapping[str, str]) -> Roots:
        """With the user's folders added, the Python below the interpreter, which is often in one of them, and
        the folders of the search paths that no other root has."""
        named = Roots({**self.named, "base": sys.base_prefix, **dict(homes(environ))})
        for variable in table().place.search:
            for number, folder in enumerate(folders_of(environ, variable)):
                if named.name(folder) == folder:
                    named.named[f"{variable} {number}"] = folder
        return Roots(named.named)

    def path(self, name: str) -> str:
        for root, path in self._named:
            if name.startswith(f"{{{root}}}"):
                return path + name[len(root) + 2 :]
        return name


def folders_of(environ: Mapping[str, str], variable: str) -> list[str]:
    """The folders of a search path."""
    return [os.path.abspath(part) for part in environ.get(variable, "").split(os.pathsep) if part]


def python_name() -> str:
    return f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}"


def search_key(roots: Roots, environ: Mapping[str, str]) -> dict[str, Json]:
    """Where modules and libraries are searched, what is installed, and the variables of a closed
    environment: part of every key."""
    store, folders = roots.named.get("store"), site_folders(roots.named.get("packages"))
    search, kept = folders_of(environ, "PYTHONPATH"), Path(store) if store else None
    return {
        "environment": dict(key_of_environment(environ)),
        INSTALLED: dict(installed(folders, search, kept, roots.names_in)),
        **{name: [*map(roots.name, folders_of(environ, name))] for name in table().place.search},
    }


def roots_of(suite: Path, store: Path, packages: Path | None = None) -> Roots:
    """The roots of a suite's programs: the suite's repository, this toolkit, the interpreter, the store, and
    the environment with the suite's own packages."""
    roots = {"toolkit": ROOT, "suite": repository_of(suite), "python": Path(sys.prefix), "store": store}
    return Roots(roots | ({"packages": packages} if packages else {}))


@dataclass
class Touched:
    """What work touched; for the fields see `ci.engine.interpreter.touched` and `ci.engine.watch.Seen`."""

    opened: dict[str, Stamp] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    looked: dict[str, str] = field(default_factory=dict)
    listed: dict[str, str] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    """Variables that were not there: no inputs, for messages alone."""
    absent_modules: dict[str, list[str]] = field(default_factory=dict)
    queries: dict[str, list[str]] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Files that it leaves behind and that it also looked up or read (`Seen.left`)."""
    suspect: list[str] = field(default_factory=list)
    """The opened files that may have changed while they were read."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Touched:
        """From a worker's reply."""
        opened = {path: (row[0], row[1], row[2], row[3]) for path, row in data.get("opened", {}).items()}
        names = ("digests", "looked", "listed", "asked", "absent_modules", "queries")
        rest = {name: dict(data.get(name, {})) for name in names}
        unseen, left, suspect = (list(data.get(name, ())) for name in ("unseen", "left", "suspect"))
        return cls(opened=opened, unseen=unseen, left=left, suspect=suspect, **rest)

    def __or__(self, later: Touched) -> Touched:
        """For work in two steps; the first touch of each input counts."""
        merged: dict[str, Any] = {}
        for name, mine in vars(self).items():
            theirs = getattr(later, name)
            merged[name] = [*mine, *theirs] if isinstance(mine, list) else theirs | mine
        return Touched(**merged)


def libraries_by_name() -> dict[str, tuple[Path, ...]]:
    """ld.so's cache as it is now."""
    with contextlib.suppress(OSError):
        return _cache_of_loader(stamp_of(os.stat(LOADER_CACHE)))
    return {}


@cache
def _cache_of_loader(stamp: Stamp) -> dict[str, tuple[Path, ...]]:
    return read_cache(Path(LOADER_CACHE))


IMAGES = ("squashfs", "erofs", "iso9660", "udf", "cramfs", "romfs", "fuse")
"""File systems on which another file may have the stamp of an earlier one."""


def mounted_images() -> tuple[str, ...]:
    """Where file systems of IMAGES are mounted, each ending in a slash."""
    found = []
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith(IMAGES):
            folder = before.split(" ")[4].encode().decode("unicode_escape")
            found.append(f"{folder.rstrip('/')}/")
    return tuple(found)


_read_here: dict[tuple[str, Stamp], str] = {}
"""The digests of what this process has read, whatever stores it uses."""


_kept_here: dict[Path, tuple[Stamp, Mapping[str, list[Any]]]] = {}
"""What this process has read of the memories of digests, which have thousands of rows each."""


def _kept_in(path: Path) -> Mapping[str, list[Any]]:
    """The rows of a memory. It is always replaced as a whole, so that the next one has another stamp."""
    with contextlib.suppress(OSError, ValueError), path.open(encoding="utf-8") as file:
        stamp = stamp_of(os.fstat(file.fileno()))
        if path not in _kept_here or _kept_here[path][0] != stamp:
            read = json.load(file)
            rows = read.items() if isinstance(read, dict) else ()
            kept = {name: row for name, row in rows if isinstance(row, list) and len(row) == 5}
            _kept_here[path] = stamp, kept
        return _kept_here[path][1]
    return {}


class Digests:
    """SHA-256 of files. Bytes are read again only if the file's stamp differs or is too recent."""

    def __init__(self, store: Path, stamp: Callable[[os.stat_result], Stamp] = stamp_of) -> None:
        self._path, self._stamp = store / "cache" / "memo" / "digests.json", stamp
        self._kept = _kept_in(self._path)
        self._known = dict(self._kept)
        self._first: dict[str, str] = {}
        self._changed = False
        self._reading = threading.Lock()
        self._images = mounted_images()

    def earlier(self, path: str) -> str:
        """The digest known when this memory was opened, or else when it was first requested."""
        kept = self._kept.get(path)
        return str(kept[4]) if kept else self._first.get(path, "")

    def of(self, path: str) -> tuple[str, Stamp]:
        """Raises OSError for anything that is not a readable file."""
        for _ in range(READS):
            stamp = self._stamp(os.stat(path))
            if digest := self._of(path, stamp):
                return digest, stamp
            # Two workers that end at the same time have read the same libraries.
            with self._reading:
                if digest := self._of(path, stamp) or self._read(path, stamp):
                    return digest, stamp
        raise OSError(f"{path} changed each time that it was read")

    def _of(self, path: str, stamp: Stamp) -> str:
        if self._on_image(path):
            return ""
        known = self._known.get(path)
        return str(known[4]) if known and known[:4] == list(stamp) and not changed_too_recently(stamp) else ""

    def _on_image(self, path: str) -> bool:
        return bool(self._images) and os.path.realpath(path).startswith(self._images)

    def _read(self, path: str, stamp: Stamp) -> str:
        """Empty if it changed meanwhile. A hard link to it, as a backup makes one, also changes its stamp."""
        settled = not (self._on_image(path) or changed_too_recently(stamp))
        digest = (_read_here.get((path, stamp), "") if settled else "") or hash_file(Path(path))
        if self._stamp(os.stat(path)) != stamp:
            return ""
        self._first.setdefault(path, digest)
        if settled:
            _read_here[path, stamp] = digest
            # Moved to the end, as the most recently used.
            self._known.pop(path, None)
            self._known[path] = [*stamp, digest]
            self._changed = True
        return digest

    def save(self) -> None:
        if not self._changed:
            return
        newest = dict(itertools.islice(reversed(self._known.items()), MOST_DIGESTS))
        # Not being able to write only means that bytes are read again, so this is no error.
        with contextlib.suppress(OSError):
            replace_text(self._path, json.dumps(dict(reversed(newest.items()))))
            self._changed = False


class CurrentState:
    """The current state of inputs; each is computed once."""

    def __init__(self, roots: Roots, digests: Digests, environ: Mapping[str, str]) -> None:
        self.roots, self._digests, self._environ = roots, digests, environ
        self._known: dict[tuple[str, str], str] = {}
        self.folders: dict[str, str] = {}
        self._packages_in: dict[str, list[DistributionMetadata]] = {}

    def of(self, kind: str, name: str) -> str:
        state = self._known.get((kind, name))
        if state is None:
            compute = getattr(self, f"_{kind}", None)
            self._known[kind, name] = state = compute(name) if compute else "unknown kind"
        return state

    def _file(self, name: str) -> str:
        path = self.roots.path(name)
        try:
            digest, _ = self._digests.of(path)
        except OSError:
            return "absent"
        return self.content(path, digest) + self.target(path)

    def content(self, path: str, digest: str) -> str:
        """The digest. Paths of an editable project are named by root, so that clones share results."""
        if EDITABLE.search(path):
            with contextlib.suppress(OSError):
                text = Path(path).read_bytes()
                if hashlib.sha256(text).hexdigest() == digest:
                    return digest_of_value(self.roots.names_in(os.fsdecode(text)))
        return digest

    def target(self, path: str) -> str:
        """The target of a path after symbolic links, so that re-pointing a link is a change."""
        folder, _, file = path.rpartition("/")
        if folder not in self.folders:
            self.folders[folder] = os.path.realpath(folder or "/").rstrip("/")
        real = f"{self.folders[folder]}/{file}"
        if os.path.islink(real):
            real = os.path.realpath(real)
        here, there = self.roots.name(path), self.roots.name(real)
        return "" if here == there else f" -> {there}"

    def _entry(self, name: str) -> str:
        path = self.roots.path(name)
        if os.path.isdir(path):
            return "directory" + self.target(path)
        return "file" + self.target(path) if os.path.exists(path) else absence_of(path)

    def _details(self, name: str) -> str:
        return details_of(self.roots.path(name))

    def _place(self, name: str) -> str:
        """Where a root is."""
        return os.path.realpath(self.roots.named.get(name, ""))

    def _listing(self, name: str) -> str:
        return listing_of(self.roots.path(name))

    def _modules(self, name: str) -> str:
        """Which of the named modules the directory has; `name` is `directory: one two`."""
        folder, _, names = name.rpartition(": ")
        wanted = set(names.split())
        try:
            offered = {entry.partition(".")[0] for entry in os.listdir(self.roots.path(folder))}
        except OSError:
            return ""
        return " ".join(sorted(wanted & offered))

    def _paths(self, name: str) -> str:
        """What the .pth files of a directory add to the search path, as an editable install does."""
        path_files = sorted(Path(self.roots.path(name)).glob("*.pth"))
        return digest_of_value("\0".join(f"{file.name}: {self._file(str(file))}" for file in path_files))

    def _packages(self, name: str) -> str:
        """A directory's answers to queries about installed packages; `name` is `directory: query query`."""
        folder, _, queries = name.rpartition(": ")
        path = self.roots.path(folder)
        if path not in self._packages_in:
            self._packages_in[path] = packages_in(path)
        packages = self._packages_in[path]
        answers = {
            query: sorted(filter(None, (package.answer(query) for package in packages)))
            for query in queries.split(" ")
        }
        return key_of({query: list(answer) for query, answer in answers.items() if answer})

    def _program(self, name: str) -> str:
        """The path where a program of this name is found."""
        program = shutil.which(name, path=self._environ.get("PATH", os.defpath))
        return self.roots.name(program) if program else "absent"

    def _library(self, name: str) -> str:
        """Where ld.so's cache leads for a name."""
        paths = libraries_by_name().get(name, ())
        return self.roots.name(str(paths[0])) if paths else "absent"

    def _distribution(self, name: str) -> str:
        """The installed version; `name` is `directory: distribution`. Its content is covered by its files."""
        folder, _, distribution = name.rpartition(": ")
        folders = Path(self.roots.path(folder)).glob(f"{distribution}-*.dist-info")
        versions = sorted(folder.name.removesuffix(".dist-info").rpartition("-")[2] for folder in folders)
        return " ".join(versions) or "absent"


ORDER = (
    *("distribution", "library", "place", "file", "entry", "details", "modules", "packages", "paths"),
    *("program", "listing"),
)
"""Kinds of inputs, the one that explains the most first."""

CHANGES = {
    "modules": "{folder} offers the module {state} now",
    "packages": "other packages are in {folder}",
    "program": "the program {name} is another",
    "library": "another {name} is first in ld.so's cache",
    "place": "its files name the folder that it was made in",
    "details": "size, time or mode of {shown} changed",
    "paths": "other .pth files are in {shown}",
    "listing": "other files are in {shown}",
}


def change_in_words(kind: str, name: str, before: str, now: str) -> str:
    shown = name.partition("}/")[2] if name.startswith("{suite}/") else name
    if kind == "distribution":
        title, old, new = name.rpartition(": ")[2], before.partition(" ")[0], now.partition(" ")[0]
        return f"{title} was installed anew" if old == new else f"{title} {old} → {new}"
    if kind in CHANGES:
        folder = shown.rpartition(": ")[0]
        return CHANGES[kind].format(name=name, shown=shown, folder=folder, state=now or before)
    if "absent" in (before, now):
        return f"{shown} is gone" if now == "absent" else f"{shown} is there now"
    return f"{shown} changed"


def key_of(inputs: Mapping[str, Any]) -> str:
    """The key of named inputs; any changed value and any added or removed name gives another key."""
    text = json.dumps({"format": FORMAT, "inputs": dict(inputs)}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
