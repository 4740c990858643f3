"""The state of a source tree decides what is built from it: its commit, and the files that differ from it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from provisioning.base.commands import capture
from provisioning.base.files import hash_file
from provisioning.base.rendering import plural

REPOSITORY = ".git"
_READ_BY_BUILDS = re.compile(
    r"(?:.*/)?(?:CMakeLists\.txt|[^/]+\.(?:c|cc|cpp|cxx|h|hh|hpp|inc|inl|S|cmake|in|fbs|ya?ml))"
    r"|version\.txt|(?:codegen|tools/cmake)/.*"
)
"""Builds compile these, or generate code from them. Python's files are seen through the overlay's links."""


@dataclass(frozen=True, slots=True)
class TreeState:
    """What decides what is built from a source tree."""

    commit: str = ""
    """The commit that is checked out; empty if it is no git repository."""
    changed: bool = False
    """Whether any file of the repository differs from the commit."""
    files: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each changed or new file that builds read; empty for a file that is gone. A submodule at
    another commit has that commit."""

    def __str__(self) -> str:
        files = f" with {plural(len(self.files), 'changed file')}" if self.files else ""
        return f"{self.commit[:12] or 'a tree without git'}{files}"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One row of `git status --porcelain=v2`."""

    kind: str
    """`?` for a new file; `1`, `2` and `u` for one that differs from the commit."""
    submodule: str
    """`S` and three letters for a submodule, whose first is `C` if it has another commit checked out; else
    another text."""
    path: str

    @property
    def is_submodule(self) -> bool:
        return self.submodule.startswith("S")

    @property
    def has_other_commit(self) -> bool:
        return self.submodule.startswith("SC")


def state_of(tree: Path) -> TreeState:
    """Describe a tree's state. A tree of the store never changes, and a tree without git is known by sizes
    and times."""
    if not (tree / REPOSITORY).exists():
        return TreeState(files={} if _is_of_store(tree) else _stamps(tree))
    entries = list(_read_status(git_output(tree, "status", "--porcelain=v2", "-z", "--untracked-files=all")))
    files: dict[str, str] = {}
    for entry in entries:
        if entry.is_submodule:
            files |= _submodule_files(tree, entry)
        elif _READ_BY_BUILDS.fullmatch(entry.path):
            file = tree / entry.path
            files[entry.path] = hash_file(file) if file.is_file() else ""
    is_changed = any(entry.kind != "?" for entry in entries)
    return TreeState(git_output(tree, "rev-parse", "HEAD"), is_changed, dict(sorted(files.items())))


def _submodule_files(tree: Path, entry: _Entry) -> dict[str, str]:
    """Return the submodule's commit, if another one is checked out, and the submodule's changed files."""
    inner = state_of(tree / entry.path)
    files = {f"{entry.path}/{name}": digest for name, digest in inner.files.items()}
    if entry.has_other_commit:
        files[entry.path] = inner.commit
    return files


def git_output(root: Path, *arguments: str) -> str:
    """Return git's output for the repository whose top is exactly `root`; empty otherwise."""
    if not (root / REPOSITORY).exists():
        return ""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # Write nothing into the tree, not even git's index.
    environ |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    settings = ("-c", f"safe.directory={root}", "-c", "log.showSignature=false")
    command = ["git", *settings, "-C", str(root), *arguments]
    try:
        process = capture(command, env=environ)
    except FileNotFoundError:
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""


_FIELDS_BEFORE_PATH = {"1": 7, "2": 8, "u": 9}
"""How many fields stand between the kind and the path of a row; the second of them is the submodule's."""


def _read_status(status: str) -> Iterator[_Entry]:
    """Read the output of `git status --porcelain=v2 -z`."""
    rows = iter(status.split("\0"))
    for row in rows:
        kind, _, rest = row.partition(" ")
        if kind == "?":
            yield _Entry(kind, "", rest)
        elif count := _FIELDS_BEFORE_PATH.get(kind):
            fields = rest.split(" ", count)
            yield _Entry(kind, fields[1], fields[count])
        if kind == "2":
            # The old name of a renamed file follows as a row of its own.
            yield _Entry(kind, "N", next(rows))


def _is_of_store(tree: Path) -> bool:
    return tree.parent.with_name(f"{tree.parent.name}.json").is_file()


def _stamps(tree: Path) -> dict[str, str]:
    """Return one digest over the names, sizes and times of the files that builds read."""
    digest = hashlib.sha256()
    for path in sorted(_files(tree)):
        status = os.stat(path)  # noqa: PTH116  there are a hundred thousand
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return {"(sizes and times)": digest.hexdigest()}


def _files(tree: Path) -> Iterable[str]:
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118
            if _READ_BY_BUILDS.fullmatch(os.path.relpath(path, tree)) and os.path.isfile(path):  # noqa: PTH113
                yield path
