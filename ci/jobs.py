"""How work is done: its limits, what pieces of it cost, what the machine has for them, and an estimate of the
time left."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.command_line import TIMEOUT

RUN_TIMEOUT = 300.0
"""Seconds after which a run on the emulator ends, unless --run-timeout says otherwise."""


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """How work is done, and with what limits. Times are seconds, memory is bytes."""

    timeout: float = TIMEOUT
    jobs: int | None = None
    cache: bool = True
    why: bool = False
    keep: bool = False
    """Whether to leave what was made with the logs."""
    keep_going: bool = False
    """Whether operators that crash the compiler stay on the CPU if the rest then lowers."""
    run_timeout: float = RUN_TIMEOUT
    until: float = math.inf
    """A time of time.monotonic() at which whatever is at work ends."""


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of work. `seconds` and `memory` (bytes) are its expected cost."""

    name: str
    seconds: float = 1.0
    memory: int = 0


def longest_first(jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (-job.seconds, job.name))


AT_ONCE = 0.5
"""A job that took fewer seconds was looked up: it says nothing about those that work."""


class Estimate:
    """Estimates the time left from expected lengths and from how finished jobs compared with theirs."""

    def __init__(self, jobs: Iterable[Job], slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting = {job.name: job.seconds for job in jobs}
        self._running: dict[str, tuple[float, float]] = {}
        self._slots = max(1, slots)
        # Starts at 1 with the weight of ten expected seconds, so that the first short jobs do not distort it.
        self._expected = self._taken = 10.0
        self._known = False

    def started(self, job: Job) -> None:
        self._running[job.name] = (self._waiting.pop(job.name, job.seconds), self._clock())

    def ended(self, job: Job, seconds: float) -> None:
        expected, _ = self._running.pop(job.name, (job.seconds, 0.0))
        if seconds < AT_ONCE:
            return
        self._known = True
        self._expected += expected
        self._taken += seconds

    @property
    def pace(self) -> float:
        """Above 1: slower than expected."""
        return self._taken / self._expected

    def seconds_left(self) -> float | None:
        """None before a job has shown how long such work takes, and while one takes longer than expected."""
        now = self._clock()
        rest = [length * self.pace - (now - began) for length, began in self._running.values()]
        if not self._known or any(seconds <= 0 for seconds in rest):
            return None
        waiting = [length * self.pace for length in self._waiting.values()]
        return max([(sum(rest) + sum(waiting)) / self._slots, *rest, *waiting])


def default_slots() -> int:
    """The cores this process may use, by affinity and by the quota of its control group."""
    cores = len(os.sched_getaffinity(0))
    quota, period = "", ""
    with contextlib.suppress(OSError):
        quota, _, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").partition(" ")
    if quota.isdecimal() and period.strip().isdecimal() and int(period):
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def core_shares(slots: int, threads: int) -> Iterator[set[int]]:
    """The cores of each slot: its own cores if the slots fill the machine, else all.

    QNN's emulator and compiler wait by spinning. Spinning on a core where another worker computes costs that
    worker a fifth of its time."""
    cores = sorted(os.sched_getaffinity(0))
    if slots * threads != len(cores):
        return itertools.repeat(set(cores))
    return (set(cores[first : first + threads]) for first in range(0, len(cores), threads))


def memory_budget() -> int | None:
    """The bytes that jobs may use together: most of the memory that is free now; None if unknown."""
    free = available_memory()
    return None if free is None else int(free * 0.8)


def available_memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """The free bytes of this machine and container; None if neither is known."""
    free = []
    if meminfo.is_file():
        available = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="utf-8"), re.MULTILINE)
        if available:
            free.append(int(available.group(1)) << 10)
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            most, now = ((cgroup / name).read_text(encoding="utf-8").strip() for name in (limit, used))
        except OSError:
            continue
        if most.isdecimal() and now.isdecimal():
            free.append(max(1, int(most) - int(now) + _reclaimable(cgroup / limit)))
    return min(free, default=None)


def _reclaimable(limit: Path) -> int:
    """Memory that a container uses only to cache files. After a checkout this is most of it."""
    try:
        text = limit.with_name("memory.stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    inactive = re.search(r"^(?:total_)?inactive_file (\d+)$", text, re.MULTILINE)
    return int(inactive.group(1)) if inactive else 0
