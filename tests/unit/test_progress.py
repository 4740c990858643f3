from __future__ import annotations

import io
import threading

import pytest

from ci.engine.jobs import Job
from ci.engine.progress import JobProgress, Line
from provisioning.base.progress import Bars, Lines


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def test_long_work_tells_of_itself_every_few_seconds(out: io.StringIO, clock: Clock) -> None:
    lines = Lines(out, clock)
    lines.start("sdk.zip", 200_000_000, 100_000_000)
    for _ in range(10):
        clock.now += 1
        lines.advance(10_000_000)
    lines.finish()
    assert out.getvalue().splitlines() == [
        "sdk.zip: 120 MB of 200 MB (60 %), 10 MB/s, 8.00 s left",
        "sdk.zip: 170 MB of 200 MB (85 %), 10 MB/s, 3.00 s left",
        "sdk.zip: 200 MB in 10 s",
    ]


def test_threads_have_work_of_their_own(out: io.StringIO, clock: Clock) -> None:
    lines = Lines(out, clock)
    ready = threading.Barrier(4)

    def work(number: int) -> None:
        lines.start(f"part {number}", number)
        ready.wait(20)
        lines.advance(number)
        ready.wait(20)
        lines.finish()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(out.getvalue().splitlines()) == [f"part {n}: {n} B in 0.00 s" for n in range(1, 5)]


class Drawn:
    """A display that keeps what it was given."""

    def __init__(self) -> None:
        self.bars: dict[int, tuple[str, float, float | None, str]] = {}
        self.most = 0
        self.lines: list[str] = []
        self.logged: list[str] = []

    def bar(self, bar: int, name: str, done: float, total: float | None, note: str) -> None:
        self.bars[bar] = (name, done, total, note)
        self.most = max(self.most, len(self.bars))

    def remove(self, bar: int) -> None:
        del self.bars[bar]

    def print(self, text: str) -> None:
        self.lines.append(text)

    def log(self, text: str) -> None:
        self.logged.append(text)


def test_long_work_has_a_bar_until_it_ends_and_short_work_none(clock: Clock) -> None:
    drawn = Drawn()
    bars = Bars(drawn, clock=clock)
    bars.start("sdk.zip", 1000)
    bars.advance(10)
    assert not drawn.bars
    clock.now += 3
    bars.advance(10)
    assert list(drawn.bars.values()) == [("sdk.zip", 20, 1000, "20 B of 1 kB (2 %), 7 B/s, 2 min 27 s left")]
    bars.note("waiting")
    bars.finish()
    assert not drawn.bars
    assert drawn.lines == ["waiting", "sdk.zip: 20 B of 1 kB, stopped in 3.00 s"]


def test_jobs_have_a_bar_each_while_they_run_and_leave_only_what_needs_a_look() -> None:
    drawn, jobs = Drawn(), [Job("bad", 60), Job("good", 60)]
    shown: JobProgress[str] = JobProgress(
        "tests", jobs, 1, lambda word: Line(word, look=word == "FAILED!"), io.StringIO(), drawn
    )
    with shown:
        for job, word in zip(jobs, ("FAILED!", "passed"), strict=True):
            shown.started(job)
            assert any(name == f"  {job.name}" for name, *_ in drawn.bars.values())
            shown.ended(job, word, 60)
        (whole,) = drawn.bars.values()
        assert whole[:3] == ("tests", 2, 2) and whole[3].endswith(", 1 to look at")
    assert not drawn.bars and drawn.most == 2
    assert drawn.lines == ["[1/2] FAILED!     60.0 s  bad"]
    assert drawn.logged == ["[2/2] passed      60.0 s  good"]


def test_without_a_terminal_each_job_is_a_line_with_the_time_left(out: io.StringIO) -> None:
    jobs = [Job("a", 60), Job("b", 60)]
    shown: JobProgress[str] = JobProgress("tests", jobs, 1, lambda word: Line(word, "no\nmore"), out, None)
    with shown:
        shown.started(jobs[0])
        shown.ended(jobs[0], "FAILED!", 60)
    assert out.getvalue() == "[1/2] FAILED!     60.0 s  a: no  (about 60 s left)\n"
