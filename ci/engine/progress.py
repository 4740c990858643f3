"""What a user sees while jobs run: bars on a terminal, one line a job elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TextIO, TypeVar

from ci.engine.jobs import Estimate, Job
from provisioning.base.screen import Display, display_for, new_bar
from provisioning.base.units import seconds

R = TypeVar("R")


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
    ) -> None:
        self._what, self._line = what, line
        self._estimate = Estimate(jobs, slots)
        self._total = len(jobs)
        self._done = self._looks = 0
        self._out, self._display = out, display
        self._whole, self._bars = new_bar(), dict[str, int]()

    def __enter__(self) -> JobProgress[R]:
        self._draw_whole()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display:
            for bar in (*self._bars.values(), self._whole):
                self._display.remove(bar)

    def started(self, job: Job) -> None:
        self._estimate.started(job)
        if self._display:
            bar = self._bars[job.name] = new_bar()
            self._display.bar(bar, f"  {job.name}", 0, None, "")

    def ended(self, job: Job, result: R, taken: float) -> None:
        self._estimate.ended(job, taken)
        self._done += 1
        line = self._line(job.name, result)
        self._looks += line.look
        width = len(str(self._total))
        time_shown = taken if line.seconds is None else line.seconds
        text = f"[{self._done:>{width}}/{self._total}] {line.word:<9}{time_shown:7.1f} s  {job.name}"
        if line.note:
            text += f": {line.note.splitlines()[0]}"
        if self._display is None:
            estimate = f"  ({self.time_left()})" if self._done < self._total else ""
            self._out.write(f"{text}{estimate}\n")
            self._out.flush()
            return
        self._display.remove(self._bars.pop(job.name))
        self._draw_whole()
        if line.look:
            self._display.print(text)
        else:
            self._display.log(text)

    def time_left(self) -> str:
        return f"about {seconds(self._estimate.seconds_left())} left"

    def _draw_whole(self) -> None:
        if self._display:
            looks = f", {self._looks} to look at" if self._looks else ""
            note = f"{self._done}/{self._total}, {self.time_left()}{looks}"
            self._display.bar(self._whole, self._what, self._done, self._total, note)


def progress(
    what: str, jobs: Sequence[Job], slots: int, line: Callable[[str, R], Line], out: TextIO | None = None
) -> JobProgress[R]:
    """`what` names the jobs on the bar; `line` gives the line for a job of this name that ended."""
    stream = out or sys.stderr
    return JobProgress(what, jobs, slots, line, stream, display_for(stream))
