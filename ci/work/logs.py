"""The logs of processes that do work: opened, and read from their end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from ci.work.trouble import trouble_of_error
from provisioning.base.errors import EnvironmentLacking, UsageError

__all__ = ["tail"]


def opened_log(log: Path) -> BinaryIO:
    """Open the log for writing. Raises EnvironmentLacking or UsageError if it cannot be written."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("wb")
    except OSError as error:
        if trouble := trouble_of_error(error):
            raise EnvironmentLacking(trouble.message, fix=trouble.fix) from error
        raise UsageError(
            f"logs cannot be written to {log.parent}: {error.strerror or error}",
            fix="name a folder that you may write, by --reports or QNN_CI_REPORTS",
        ) from error


def last_words(log: Path) -> str:
    """The last line of a process's log that the process itself wrote; faulthandler's text after it is left
    out."""
    lines = tail(log, 20_000).partition("Fatal Python error")[0].strip().splitlines()
    return lines[-1] if lines else ""


def tail(log: Path, characters: int = 200_000) -> str:
    """The end of a log as text; empty if there is no log."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - characters))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
