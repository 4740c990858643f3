"""Fetches in processes of their own, started fast enough to be killed by the dozen."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from provisioning.base.errors import ToolkitError
from provisioning.download import Patience, fetch, transfer


def start(url: str, into: Path, sha256: str | None, size: int | None = None) -> ForkServerProcess:
    """A process that fetches; its exit code is 0, or that of the error."""
    context: ForkServerContext = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.fetching", "requests", "filelock", "pytest"])
    process = context.Process(target=_fetch, args=(url, into, sha256, size), daemon=True)
    process.start()
    return process


def _fetch(url: str, into: Path, sha256: str | None, size: int | None) -> None:
    transfer.CHECKPOINT = 1 << 18  # so that a small file has several
    try:
        fetch(url, into, sha256=sha256, size=size, patience=Patience(attempts=3, first_delay=0.01))
    except ToolkitError as error:
        sys.exit(error.exit_code)
