"""The files of a transfer; every error of the disk becomes one of ours."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from provisioning.base.errors import EnvironmentLacking, ToolkitError

BLOCK = 1 << 20


@contextlib.contextmanager
def disk_errors(folder: Path, needed: int | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, (ConnectionError, TimeoutError)):
            raise
        raise _disk_error(error, folder, needed) from error


def _disk_error(error: OSError, folder: Path, needed: int | None) -> ToolkitError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        try:
            free = f"{shutil.disk_usage(folder).free:,} bytes free"
        except OSError:
            free = "free space unknown"
        need = f"{needed:,} bytes more needed" if needed else "more needed"
        why = {errno.EDQUOT: "the disk quota is used up", errno.EFBIG: "files may not grow this large"}.get(
            error.errno, "the disk is full"
        )
        return EnvironmentLacking(
            f"{folder}: {why}: {need}, {free}",
            remedy="free some space, or choose another disk with QNN_CI_STORE=FOLDER, and run the same "
            "command again: what was fetched is kept",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return EnvironmentLacking(
            f"{folder}: cannot be written to ({error.strerror})",
            remedy="choose a folder of your own with QNN_CI_STORE=FOLDER, or correct its permissions",
        )
    return EnvironmentLacking(
        f"{folder}: {error.strerror or error}", remedy="check the folder, or choose another with QNN_CI_STORE"
    )


def write_all(out: FileIO, block: bytes) -> None:
    """Write all of `block`: an unbuffered file may accept only a part of it at a time."""
    view = memoryview(block)
    while view:
        view = view[out.write(view) :]


def digest_of(path: Path, length: int) -> hashlib._Hash:
    """SHA-256 of the first `length` bytes, to be continued; in constant memory."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while length > 0 and (block := stream.read(min(BLOCK, length))):
            digest.update(block)
            length -= len(block)
    return digest


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
