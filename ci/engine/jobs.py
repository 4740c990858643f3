"""Run many jobs on a few slots: longest first, within a memory budget, with an estimate of the time left."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of work. `seconds` and `memory` (bytes) are its expected cost."""

    name: str
    seconds: float = 1.0
    memory: int = 0


class Slot(Protocol[R_co]):
    """Runs one job at a time, in its own thread, and keeps between jobs what is expensive to set up."""

    def run(self, job: Job) -> R_co: ...

    def close(self) -> None:
        """Release everything. Called from another thread, it also ends the running job."""


class Observer(Protocol[R_contra]):
    """Is called for every job that starts or ends, by one thread at a time."""

    def started(self, job: Job) -> None: ...

    def ended(self, job: Job, result: R_contra, seconds: float) -> None: ...


class FunctionSlot(Generic[R]):
    def __init__(self, function: Callable[[Job], R]) -> None:
        self._function = function

    def run(self, job: Job) -> R:
        return self._function(job)

    def close(self) -> None:
        """A call cannot be ended from outside, so this does nothing."""


@dataclass
class _Run(Generic[R]):
    waiting: list[Job]
    memory: int | None
    observer: Observer[R] | None
    stop_after: Callable[[Job, R], bool]
    running: dict[str, Job] = field(default_factory=dict)
    results: dict[str, R] = field(default_factory=dict)
    failure: BaseException | None = None
    stopping: bool = False
    serving: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self) -> Job | None:
        """The next job that fits, after waiting for memory; None when no job is left."""
        with self.changed:
            while not self.stopping and self.waiting:
                job = self._fitting()
                if job is not None:
                    self.waiting.remove(job)
                    self.running[job.name] = job
                    if self.observer:
                        self.observer.started(job)
                    return job
                self.changed.wait()
            return None

    def end(self, job: Job, result: R, seconds: float) -> None:
        with self.changed:
            del self.running[job.name]
            if not self.stopping:
                self.results[job.name] = result
                if self.observer:
                    self.observer.ended(job, result, seconds)
                self.stopping = self.stop_after(job, result)
            self.changed.notify_all()

    def leave(self, error: BaseException | None) -> None:
        with self.changed:
            self.serving -= 1
            if error and not self.stopping:
                self.failure = error
            self.stopping = self.stopping or error is not None
            self.changed.notify_all()

    def _fitting(self) -> Job | None:
        if self.memory is None or not self.running:
            # With nothing else running, even the largest job may start: waiting would not free more memory.
            return self.waiting[0]
        free = self.memory - sum(job.memory for job in self.running.values())
        return next((job for job in self.waiting if job.memory <= free), None)


def run_jobs(
    jobs: Sequence[Job],
    slot: Callable[[], Slot[R]],
    *,
    slots: int,
    memory: int | None = None,
    observer: Observer[R] | None = None,
    stop_after: Callable[[Job, R], bool] = lambda job, result: False,
) -> dict[str, R]:
    """Run every job and return the results by name, in the order in which they ended.

    At most `slots` jobs run at once. The sum of their `memory` stays within the budget, unless a single job
    is larger. After a result for which `stop_after` is true, the running jobs are ended and no more start. An
    exception in a slot ends everything and is raised here."""
    if len({job.name for job in jobs}) != len(jobs):
        raise ValueError("two jobs have the same name")
    state = _Run(longest_first(jobs), memory, observer, stop_after)
    opened: list[Slot[R]] = []

    def serve() -> None:
        failure = None
        try:
            # Create a slot only when there is a job for it.
            if (job := state.take()) is None:
                return
            own = slot()
            with state.changed:
                # Whoever ends the run closes all slots that exist by then; a slot created later does nothing.
                if state.stopping:
                    return
                opened.append(own)
            while job is not None:
                began = time.monotonic()
                result = own.run(job)
                state.end(job, result, time.monotonic() - began)
                job = state.take()
        except BaseException as error:
            # Raised again below, in the caller's thread.
            failure = error
        finally:
            state.leave(failure)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(max(1, min(slots, len(jobs))))]
    try:
        for thread in threads:
            with state.changed:
                state.serving += 1
            thread.start()
        with state.changed:
            while state.serving and not state.stopping:
                state.changed.wait()
    finally:
        with state.changed:
            state.stopping = True
            state.changed.notify_all()
        for own in opened:
            own.close()
        for thread in threads:
            if thread.ident is not None:
                thread.join(timeout=30)
    if state.failure is not None:
        raise state.failure
    return state.results


def longest_first(jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (-job.seconds, job.name))


class Estimate:
    """Estimates the time left from expected lengths and from how finished jobs compared with theirs."""

    def __init__(self, jobs: Iterable[Job], slots: int) -> None:
        self._waiting = {job.name: job.seconds for job in jobs}
        self._running: dict[str, tuple[float, float]] = {}
        self._slots = max(1, slots)
        # Starts at 1 with the weight of ten expected seconds, so that the first short jobs do not distort it.
        self._expected = self._taken = 10.0

    def started(self, job: Job) -> None:
        self._running[job.name] = (self._waiting.pop(job.name, job.seconds), time.monotonic())

    def ended(self, job: Job, seconds: float) -> None:
        expected, _ = self._running.pop(job.name, (job.seconds, 0.0))
        self._expected += expected
        self._taken += seconds

    @property
    def pace(self) -> float:
        """Above 1: slower than expected."""
        return self._taken / self._expected

    def seconds_left(self) -> float:
        now = time.monotonic()
        rest = [max(0.0, length * self.pace - (now - began)) for length, began in self._running.values()]
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
