"""Who uses a tree of the store: a shared flock on its inventory, held until the process ends.

The kernel releases the lock of a killed process, and a file that may only be read can be locked too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType

_held: dict[Path, int] = {}


def take(inventory: Path) -> bool:
    """Keep `gc` off the tree of this inventory; False where `gc` has removed it meanwhile."""
    if inventory in _held and _is_still(inventory, _held[inventory]):
        return True
    try:
        descriptor = os.open(inventory, os.O_RDONLY)
    except FileNotFoundError:
        return False
    # A file system without locks still serves.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if not _is_still(inventory, descriptor):
        os.close(descriptor)
        return False
    # What this process becomes by `exec`, a shell for example, reads the tree too.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
