"""What a user sees while jobs run: a bar on a terminal, one line a job elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TextIO, TypeVar

from ci.engine.jobs import Estimate, Job
from provisioning.base.units import seconds

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Line:
    """What is said of a job that ended; one that needs a look stays on the screen."""

    word: str
    note: str = ""
    look: bool = False
    seconds: float | None = None
    """Without what it waited for; None: as long as the slot was taken."""


def failed(note: str) -> Line:
    return Line("FAILED!", note, look=True)


class Lines(Generic[R]):
    """Told by the scheduler of each job; also a context, so that a bar goes away whatever happens."""

    def __init__(
        self, what: str, jobs: Sequence[Job], slots: int, line: Callable[[R], Line], out: TextIO | None = None
    ) -> None:
        self._what, self._line = what, line
        self._estimate = Estimate(jobs, slots)
        self._total = len(jobs)
        self._done = self._looks = 0
        self._out = out or sys.stderr

    def __enter__(self) -> Lines[R]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def started(self, job: Job) -> None:
        self._estimate.started(job)

    def ended(self, job: Job, result: R, seconds: float) -> None:
        self._estimate.ended(job, seconds)
        self._done += 1
        line = self._line(result)
        self._looks += line.look
        width = len(str(self._total))
        took = seconds if line.seconds is None else line.seconds
        text = f"[{self._done:>{width}}/{self._total}] {line.word:<9}{took:7.1f} s  {job.name}"
        if line.note:
            text += f": {line.note.splitlines()[0]}"
        self._say(text, line.look)

    def left(self) -> str:
        return f"about {seconds(self._estimate.left())} left"

    def _say(self, text: str, look: bool) -> None:
        rest = f"  ({self.left()})" if self._done < self._total else ""
        self._out.write(f"{text}{rest}\n")
        self._out.flush()


class Bar(Lines[R]):
    """One row for the whole and one for each job that runs; only what needs a look stays."""

    def __init__(
        self, what: str, jobs: Sequence[Job], slots: int, line: Callable[[R], Line], out: TextIO | None = None
    ) -> None:
        super().__init__(what, jobs, slots, line, out)
        self._rich = _rows(self._out)
        self._whole = self._rich.add_task(what, total=self._total, note="")
        self._rows: dict[str, TaskID] = {}

    def __enter__(self) -> Bar[R]:
        self._rich.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rich.stop()

    def started(self, job: Job) -> None:
        super().started(job)
        self._rows[job.name] = self._rich.add_task(f"  {job.name}", total=None, note="")

    def ended(self, job: Job, result: R, seconds: float) -> None:
        self._rich.remove_task(self._rows.pop(job.name))
        super().ended(job, result, seconds)

    def _say(self, text: str, look: bool) -> None:
        note = self.left() + (f", {self._looks} to look at" if self._looks else "")
        self._rich.update(self._whole, completed=self._done, note=note)
        if look:
            self._rich.console.print(text, markup=False, highlight=False, soft_wrap=True)


def progress(
    what: str, jobs: Sequence[Job], slots: int, line: Callable[[R], Line], out: TextIO | None = None
) -> Lines[R]:
    """`what` names the jobs on the bar; `line` says what became of one."""
    stream = out or sys.stderr
    drawable = stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
    return (Bar if drawable else Lines)(what, jobs, slots, line, stream)


def _rows(out: TextIO) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(file=out),
        transient=True,
    )
