"""What a user sees while jobs run: bars on a terminal, one line a job elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TextIO, TypeVar

from ci.jobs import Estimate, Job
from provisioning.base.progress import SILENT_FOR, Display, display_for, new_bar, ticking
from provisioning.base.units import roughly

R = TypeVar("R")

TICK = 1.0
"""Seconds between two looks at what jobs are at."""


@dataclass(frozen=True, slots=True)
class Line:
    """The line printed for a job that ended. A line that needs attention stays on the screen."""

    word: str
    note: str = ""
    look: bool = False
    seconds: float | None = None
    """Without time spent waiting; None: as long as the slot was taken."""


def failed(note: str) -> Line:
    return Line("FAILED!", note, look=True)


class JobProgress(Generic[R]):
    """Shows jobs as the scheduler starts and ends them. A context manager, so bars are always removed."""

    def __init__(
        self,
        what: str,
        jobs: Sequence[Job],
        slots: int,
        line: Callable[[str, R], Line],
        out: TextIO,
        display: Display | None,
        doing: Callable[[str], str] = lambda name: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`doing` says what a job of this name is at."""
        self._what, self._line, self._doing, self._clock = what, line, doing, clock
        self._began: dict[str, float] = {}
        self._spoke, self._lock, self._open = clock(), threading.RLock(), ExitStack()
        self._estimate = Estimate(jobs, slots, clock)
        self._total = len(jobs)
        self._done = self._looks = 0
        self._out, self._display = out, display
        self._whole, self._bars = new_bar(), dict[str, int]()

    def __enter__(self) -> JobProgress[R]:
        self._draw_whole()
        self._open.enter_context(ticking(TICK, self.tick))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        if self._display:
            for bar in (*self._bars.values(), self._whole):
                self._display.remove(bar)

    def started(self, job: Job) -> None:
        with self._lock:
            self._estimate.started(job)
            self._began[job.name] = self._clock()
            if self._display:
                bar = self._bars[job.name] = new_bar()
                self._display.bar(bar, f"  {job.name}", 0, None, "")

    def tick(self) -> None:
        """Say what the running jobs are at: beside their bars, else in a line after a silence."""
        with self._lock:
            running, now = dict(self._began), self._clock()
            if self._display:
                for name in running:
                    self._display.bar(self._bars[name], f"  {name}", 0, None, self._doing(name))
            elif running and now - self._spoke >= SILENT_FOR:
                name, more = next(iter(running)), len(running) - 1
                text = f"{self._place()} {'running':<9}{now - running[name]:7.1f} s  {name}"
                text += f": {doing}" if (doing := self._doing(name)) else ""
                text += f", and {more} more" if more else ""
                self._print(text + self.time_left("  ({})"))

    def ended(self, job: Job, result: R, taken: float) -> None:
        with self._lock:
            self._estimate.ended(job, taken)
            self._began.pop(job.name, None)
            self._done += 1
            line = self._line(job.name, result)
            self._looks += line.look
            time_shown = taken if line.seconds is None else line.seconds
            text = f"{self._place()} {line.word:<9}{time_shown:7.1f} s  {job.name}"
            if line.note:
                text += f": {line.note.splitlines()[0]}"
            if self._display is None:
                self._print(text + self.time_left("  ({})"))
                return
            self._display.remove(self._bars.pop(job.name))
            self._draw_whole()
            show = self._display.print if line.look else self._display.log
            show(text)

    def _place(self) -> str:
        return f"[{self._done:>{len(str(self._total))}}/{self._total}]"

    def _print(self, text: str) -> None:
        self._spoke = self._clock()
        self._out.write(f"{text}\n")
        self._out.flush()

    def time_left(self, form: str) -> str:
        """In this form; empty where it is not known."""
        left = None if self._done == self._total else self._estimate.seconds_left()
        return "" if left is None else form.format(f"about {roughly(left)} left")

    def _draw_whole(self) -> None:
        if self._display:
            looks = f", {self._looks} to look at" if self._looks else ""
            note = f"{self._done}/{self._total}{self.time_left(', {}')}{looks}"
            self._display.bar(self._whole, self._what, self._done, self._total, note)


def progress(
    what: str,
    jobs: Sequence[Job],
    slots: int,
    line: Callable[[str, R], Line],
    doing: Callable[[str], str] = lambda name: "",
) -> JobProgress[R]:
    """`what` names the jobs on the bar; `line` gives the line for a job of this name that ended, and `doing`
    says what one that runs is at."""
    return JobProgress(what, jobs, slots, line, sys.stderr, display_for(sys.stderr), doing)
