"""What a process has started, and whether that is still there."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

PATIENCE = 120.0


def descendants(pid: int) -> list[int]:
    """Its children and theirs, the nearest first."""
    found, parents = [], [pid]
    while parents:
        listed = subprocess.run(
            ["pgrep", "-P", ",".join(map(str, parents))], capture_output=True, text=True, check=False
        )
        parents = [int(line) for line in listed.stdout.split()]
        found += parents
    return found


def alive(pids: Iterable[int]) -> list[int]:
    """Those that have not ended; one that only waits to be collected has."""
    left = []
    for pid in pids:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                left.append(pid)
    return left


def wait_for(holds: Callable[[], bool]) -> None:
    """Until it does, or until patience ends: what is then asserted will say what was missing."""
    deadline = time.monotonic() + PATIENCE
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.2)
