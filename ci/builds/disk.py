"""What the operating system says when a disk is full or may not be written to."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from provisioning.base.errors import EnvironmentLacking

_FORESEEN = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST}


@contextmanager
def disk_faults(flags: str) -> Iterator[None]:
    """Say it in the words of this project; `flags` name other folders. What is unforeseen stays as it is."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FORESEEN:
            raise
        where = f"{error.filename}: " if error.filename else ""
        remedy = f"name folders that can be written to with {flags}"
        raise EnvironmentLacking(f"{where}{error.strerror}", remedy=remedy) from error
