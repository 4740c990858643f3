"""What work depends on: the kinds of inputs, their state now, and what a change of one is called."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ci.engine.closed import folders_of_user, key_of_environment, table
from ci.engine.digests import Digests
from ci.engine.distributions import installed, site_folders
from ci.engine.watch import LOADER_CACHE, Stamp, absence_of, details_of, listing_of, modules_of, stamp_of
from provisioning.base.files import repository_of
from provisioning.base.findings import Metric as Json
from provisioning.base.settings import ROOT
from provisioning.loader_search import read_cache

FORMAT = 4
"""Part of every key: changing it invalidates everything that was remembered."""

INSTALLED = "installed"
"""The part of a key that has all of this interpreter's distributions, so that their files are no inputs."""

NO_USER_CODE = "no code of the user's"
"""The part of a key that says that the work runs none: our own code asks for a path's time to no effect."""

SHARED = ("suite", "toolkit", "python", "base", "packages", "store")
"""Roots below which other clones and machines have the same files, as SDKs do. A suite's is a repository."""

SYSTEM = (
    "/usr/",
    "/etc/",
    "/lib/",
    "/lib32/",
    "/lib64/",
    "/libx32/",
    "/var/lib/",
    "/bin/",
    "/sbin/",
    "/system/",
    "/vendor/",
)

Input = tuple[str, str, str]
"""Kind, name and state of one input; `State` computes the current state."""


class Roots:
    """Names for directories that differ between clones and machines: `{suite}/net.py`."""

    def __init__(self, named: Mapping[str, Path | str]) -> None:
        self.named = dict(named)
        self.search_keys: dict[tuple[tuple[str, str], ...], dict[str, Json]] = {}
        """By environment; the programs of a step have one."""
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
        """With the user's folders added, and the Python below the interpreter, which is often in one of
        them."""
        return Roots({**self.named, "base": sys.base_prefix, **folders_of_user(environ)})

    def path(self, name: str) -> str:
        for root, path in self._named:
            if name.startswith(f"{{{root}}}"):
                return path + name[len(root) + 2 :]
        return name


def python_name() -> str:
    return f"{sys.implementation.name} {sys.version.split()[0]} {os.uname().machine}"


def search_key(roots: Roots, environ: Mapping[str, str]) -> dict[str, Json]:
    """What is installed, and the variables of a closed environment, with the places that they name: part of
    every key."""
    if known := roots.search_keys.get(named := tuple(environ.items())):
        return known
    store, folders = roots.named.get("store"), site_folders(roots.named.get("packages"))
    parts = {name: environ[name].split(os.pathsep) for name in table().place.passed if name in environ}
    search, kept = [*map(os.path.abspath, parts.get("PYTHONPATH", ()))], Path(store) if store else None
    key = roots.search_keys[named] = {
        "environment": dict(key_of_environment(environ)),
        INSTALLED: dict(installed(folders, search, kept, roots.names_in)),
        **{name: [*map(roots.name, folders)] for name, folders in parts.items()},
    }
    return key


def roots_of(suite: Path, store: Path, packages: Path | None = None) -> Roots:
    """The roots of a suite's programs: the suite's repository, this toolkit, the interpreter, the store, and
    the environment with the suite's own packages."""
    roots = {"toolkit": ROOT, "suite": repository_of(suite), "python": Path(sys.prefix), "store": store}
    return Roots(roots | ({"packages": packages} if packages else {}))


def libraries_by_name() -> dict[str, tuple[Path, ...]]:
    """ld.so's cache as it is now."""
    with contextlib.suppress(OSError):
        return _cache_of_loader(stamp_of(os.stat(LOADER_CACHE)))
    return {}


@cache
def _cache_of_loader(stamp: Stamp) -> dict[str, tuple[Path, ...]]:
    return read_cache(Path(LOADER_CACHE))


OF_PATHS = {"details": details_of, "listing": listing_of, "modules": modules_of}
"""By kind of input, its state by the path alone."""


class CurrentState:
    """The current state of inputs; each is computed once."""

    def __init__(self, roots: Roots, digests: Digests) -> None:
        self.roots, self._digests = roots, digests
        self._known: dict[tuple[str, str], str] = {}
        self._folders: dict[str, str] = {}

    def of(self, kind: str, name: str) -> str:
        state = self._known.get((kind, name))
        if state is None:
            if kind in OF_PATHS:
                state = OF_PATHS[kind](self.roots.path(name))
            else:
                compute = getattr(self, f"_{kind}", None)
                state = compute(name) if compute else "unknown kind"
            self._known[kind, name] = state
        return state

    def _file(self, name: str) -> str:
        path = self.roots.path(name)
        try:
            digest, _ = self._digests.of(path)
        except OSError:
            return "absent"
        return digest + self.target(path)

    def target(self, path: str) -> str:
        """The target of a path after symbolic links, so that re-pointing a link is a change."""
        folder, _, file = path.rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder or "/").rstrip("/")
        real = f"{self._folders[folder]}/{file}"
        if os.path.islink(real):
            real = os.path.realpath(real)
        here, there = self.roots.name(path), self.roots.name(real)
        return "" if here == there else f" -> {there}"

    def _entry(self, name: str) -> str:
        path = self.roots.path(name)
        if os.path.isdir(path):
            return "directory" + self.target(path)
        return "file" + self.target(path) if os.path.exists(path) else absence_of(path)

    def _place(self, name: str) -> str:
        """Where a root is, on which machine."""
        path = os.path.realpath(self.roots.named.get(name, ""))
        with contextlib.suppress(OSError):
            info = os.stat(path)
            return f"{path} {info.st_dev}:{info.st_ino} {_machine()}"
        return path

    def _library(self, name: str) -> str:
        """Where ld.so's cache leads for a name."""
        paths = libraries_by_name().get(name, ())
        return self.roots.name(str(paths[0])) if paths else "absent"


@cache
def _machine() -> str:
    with contextlib.suppress(OSError):
        return f"{Path('/etc/machine-id').read_text(encoding='ascii').strip()} {socket.gethostname()}"
    return socket.gethostname()


ORDER = ("library", "place", "file", "entry", "details", "modules", "listing")
"""Kinds of inputs, the one that explains the most first."""

CHANGES = {
    "modules": "other modules or packages are in {shown}",
    "library": "another {name} is first in ld.so's cache",
    "place": "it depends on the folder and the machine that it was made in",
    "details": "size, time, mode or place of {shown} changed",
    "listing": "other files are in {shown}",
}


def change_in_words(kind: str, name: str, before: str, now: str) -> str:
    shown = name.partition("}/")[2] if name.startswith("{suite}/") else name
    if kind in CHANGES:
        return CHANGES[kind].format(name=name, shown=shown)
    if "absent" in (before, now):
        return f"{shown} is gone" if now == "absent" else f"{shown} is there now"
    return f"{shown} changed"


def key_of(inputs: Mapping[str, Any]) -> str:
    """The key of named inputs; any changed value and any added or removed name gives another key."""
    text = json.dumps({"format": FORMAT, "inputs": dict(inputs)}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What is in dicts and lists, by dotted name."""
    parts: Iterable[tuple[Any, Any]]
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    empty = True
    for part, inner in parts:
        empty = False
        yield from flat(inner, f"{name}.{part}" if name else str(part))
    if empty:
        yield name, value
