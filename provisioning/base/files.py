"""Work with files so that nothing is left half done: write them atomically, hash them, keep processes apart.

`replacing` and `replace_text` never leave half a file; `mutex` is held by one process at a time;
`disk_errors` turns a full disk or a read-only folder into an error with its fix."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from provisioning.base.commands import Fix, quote_command
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.settings import cache_folder

if TYPE_CHECKING:
    import hashlib

    from provisioning.base.progress import Progress


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A file or symbolic link below a folder. A link has a `link` text and no hash."""

    path: str
    kind: Literal["file", "link"]
    size: int
    sha256: str
    mode: int
    link: str = ""
    part: str = ""
    """The part of a component that it came from, once it is of a tree."""


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
    return next((parent for parent in around if (parent / ".git").exists()), folder)


def remove_folder(path: Path) -> None:
    """Remove a folder if it is there, however deep: shutil.rmtree recurses, and fails at 1,000 levels."""
    import subprocess

    command = ["rm", "-rf", "--", str(path)]
    process = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if process.returncode:
        raise EnvironmentLacking(
            f"{path} cannot be removed: {process.stderr.strip()[-300:]}", fix=quote_command("rm", "-rf", path)
        )


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


_SPACE = "free some space{at}, or {elsewhere}"
_PERMISSION = "get permission for it, or {elsewhere}"
_REMEDIES = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: "{elsewhere}",
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _SPACE,
    errno.ENAMETOOLONG: "{elsewhere}, with a shorter path",
    errno.ELOOP: "fix the link that leads to itself, or {elsewhere}",
    errno.EIO: "see what `dmesg` says of that disk, or {elsewhere}",
    errno.EMFILE: "allow more open files: ulimit -n 4096",
    errno.ENFILE: "close programs: the whole machine has too many open files",
}
"""Errors that any file operation may meet. All others are our own errors."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OF_MACHINE = frozenset({*FULL, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE})
"""What no wrong path causes: whatever was to be written says nothing about it."""
IN_THE_WAY = (errno.ENOTDIR, errno.EEXIST)
"""Errors that are the machine's too if they concern a folder that the user named."""


ANOTHER_STORE = "choose another store with --store or QNN_CI_STORE"
ANOTHER_CACHE = "type XDG_CACHE_HOME=FOLDER before the command, with a folder that you may write to"
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


def disk_error(
    error: OSError, elsewhere: str, where: Path | None = None, room: int | None = None
) -> EnvironmentLacking | None:
    """Return `error` as one of ours; None if it is no error of the machine.

    `elsewhere` says how to choose another place: "choose another path". `where` is the folder or file, if the
    error does not name it; `room` is the number of bytes that a full disk lacks room for."""
    fix = _REMEDIES.get(error.errno or 0)
    if fix is None:
        return None
    place = where or error.filename2 or error.filename
    if place and error.errno in UNWRITABLE and _holds_cache(Path(os.fsdecode(place))):
        elsewhere = ANOTHER_CACHE
    message = f"{place or 'output'}: {error.strerror}"
    if error.errno in FULL and where is not None:
        message += f" ({f'{room:,} bytes' if room else 'more'} needed{_free(where)})"
    at = f" at {_mount_point(Path(str(place)))}" if place else ""
    text = fix.format(elsewhere="{}", at=at)
    return EnvironmentLacking(message, fix=Fix(text, elsewhere) if "{elsewhere}" in fix else text)


def _holds_cache(path: Path) -> bool:
    """Whether it is the user's cache folder, one above it or something in it."""
    cache = cache_folder().absolute()
    return cache.is_relative_to(path) or path.is_relative_to(cache)


def _mount_point(path: Path) -> Path:
    """The folder of its file system, which outlives the path."""
    path = path.absolute()
    # pathlib raises an error for a folder below one that may not be read.
    return next((folder for folder in (path, *path.parents) if os.path.ismount(folder)), path)


def _free(folder: Path) -> str:
    with suppress(OSError):
        return f", {shutil.disk_usage(folder).free:,} free"
    return ""


@contextmanager
def disk_errors(elsewhere: str, where: Path | None = None, room: int | None = None) -> Iterator[None]:
    """Raise EnvironmentLacking for errors of the machine while folders of the user's are written to; while
    `where` is, for any error."""
    try:
        yield
    except OSError as error:
        trouble = disk_error(error, elsewhere, where, room)
        if trouble is None and (where is not None or error.errno in IN_THE_WAY):
            message = f"{where or error.filename}: {error.strerror or error}"
            trouble = EnvironmentLacking(message, fix=elsewhere)
        if trouble is None:
            raise
        raise trouble from error
