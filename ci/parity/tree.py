"""The files to check: a directory, listed once, with changes over it in memory."""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
from collections.abc import Iterator, Mapping
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
    """Paths are relative, with `/`. `over` holds changed texts; None removes a file."""

    def __init__(
        self,
        root: Path,
        over: Mapping[str, str | None] | None = None,
        *,
        listing: frozenset[str] | None = None,
    ) -> None:
        self.root = root
        self.over = dict(over or {})
        self._listed = frozenset(_walk(root)) if listing is None else listing
        self._texts: dict[str, str] = {}

    def changed(self, over: Mapping[str, str | None]) -> Tree:
        """The same tree with more changes; nothing is read again from disk."""
        tree = Tree(self.root, {**self.over, **over}, listing=self._listed)
        tree._texts = self._texts
        return tree

    @cached_property
    def whole(self) -> bool:
        """Whether it is a whole checkout, so that a missing file does not exist."""
        return (self.root / ".git").exists()

    @cached_property
    def files(self) -> frozenset[str]:
        gone = {path for path, text in self.over.items() if text is None}
        return (self._listed | self.over.keys()) - gone

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
    def _by_directory(self) -> dict[str, list[str]]:
        by_folder: dict[str, list[str]] = {}
        for path in sorted(self.files):
            by_folder.setdefault(posixpath.dirname(path), []).append(path)
        return by_folder

    def read(self, path: str) -> str:
        if (text := self.over.get(path)) is not None:
            return text
        if path not in self._texts:
            self._texts[path] = re.sub(r"\r\n?", "\n", self.original(path))
        return self._texts[path]

    def original(self, path: str) -> str:
        """The text with its original line ends."""
        if (text := self.over.get(path)) is not None:
            return text
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
        for directory, paths in self._by_directory.items():
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
            paths = self._by_directory.get(normal(posixpath.join(folder, head)), [])
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


def is_left_out(folder: str) -> bool:
    """Whether a folder is another project's, whose files are not listed."""
    return folder.startswith("third-party/")


def _ignored(root: Path) -> frozenset[str]:
    """What git ignores in the tree: leftovers of builds and downloads. Directories end with `/`.

    Empty if the tree is no checkout or there is no git."""
    if not (root / ".git").exists():
        return frozenset()
    listing = ["ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"]
    command = ["git", "-C", str(root), *listing]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=MOST_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(os.fsdecode(done.stdout).split("\0")) - {""}


def _walk(root: Path) -> Iterator[str]:
    ignored = _ignored(root)
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
                if entry.name not in SKIPPED and not is_left_out(name) and f"{name}/" not in ignored:
                    pending.append((f"{name}/", entry.path))
            elif name not in ignored and entry.is_file():
                yield name
