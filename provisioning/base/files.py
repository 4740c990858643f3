"""Writing files atomically, hashing them, and keeping processes apart."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from provisioning.base.errors import UsageError

if TYPE_CHECKING:
    import hashlib

    from provisioning.base.progress import Progress


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file atomically: a reader, a kill or a full disk leaves either the old file or the new.

    Yields the temporary file to write, which lies beside `path`. A link stays a link, and an existing file
    keeps its mode. Missing folders are created.
    """
    real = Path(os.path.realpath(path))
    real.parent.mkdir(parents=True, exist_ok=True)
    part = real.with_name(f".{real.name[:100]}.{os.getpid()}-{threading.get_native_id()}")
    try:
        yield part
        with suppress(FileNotFoundError):
            part.chmod(real.stat().st_mode & 0o7777)
        part.replace(real)
    finally:
        part.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def replace_bytes(path: Path, content: bytes | memoryview) -> None:
    with replacing(path) as part:
        part.write_bytes(content)


def write_all(descriptor: int, block: bytes) -> None:
    """Write all of `block`: the system may accept only a part of it at a time."""
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def repository_of(suite: Path) -> Path:
    """The nearest folder around the suite with a `.git`, or the suite's own."""
    folder = suite.absolute().parent
    around = (folder, *folder.parents)
    # Each command of git writes to its folder: `access` asks for no times, which would be inputs of the work.
    return next((parent for parent in around if os.access(parent / ".git", os.F_OK)), folder)


def empty_folder(path: Path) -> Path:
    """An empty folder of this name."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def open_regular(path: Path) -> BinaryIO:
    """Open for reading. Raises OSError for what is no regular file: a named pipe would wait for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def write_named(path: Path, text: str, *, append: bool = False, fix: str = "") -> None:
    """Write a file that the user, or GitHub, has named. Bytes in paths that are no text stay as they are."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if append else "wb") as stream:
            stream.write(os.fsencode(text))
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", fix=fix or "name a file that you may write"
        ) from error


def digest_of(path: Path) -> hashlib._Hash:
    """The SHA-256 of a file's bytes, to be continued; in constant memory."""
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest


def hash_file(path: Path) -> str:
    return digest_of(path).hexdigest()


@contextmanager
def mutex(path: Path, progress: Progress | None = None, waiting: str = "") -> Iterator[None]:
    """Hold the mutex at `path`, a file in an existing folder; `waiting` is shown where another holds it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        if progress:
            progress.note(waiting)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
