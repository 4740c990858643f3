"""What a user sees while the suite runs: a bar on a terminal, one line a test elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from ci.delegate.pool import Verdict
from ci.scheduler import Estimate, Job
from provisioning.progress import human_time

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

WORDS = {"passed": "passed", "failed": "FAILED", "not_run": "not run", "expected_failure": "expected"}


class Lines:
    """Told by the scheduler of each test; also a context, so that a bar goes away whatever happens."""

    def __init__(
        self, jobs: list[Job], slots: int, expected: dict[str, str], out: TextIO | None = None
    ) -> None:
        self._estimate = Estimate(jobs, slots)
        self._expected = expected
        self._total = len(jobs)
        self._done = self._bad = 0
        self._out = out or sys.stderr

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def started(self, job: Job) -> None:
        self._estimate.started(job)

    def ended(self, job: Job, result: Verdict, seconds: float) -> None:
        self._estimate.ended(job, seconds)
        self._done += 1
        surprising = result.outcome != self._expected.get(result.test, "passed")
        self._bad += surprising
        word = WORDS[result.outcome] + ("!" if surprising else "")
        width = len(str(self._total))
        line = f"[{self._done:>{width}}/{self._total}] {word:<9}{result.seconds:7.1f} s  {result.test}"
        if result.outcome != "passed":
            line += f": {result.reason.splitlines()[0] if result.reason else ''}"
        self._say(line, surprising)

    def left(self) -> str:
        return f"about {human_time(self._estimate.left())} left"

    def _say(self, line: str, surprising: bool) -> None:
        rest = f"  ({self.left()})" if self._done < self._total else ""
        self._out.write(f"{line}{rest}\n")
        self._out.flush()


class Bar(Lines):
    """One row for the whole and one for each test that runs; only surprises stay on the screen."""

    def __init__(
        self, jobs: list[Job], slots: int, expected: dict[str, str], out: TextIO | None = None
    ) -> None:
        super().__init__(jobs, slots, expected, out)
        self._rich = _rows(self._out)
        self._whole = self._rich.add_task("delegate tests", total=self._total, note="")
        self._rows: dict[str, TaskID] = {}

    def __enter__(self) -> Bar:
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

    def ended(self, job: Job, result: Verdict, seconds: float) -> None:
        self._rich.remove_task(self._rows.pop(job.name))
        super().ended(job, result, seconds)

    def _say(self, line: str, surprising: bool) -> None:
        note = self.left() + (f", {self._bad} not as expected" if self._bad else "")
        self._rich.update(self._whole, completed=self._done, note=note)
        if surprising:
            self._rich.console.print(line, markup=False, highlight=False, soft_wrap=True)


def progress(jobs: list[Job], slots: int, expected: dict[str, str], out: TextIO | None = None) -> Lines:
    import os

    stream = out or sys.stderr
    drawable = stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
    return (Bar if drawable else Lines)(jobs, slots, expected, stream)


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
