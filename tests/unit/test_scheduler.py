"""Shards are balanced and lose nothing; progress says what is at work."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.suite.options import parse_shard, shard
from ci.work.jobs import Job, JobProgress, Line
from provisioning.base.errors import UsageError
from provisioning.base.progress import show_working

JOBS = st.lists(
    st.builds(Job, st.text("abcdef", min_size=1, max_size=5), st.floats(0, 200), st.integers(0, 8)),
    max_size=40,
    unique_by=lambda job: job.name,
)


@given(JOBS, st.integers(1, 6))
def test_the_shards_together_are_exactly_the_whole(jobs: list[Job], count: int) -> None:
    parts = [shard(jobs, index, count) for index in range(1, count + 1)]
    assert sorted(job.name for part in parts for job in part) == sorted(job.name for job in jobs)


@given(JOBS, st.integers(1, 6), st.randoms())
def test_a_shard_does_not_depend_on_the_order_of_the_jobs(
    jobs: list[Job], count: int, source: random.Random
) -> None:
    shuffled = list(jobs)
    source.shuffle(shuffled)
    assert shard(jobs, 1, count) == shard(shuffled, 1, count)


@pytest.mark.parametrize("text", ["1", "0/2", "3/2", "a/b"])
def test_a_shard_that_makes_no_sense_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="1 <= i <= n"):
        parse_shard(text)


class TestProgressOfJobs:
    """Where no bar can be drawn."""

    def begun(self, out: io.StringIO, clock: Callable[[], float]) -> JobProgress[str]:
        def line(name: str, result: str) -> Line:
            return Line(result)

        shown = JobProgress("models", [Job("net"), Job("other")], line, out, None, str.upper, clock)
        shown.begin(Job("net"))
        shown.begin(Job("other"))
        return shown

    def test_silence_is_ended_by_what_is_being_done(self) -> None:
        out, now = io.StringIO(), [0.0]
        shown = self.begun(out, lambda: now[0])
        for now[0] in range(1, 25):
            shown.tick()
        lines = out.getvalue().splitlines()
        assert len(lines) == 2
        assert "10.0 s  net: NET, and 1 more" in lines[0] and "20.0 s" in lines[1]

    def test_a_job_that_ended_is_no_silence_and_runs_no_more(self) -> None:
        out, now = io.StringIO(), [0.0]
        shown = self.begun(out, lambda: now[0])
        now[0] = 8.0
        shown.end(Job("net"), "done", 8.0)
        for now[0] in range(9, 20):
            shown.tick()
        (ended, running) = out.getvalue().splitlines()
        assert "done" in ended and running.endswith("18.0 s  other: OTHER")


def test_work_whose_progress_is_not_known_says_that_it_goes_on() -> None:
    said: list[str] = []
    told = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        told.set()

    with show_working("making it", say, interval=0.01):
        assert told.wait(30)
    assert said[0].startswith("making it: ")
