"""Mutexes, shared locks and leases: which process may change a store, and which reads a tree.

- a mutex for each tree keeps two processes from making the same one;
- a shared lock on the store keeps `gc` out while trees are made from other trees and from downloads;
- a lease, a shared flock on a tree's inventory, keeps `gc` off a tree that a process reads;
- each process works in a folder of its own below staging/, locked as long as it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from provisioning.base.files import mutex
from provisioning.base.progress import Progress


@contextlib.contextmanager
def shared(locks: Path) -> Iterator[None]:
    """Hold off `gc` while trees are made from other trees and from downloads."""
    with (locks / "store.lock").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def exclusive(locks: Path, progress: Progress) -> Iterator[None]:
    """Wait until no process changes the store, and hold others off."""
    with (locks / "store.lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note("waiting for the processes that use the store")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def work_in_progress(staging: Path, locks: Path) -> Iterator[Path]:
    """A folder of our own in staging/, which others can tell from one whose process is gone."""
    from filelock import FileLock

    with mutex(locks / "staging.lock"):
        for path in abandoned(staging):
            shutil.rmtree(path, ignore_errors=True)
        own = staging / f"{os.getpid()}-{secrets.token_hex(4)}"
        own.mkdir()
        alive = FileLock(own / "alive.lock")
        alive.acquire()
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        alive.release()


def abandoned(staging: Path) -> list[Path]:
    """Folders in staging/ whose process is gone."""
    from filelock import FileLock, Timeout

    folders = []
    for path in sorted(staging.glob("*")):
        try:
            with FileLock(path / "alive.lock", timeout=0):
                folders.append(path)
        except Timeout:
            continue
        except OSError:
            folders.append(path)
    return folders


OF_STORE = frozenset({"store.lock", "staging.lock", "licences.lock"})
LOCK_KEPT = 86_400.0
"""Seconds for which a lock stays after its last use: who waits for it must not lose it."""


def idle(locks: Iterable[Path], trees: Container[str]) -> list[Path]:
    """Locks and marks of no tree of these names that nobody holds, and nobody used for a day."""
    from filelock import FileLock, Timeout

    files = []
    for path in sorted(locks):
        if path.name in OF_STORE or path.stem in trees or time.time() - path.stat().st_mtime < LOCK_KEPT:
            continue
        modified = path.stat().st_mtime_ns
        try:
            with FileLock(path, timeout=0):
                files.append(path)
        except Timeout:
            continue
        os.utime(path, ns=(modified, modified))
    return files


_held: dict[Path, int] = {}


def lease(inventory: Path) -> bool:
    """Keep `gc` off the tree of this inventory until this process ends; False where `gc` has removed it.

    The kernel releases the lock of a killed process, and a file that may only be read can be locked too.
    """
    if inventory in _held and _is_still(inventory, _held[inventory]):
        return True
    try:
        descriptor = os.open(inventory, os.O_RDONLY)
    except FileNotFoundError:
        return False
    # The store works on a file system without locks too.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if not _is_still(inventory, descriptor):
        os.close(descriptor)
        return False
    # After `exec`, the new program (a shell, for example) reads the tree too.
    os.set_inheritable(descriptor, True)
    _release(inventory)
    _held[inventory] = descriptor
    return True


class Removal:
    """Trees that one `gc` may remove: while it runs, nobody can take a lease of them."""

    def __init__(self) -> None:
        self.in_use: list[str] = []
        self._claimed: list[int] = []

    def claim(self, inventory: Path) -> bool:
        """False, and named in `in_use`, where another process has a lease of the tree."""
        _release(inventory)
        try:
            # Over NFS an exclusive lock needs a file that is open for writing.
            descriptor = os.open(inventory, os.O_RDWR if os.access(inventory, os.W_OK) else os.O_RDONLY)
        except FileNotFoundError:
            return True
        self._claimed.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.in_use.append(inventory.stem)
            return False
        except OSError:
            return True
        return True

    def __enter__(self) -> Removal:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._claimed:
            os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _release(inventory: Path) -> None:
    if inventory in _held:
        os.close(_held.pop(inventory))
