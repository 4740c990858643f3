"""Commands for which a folder is a disk of a few kilobytes, mounted for them alone.

Anybody may mount one where user namespaces are allowed. Tests marked `small_disk` are left out elsewhere, and
the run's summary counts them; with QNN_CI_TEST_PROGRAMS=required they run all the same, and fail.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.needs import SWITCH

MARKER = "small_disk"
OWN_MOUNTS = ("unshare", "--map-root-user", "--mount")
_MOUNT = 'mount -t tmpfs -o size="$1"k tmpfs "$2"; shift 2; exec "$@"'


def with_small(folder: Path, kilobytes: int, *command: str) -> list[str]:
    """The command, for which `folder` is an empty disk of this size."""
    return [*OWN_MOUNTS, "sh", "-ec", _MOUNT, "sh", str(kilobytes), str(folder), *command]


@cache
def lacking() -> str:
    """Why none can be mounted here; empty if one can."""
    tried = subprocess.run(with_small(Path("/mnt"), 8, "true"), capture_output=True, text=True, check=False)
    return (
        f"nobody may mount a disk in a user namespace here: {tried.stderr.strip()}"
        if tried.returncode
        else ""
    )


def reasons(item: pytest.Item) -> list[str]:
    """Why it does not run: no disk can be mounted here, and none is required."""
    if item.get_closest_marker(MARKER) is None or os.environ.get(SWITCH) == "required" or not lacking():
        return []
    return [f"marked {MARKER} did not run: {lacking()}"]
