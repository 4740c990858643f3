"""Errors of files and disks as errors with a fix, by one table."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking

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


def disk_error(
    error: OSError, elsewhere: str, where: Path | None = None, needed: int | None = None
) -> EnvironmentLacking | None:
    """`error` as one of ours; None where it is no error of the machine.

    `elsewhere` says how to choose another place: "choose another path". `where` is the folder or file, if
    the error does not name it; `needed` the bytes that a full disk lacks room for.
    """
    fix = _REMEDIES.get(error.errno or 0)
    if fix is None:
        return None
    place = where or error.filename2 or error.filename
    message = f"{place or 'output'}: {error.strerror}"
    if error.errno in FULL and where is not None:
        message += f" ({f'{needed:,} bytes' if needed else 'more'} needed{_free(where)})"
    at = f" at {_mount_point(Path(str(place)))}" if place else ""
    text = fix.format(elsewhere="{}", at=at)
    return EnvironmentLacking(message, fix=Fix(text, elsewhere) if "{elsewhere}" in fix else text)


def _mount_point(path: Path) -> Path:
    """The folder of its file system, which outlives the path."""
    path = path.absolute()
    # pathlib raises an error for a folder below one that may not be read.
    return next((folder for folder in (path, *path.parents) if os.path.ismount(folder)), path)


def _free(folder: Path) -> str:
    # Late: it imports four compressors.
    import shutil

    with suppress(OSError):
        return f", {shutil.disk_usage(folder).free:,} free"
    return ""


@contextmanager
def disk_errors(elsewhere: str) -> Iterator[None]:
    """Raise EnvironmentLacking for errors of the machine while folders of the user's are written to."""
    try:
        yield
    except OSError as error:
        known = disk_error(error, elsewhere)
        if known is None and error.errno in IN_THE_WAY:
            known = EnvironmentLacking(f"{error.filename}: {error.strerror}", fix=elsewhere)
        if known is None:
            raise
        raise known from error
