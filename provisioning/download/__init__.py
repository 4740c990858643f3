"""Fetch one file over HTTP: resumed, retried, verified while it streams, and once for all processes.

A transfer writes `<into>.part`, and renames it to `into` when size and hash are right. Whatever ends it (an
error, a kill, a full disk), the next call continues from there, or starts over where no hash says whether the
bytes are the right ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from provisioning.base.files import ANOTHER_STORE, disk_errors, mutex
from provisioning.base.progress import SILENT, Progress
from provisioning.download.server import (
    BUNDLE_VARIABLES,
    MIRROR_VARIABLE,
    PATIENCE,
    Patience,
    file_name,
    mirrored,
    redact,
    redact_text,
)
from provisioning.download.transfer import Fetched, Transfer

__all__ = [
    "BUNDLE_VARIABLES",
    "MIRROR_VARIABLE",
    "Fetched",
    "Patience",
    "alone",
    "fetch",
    "file_name",
    "mirrored",
    "redact",
    "redact_text",
]


def fetch(
    url: str,
    into: Path,
    *,
    sha256: str | None,
    size: int | None,
    progress: Progress = SILENT,
    name: str | None = None,
    patience: Patience = PATIENCE,
) -> Fetched:
    """Put the file at `url`, which may be a file:// one, at `into`, whole and verified.

    A file that is already there is used again if its hash is right. Without `sha256` the hash found is
    returned for the caller to record. Raises UpstreamError or IntegrityError for errors of the network and
    EnvironmentLacking for errors of the disk.
    """
    transfer = Transfer(into, sha256, size, progress, name or file_name(url), patience)
    with alone(into, progress):
        return transfer.reuse() or transfer.run(url)


@contextlib.contextmanager
def alone(into: Path, progress: Progress = SILENT) -> Iterator[None]:
    """Make `into`'s folder and hold `into`'s mutex; other processes wait here, then find it finished."""
    with disk_errors(ANOTHER_STORE, into.parent):
        into.parent.mkdir(parents=True, exist_ok=True)
        holding = ExitStack()
        waiting = f"{into.name}: waiting for another process that fetches it"
        holding.enter_context(mutex(into.with_name(into.name + ".lock"), progress, waiting))
    with holding:
        yield
