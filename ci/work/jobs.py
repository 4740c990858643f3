"""Pieces of work: their limits, their costs, the cores and memory that the machine has for them, and the
progress that a user sees."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, TextIO, TypeVar

from provisioning.base.flags import TIMEOUT
from provisioning.base.progress import SILENT_FOR, Bar, ticking

__all__ = ["Job", "Line", "WorkOptions", "available_memory", "default_slots", "failed_line", "longest_first"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """How work is done, and with what limits. Times are seconds."""

    timeout: float = TIMEOUT
    jobs: int | None = None
    cache: bool = True
    why: bool = False
    keep: bool = False
    """Whether to keep, beside the logs, the files that the work wrote."""
    until: float = math.inf
    """The value of time.monotonic() at which all work ends."""


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of work. `seconds` and `memory` (bytes) are its expected cost."""

    name: str
    seconds: float = 1.0
    memory: int = 0


def longest_first(jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (-job.seconds, job.name))


CONTROL_GROUP = Path("/sys/fs/cgroup")


def default_slots(cgroup: Path = CONTROL_GROUP) -> int:
    """The number of cores that this process may use, by affinity and by the quota of its control group."""
    cores = len(os.sched_getaffinity(0))
    quota, period = "", ""
    with contextlib.suppress(OSError):
        quota, _, period = (cgroup / "cpu.max").read_text(encoding="ascii").partition(" ")
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


def idle_seconds(stat: Path = Path("/proc/stat"), cgroup: Path = CONTROL_GROUP) -> float:
    """The seconds since the machine started in which the processors that this process may use were idle and
    waited for no disk, summed over them; 0 if unknown, or if a quota limits this process.

    A container sees all processors of the machine here; those that it may not use do not count."""
    cores = os.sched_getaffinity(0)
    if default_slots(cgroup) < len(cores):
        # A quota stops work while processors are free.
        return 0.0
    ticks = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in stat.read_text(encoding="ascii").splitlines():
            name, *times = line.split()
            number = name.removeprefix("cpu")
            if name != number and number.isdecimal() and int(number) in cores:
                ticks += int(times[3])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_budget() -> int | None:
    """The bytes that jobs may use together: most of the memory that is free now; None if unknown."""
    free = available_memory()
    return None if free is None else int(free * 0.8)


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CONTROL_GROUP) -> int | None:
    """The free bytes of this machine and container; None if neither is known."""
    free = []
    if meminfo.is_file():
        available = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="utf-8"), re.MULTILINE)
        if available:
            free.append(int(available.group(1)) << 10)
    with contextlib.suppress(OSError):
        files = (cgroup / f"memory.{name}" for name in ("max", "current", "stat"))
        most, now, stat = (file.read_text(encoding="utf-8").strip() for file in files)
        if most.isdecimal():
            # What only caches files can be had. After a checkout this is most of it.
            cached = re.search(r"^inactive_file (\d+)$", stat, re.MULTILINE)
            free.append(max(1, int(most) - int(now) + int(cached[1] if cached else 0)))
    return min(free, default=None)


TICK = 1.0
"""The seconds between two looks at what jobs are doing."""


@dataclass(frozen=True, slots=True)
class Line:
    """The line printed for a job that ended."""

    word: str
    note: str = ""
    seconds: float | None = None
    """The seconds without waiting; None means as long as the slot was taken."""


def failed_line(note: str) -> Line:
    return Line("FAILED!", note)


class JobProgress(Generic[R]):
    """Shows jobs as the scheduler starts and ends them: a line for each that ended, and below them a bar, or
    a line after a silence. It is a context manager, so the bar is always removed."""

    def __init__(
        self,
        title: str,
        jobs: Sequence[Job],
        line: Callable[[str, R], Line],
        out: TextIO,
        bar: Bar | None,
        doing: Callable[[str], str] = lambda name: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`title` names the jobs on the bar. For the name of a job, `line` gives the line to print when it
        has ended, and `doing` what it is doing."""
        self._title, self._line, self._doing, self._clock = title, line, doing, clock
        self._starts: dict[str, float] = {}
        self._spoke, self._lock, self._open = clock(), threading.RLock(), ExitStack()
        self._count, self._total = 0, len(jobs)
        self._out, self._bar = out, bar

    def __enter__(self) -> JobProgress[R]:
        self._open.enter_context(ticking(TICK, self.tick))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        if self._bar:
            self._bar.remove()

    def begin(self, job: Job) -> None:
        with self._lock:
            self._starts[job.name] = self._clock()
            self._draw()

    def tick(self) -> None:
        with self._lock:
            self._draw()
            now = self._clock()
            if not self._bar and self._starts and now - self._spoke >= SILENT_FOR:
                longest = now - next(iter(self._starts.values()))
                self._print(f"{self._place()} {'running':<9}{longest:7.1f} s  {self._describe_work()}")

    def end(self, job: Job, result: R, elapsed: float) -> None:
        with self._lock:
            self._starts.pop(job.name, None)
            self._count += 1
            line = self._line(job.name, result)
            time_shown = elapsed if line.seconds is None else line.seconds
            note = f": {line.note.splitlines()[0]}" if line.note else ""
            self._print(f"{self._place()} {line.word:<9}{time_shown:7.1f} s  {job.name}{note}")
            self._draw()

    def _place(self) -> str:
        return f"[{self._count:>{len(str(self._total))}}/{self._total}]"

    def _describe_work(self) -> str:
        """Name the job that began first, what it is doing, and how many others are running."""
        name, more = next(iter(self._starts), ""), len(self._starts) - 1
        doing = self._doing(name) if name else ""
        return name + (f": {doing}" if doing else "") + (f", and {more} more" if more > 0 else "")

    def _print(self, text: str) -> None:
        self._spoke = self._clock()
        if self._bar:
            self._bar.print(text)
        else:
            self._out.write(f"{text}\n")
            self._out.flush()

    def _draw(self) -> None:
        if self._bar:
            note = f"{self._count}/{self._total}  {self._describe_work()}"
            self._bar.draw(self._title, self._count, self._total, note)
