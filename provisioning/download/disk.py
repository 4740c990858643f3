"""The files of a transfer; every error of the disk becomes one of ours."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from provisioning.base.disk import ANOTHER_STORE, disk_error
from provisioning.base.errors import EnvironmentLacking

BLOCK = 1 << 20


@contextlib.contextmanager
def disk_errors(folder: Path, needed: int | None) -> Iterator[None]:
    """Every error of the disk becomes one of ours; those of the network pass."""
    try:
        yield
    except OSError as error:
        if isinstance(error, (ConnectionError, TimeoutError)):
            raise
        other = EnvironmentLacking(f"{folder}: {error.strerror or error}", fix=ANOTHER_STORE)
        raise disk_error(error, ANOTHER_STORE, folder, needed) or other from error


def digest_of(path: Path) -> hashlib._Hash:
    """SHA-256 of a file, to be continued; in constant memory."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest
