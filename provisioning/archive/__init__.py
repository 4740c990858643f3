"""Unpack zip archives (also .whl, .aar, .jar), in parallel, without trusting them.

`extract` judges the whole archive before it writes anything, checks size and checksum of every member
while it writes, and hashes what it wrote. Memory stays flat whatever the archive holds.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from provisioning.archive.planned_files import DEFAULT, Limits, plan_files
from provisioning.archive.reader import Zip
from provisioning.archive.writer import Entry, unpack
from provisioning.base.disk import ANOTHER_STORE, disk_error
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.progress import SILENT, Progress

__all__ = ["DEFAULT", "Entry", "Limits", "extract"]


def extract(
    archive: Path,
    into: Path,
    place: Callable[[str], str | None],
    *,
    limits: Limits = DEFAULT,
    workers: int | None = None,
    progress: Progress = SILENT,
    name: str = "",
) -> list[Entry]:
    """Unpack the members that `place` gives a destination below `into`; returns what was written.

    `place` is called with each member's name, directories with a slash at their end; None leaves a member
    out. `name` is what progress calls the archive: downloads are named by their hash.
    Files become 0644, or 0755 where any exec bit is set; directories 0755; symbolic links are made last.
    `into` is the caller's private staging directory, created if it is not there. After an error the caller
    removes it, whatever it holds. Raises ArchiveError for a bad archive, EnvironmentLacking where writing
    fails.
    """
    with Zip(archive, most_members=limits.members) as zip_file:
        plan = plan_files(zip_file, place, limits)
        into.mkdir(parents=True, exist_ok=True)
        space = os.statvfs(into)
        # Files take whole blocks.
        needed = sum(-(-file.member.size // space.f_frsize) * space.f_frsize for file in plan.files)
        if needed > space.f_bavail * space.f_frsize:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise disk_error(full, ANOTHER_STORE, into, needed) or full
        if plan.case_clash is not None and not tells_case_apart(into):
            raise EnvironmentLacking(
                f"{into}: expected a file system that keeps {plan.case_clash[0]!r} and {plan.case_clash[1]!r}"
                " apart, found one that takes them for the same name",
                fix=f"{ANOTHER_STORE}, on a case-sensitive file system",
            )
        return unpack(zip_file, plan, into, workers, progress, name or archive.name)


def tells_case_apart(directory: Path) -> bool:
    probe = directory / f".case-Probe-{os.getpid()}"
    probe.touch()
    try:
        return not probe.with_name(probe.name.lower()).exists()
    finally:
        probe.unlink()
