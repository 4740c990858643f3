"""What is in a store that nobody needs, and why."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.files import hash_file
from provisioning.base.progress import Progress
from provisioning.store.inventory import walk
from provisioning.store.trees import Tree, Trees, claim

OUTPUT_LOCKS = "output-*"
"""A pattern in locks/ of the mutexes of folders that somebody compiles into."""

LOCK_KEPT = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Garbage:
    """Something that `gc` removes, and why."""

    path: Path
    reason: str
    size: int


def garbage_of(
    store: Trees,
    referenced: Callable[[Tree], bool],
    older_than: float | None,
    all_downloads: bool,
    claims: contextlib.ExitStack,
    progress: Progress,
) -> list[Garbage]:
    """Return what nobody needs. A tree that another process found, and may be reading, is not garbage. What
    `claims` holds, no other process takes meanwhile."""
    trees = store.trees()
    reasons = _reasons(store, trees, referenced, older_than)
    for tree in trees:
        if tree.root in reasons and not claim(tree.inventory_path, claims):
            progress.note(f"{tree.root.name} stays, as another process uses it")
            del reasons[tree.root]
    garbage = [
        Garbage(tree.root, reasons[tree.root], tree.inventory.size) for tree in trees if tree.root in reasons
    ]
    names = {tree.root.name for tree in trees}
    for path in sorted(store.folder.glob("*")):
        if path.name.removesuffix(".json") not in names:
            garbage.append(Garbage(path, "was never finished", _size(path)))
    digests = {
        origin.sha256 for tree in trees if tree.root not in reasons for origin in tree.inventory.origins
    }
    for path in sorted(store.downloads.glob("*")):
        if all_downloads or not _serves(path, digests):
            reason = "is kept for more targets and repair only" if all_downloads else "no tree came from it"
            garbage.append(Garbage(path, reason, _size(path)))
    return garbage + [Garbage(path, "is an old lock", 0) for path in _old_locks(store)]


def _old_locks(store: Trees) -> Iterator[Path]:
    """Mutexes of output folders that nobody holds, and nobody took for a day."""
    for path in sorted(store.locks.glob(OUTPUT_LOCKS)):
        if time.time() - path.stat().st_mtime > LOCK_KEPT and not _is_held(path):
            yield path


def _reasons(
    store: Trees, trees: Sequence[Tree], referenced: Callable[[Tree], bool], older_than: float | None
) -> dict[Path, str]:
    """Say why each tree that nobody needs is garbage, by the trees' roots."""
    reasons: dict[Path, str] = {}
    for tree in trees:
        if not referenced(tree):
            reasons[tree.root] = "no manifest names it"
        elif older_than is not None and time.time() - store.last_used(tree) > older_than:
            reasons[tree.root] = "was not used for long"
    rest = [tree for tree in trees if tree.root not in reasons]
    for tree in rest:
        if any(_holds(wide, tree) for wide in rest):
            reasons[tree.root] = "a tree of more targets holds all of it"
    return reasons


def _is_held(mutex: Path) -> bool:
    descriptor = os.open(mutex, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _holds(wide: Tree, narrow: Tree) -> bool:
    return wide.inventory.definition == narrow.inventory.definition and wide.targets > narrow.targets


def _serves(download: Path, digests: set[str]) -> bool:
    """Whether a tree came from it; nor is one garbage that another process has just renamed."""
    name = download.name.partition(".")[0].removeprefix("git-")
    if len(name) == 64 or download.is_dir():
        return name in digests
    # Fetched without a known hash: named by its address.
    try:
        return download.suffix != ".part" and hash_file(download) in digests
    except FileNotFoundError:
        return True


def _size(path: Path) -> int:
    """Return the size; 0 if another process removes it meanwhile, since a dry run keeps nobody from changing
    the store."""
    try:
        if path.is_dir() and not path.is_symlink():
            return sum((path / file).lstat().st_size for file, is_folder in walk(path) if not is_folder)
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
