"""Keeping processes apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provisioning.base.progress import SILENT, Progress


@contextmanager
def mutex(path: Path, progress: Progress = SILENT, waiting: str = "") -> Iterator[None]:
    """Hold the mutex at `path`, a file in an existing folder; `waiting` is shown where another holds it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        progress.note(waiting)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
