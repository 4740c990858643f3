"""A disk that is full or may not be written to, as an error with a remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from provisioning.base.errors import EnvironmentLacking

_FORESEEN = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST}


@contextmanager
def disk_errors(flags: str) -> Iterator[None]:
    """Turn what the operating system says of a disk into EnvironmentLacking; other errors pass unchanged.

    `flags` name the options that choose other folders.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FORESEEN:
            raise
        where = f"{error.filename}: " if error.filename else ""
        raise EnvironmentLacking(
            f"{where}{error.strerror}", remedy=f"name folders that can be written to with {flags}"
        ) from error
