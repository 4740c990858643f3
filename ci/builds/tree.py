"""Facts about an ExecuTorch tree: version, commit, submodules, options that its CMake files read."""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci.builds.recipes import Recipe
from provisioning.base.commands import quoted
from provisioning.base.errors import EnvironmentLacking
from provisioning.components import EXECUTORCH_SOURCE
from provisioning.overlay import REPOSITORY, TreeState, git_output, state_of

MARKS = ("CMakeLists.txt", "backends/qualcomm/CMakeLists.txt", "examples/qualcomm/CMakeLists.txt")
OWN_NAME = "executorch"
"""The directory must have this name: headers are included as <executorch/…> from the folder above."""

_CMAKE_FILE = re.compile(r"CMakeLists\.txt|.*\.cmake(?:\.in)?")
_COMMENT = re.compile(r"(?m)^\s*#.*$")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{3,}")


@dataclass(frozen=True, slots=True)
class Submodule:
    path: str
    url: str
    commit: str


@dataclass(frozen=True, slots=True)
class SourceTree:
    root: Path
    version: str
    commit: str
    """The tree's commit; empty if it is not a git repository."""
    changed: bool
    """Whether it differs from the commit."""
    time: int
    """The commit's time, in seconds since 1970: the date of what is built."""
    repository: Path | None = None
    """The git repository with the commit: for a tree of the store, the checkout it was copied from."""
    state: TreeState = field(default_factory=TreeState)


def open_tree(root: Path, needed: Collection[str] = ()) -> SourceTree:
    """`needed`: the submodules that must be there, if this version of the tree has them."""
    missing = [mark for mark in MARKS if not (root / mark).is_file()]
    if missing:
        raise EnvironmentLacking(
            f"{root}: expected an ExecuTorch tree with {missing[0]}, found none",
            fix="set EXECUTORCH_ROOT to a checkout with its submodules, or unset it to use the store's",
        )
    empty = [path for path in _submodule_urls(root) if path in needed and not any((root / path).glob("*"))]
    if empty:
        outermost = [
            path for path in _own_submodules(root) if any(f"{name}/".startswith(f"{path}/") for name in empty)
        ]
        update = ("submodule", "update", "--init", "--recursive", "--")
        more = f", and {len(empty) - 1} more" if empty[1:] else ""
        raise EnvironmentLacking(
            f"{root}: the submodule {empty[0]} is empty{more}",
            fix=quoted("git", "-C", root, *update, *outermost),
        )
    if root.resolve().name != OWN_NAME:
        raise EnvironmentLacking(
            f"{root}: its headers are included as <{OWN_NAME}/…> from the folder above, so that it must be "
            f"named {OWN_NAME}, found {root.resolve().name}",
            fix=f"{quoted('git', '-C', root, 'worktree', 'add', '--detach', f'{root}.d/{OWN_NAME}')}, "
            "or rename the directory",
        )
    version = root / "version.txt"
    state = state_of(root)
    repository, commit = root, state.commit
    if not commit:
        repository, commit = _of_store(root)
    return SourceTree(
        root=root,
        version=version.read_text(encoding="utf-8").strip() if version.is_file() else "",
        commit=commit,
        changed=state.changed,
        time=int(git_output(repository, "show", "-s", "--format=%ct", commit or "HEAD") or 0),
        repository=repository,
        state=state,
    )


def submodules(tree: SourceTree) -> list[Submodule]:
    """The tree's submodules and theirs; their commits are known where there is a repository."""
    urls = _submodule_urls(tree.root)
    repository = tree.repository or tree.root
    commits = _linked_commits(repository, tree.commit) if urls else {}
    for outer in [path for path in urls if (tree.root / path / ".gitmodules").is_file()]:
        nested = _linked_commits(repository / outer, "HEAD")
        commits |= {f"{outer}/{path}": commit for path, commit in nested.items()}
    return [Submodule(path, url, commits.get(path, "")) for path, url in urls.items()]


def _linked_commits(repository: Path, commit: str) -> dict[str, str]:
    commits = {}
    for line in git_output(repository, "ls-tree", "-r", commit).splitlines():
        described, _, path = line.partition("\t")
        mode, _, linked = described.split()
        if mode == "160000":
            commits[path] = linked
    return commits


def file_names(root: Path) -> dict[str, list[str]]:
    """The names of the tree's files, by folder."""
    names = {}
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != REPOSITORY)
        names[folder] = sorted(files)
    return names


def unread_options(
    recipe: Recipe, names: Mapping[str, Sequence[str]], more: Iterable[Path] = ()
) -> list[str]:
    """Options of the recipe, except CMake's own, that no CMake file of the tree mentions."""
    options = {*recipe.options}.union(*(project.options for project in recipe.projects))
    # CMake's own CTest module reads BUILD_TESTING.
    wanted = {name for name in options if not name.startswith("CMAKE_")} - {"BUILD_TESTING"}
    every = (Path(folder, name) for folder, files in names.items() for name in files)
    for path in (*more, *(path for path in every if _CMAKE_FILE.fullmatch(path.name))):
        if not wanted:
            break
        text = _read(path)
        if any(name in text for name in wanted):
            wanted -= set(_IDENTIFIER.findall(_COMMENT.sub("", text)))
    return sorted(wanted)


def _of_store(root: Path) -> tuple[Path, str]:
    """The checkout and the commit of a tree of the store, which keeps the checkout as long as the tree."""
    from provisioning.store import Store
    from provisioning.store.inventory import Inventory

    folder = root.parent  # a tree of the store holds the source in a folder of its own
    inventory = Inventory.read(folder.with_name(f"{folder.name}.json"))
    if inventory is None or inventory.component != EXECUTORCH_SOURCE:
        return root, ""
    commit = inventory.origins[0].sha256
    return Store(folder.parent.parent).downloads / f"git-{commit}", commit


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # a link to nowhere
        return ""


def _submodule_urls(root: Path) -> dict[str, str]:
    """Addresses of submodules, and of theirs, by path."""
    urls = _own_submodules(root)
    for path in list(urls):
        urls |= {f"{path}/{inner}": url for inner, url in _submodule_urls(root / path).items()}
    return urls


def _own_submodules(root: Path) -> dict[str, str]:
    listing = configparser.ConfigParser(strict=False, interpolation=None)
    listing.read(root / ".gitmodules", encoding="utf-8")
    return {entry["path"]: entry["url"] for entry in listing.values() if "path" in entry and "url" in entry}
