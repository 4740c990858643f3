"""Trees, downloads and leftovers that nobody needs any more, and why."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.files import hash_file
from provisioning.store import locking
from provisioning.store.tree_plan import covers
from provisioning.store.trees import Tree, Trees

OLD_LOCK = "is an old lock"


@dataclass(frozen=True, slots=True)
class Garbage:
    """Something that `gc` removes, and why."""

    path: Path
    reason: str
    size: int


def needless(
    store: Trees,
    referenced: Callable[[Tree], bool],
    older_than: float | None,
    all_downloads: bool,
    removal: locking.Removal,
) -> list[Garbage]:
    """Trees, downloads and leftovers of killed processes that can go; trees that are in use stay."""
    trees = store.trees()
    reasons = dict(_reasons(store, trees, referenced, older_than))
    for tree in trees:
        if tree.key in reasons and not removal.claim(tree.inventory_path):
            del reasons[tree.key]
    leftovers = [
        Garbage(tree.root, reasons[tree.key], tree.inventory.size) for tree in trees if tree.key in reasons
    ]
    committed = {tree.root.name for tree in trees}
    for path in sorted(store.folder.glob("*")):
        if path.name.removesuffix(".json") not in committed:
            leftovers.append(Garbage(path, "was never finished", _size(path)))
    used = {origin.sha256 for tree in trees if tree.key not in reasons for origin in tree.inventory.origins}
    for path in sorted(store.downloads.glob("*")):
        if path.suffix != ".lock" and (all_downloads or not _serves(path, used)):
            reason = "is kept for widening and repair only" if all_downloads else "no tree came from it"
            leftovers.append(Garbage(path, reason, _size(path)))
    abandoned = locking.abandoned(store.staging)
    leftovers += [Garbage(path, "its process is gone", _size(path)) for path in abandoned]
    staying = {tree.root.name for tree in trees if tree.key not in reasons}
    locks = locking.idle([*store.locks.glob("*"), *store.downloads.glob("*.lock")], staying)
    return leftovers + [Garbage(path, OLD_LOCK, 0) for path in locks]


def remove(store: Trees, path: Path, into: Path) -> None:
    """Move something needless into a folder of staging, from where it is deleted."""
    if path.parent == store.locks or path.suffix == ".lock":
        path.unlink(missing_ok=True)
        return
    if path.parent == store.folder:
        # Without its inventory the tree is gone for everybody, even if its removal is interrupted.
        path.with_name(f"{path.name}.json").unlink(missing_ok=True)
        store.used_mark(path.name).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.rename(into)


def _reasons(
    store: Trees, trees: list[Tree], referenced: Callable[[Tree], bool], older_than: float | None
) -> Iterator[tuple[str, str]]:
    """(key, reason) of the trees that nobody needs."""
    staying = []
    for tree in trees:
        if not referenced(tree):
            yield tree.key, "no manifest names it"
        elif older_than is not None and time.time() - store.last_used(tree) > older_than:
            yield tree.key, "was not used for long"
        else:
            staying.append(tree)
    for tree in staying:
        if any(_holds(other, tree) for other in staying):
            yield tree.key, "a wider tree holds all of it"


def _holds(wide: Tree, narrow: Tree) -> bool:
    return (
        wide.key != narrow.key
        and wide.inventory.definition == narrow.inventory.definition
        and covers(wide.inventory.selection, narrow.inventory.selection)
    )


def _serves(download: Path, used: set[str]) -> bool:
    name = download.name.partition(".")[0].removeprefix("git-")
    if len(name) == 64 or download.is_dir():
        return name in used
    # Fetched without a known hash: named by its address.
    return download.suffix != ".part" and hash_file(download) in used


def _size(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
    return path.lstat().st_size
