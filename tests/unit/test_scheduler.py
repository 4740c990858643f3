"""Jobs run longest first, within slots and memory; shards are balanced and lose nothing."""

from __future__ import annotations

import random
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.engine import jobs as scheduler
from ci.engine.jobs import FunctionSlot, Job, run_jobs, shard
from provisioning.base.errors import UsageError

JOBS = st.lists(
    st.builds(Job, st.text("abcdef", min_size=1, max_size=5), st.floats(0, 200), st.integers(0, 8)),
    max_size=40,
    unique_by=lambda job: job.name,
)


class Watch:
    """Counts what runs at once."""

    def __init__(self) -> None:
        self.now: dict[str, Job] = {}
        self.most = self.most_memory = 0
        self.lock = threading.Lock()

    def run(self, job: Job) -> str:
        with self.lock:
            self.now[job.name] = job
            self.most = max(self.most, len(self.now))
            self.most_memory = max(self.most_memory, sum(each.memory for each in self.now.values()))
        time.sleep(0.001)
        with self.lock:
            del self.now[job.name]
        return job.name.upper()


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
        scheduler.parse_shard(text)


def test_no_more_jobs_run_at_once_than_there_are_slots() -> None:
    watch = Watch()
    run_jobs([Job(str(n)) for n in range(30)], lambda: FunctionSlot(watch.run), slots=2)
    assert watch.most <= 2


@given(JOBS)
def test_memory_stays_within_the_budget_unless_one_job_alone_exceeds_it(jobs: list[Job]) -> None:
    watch = Watch()
    results = run_jobs(jobs, lambda: FunctionSlot(watch.run), slots=3, memory=6)
    assert watch.most_memory <= max([6, *(job.memory for job in jobs)])
    assert len(results) == len(jobs)


def test_nothing_is_started_after_the_result_that_stops() -> None:
    watch = Watch()
    jobs = [Job("first", 9), Job("second", 5), Job("third", 1)]
    results = run_jobs(
        jobs, lambda: FunctionSlot(watch.run), slots=1, stop_after=lambda job, result: result == "SECOND"
    )
    assert list(results) == ["first", "second"]


def test_stopping_ends_what_runs() -> None:
    closed = threading.Event()

    class Endless:
        def run(self, job: Job) -> str:
            if job.name == "endless":
                closed.wait(20)
            return job.name

        def close(self) -> None:
            closed.set()

    began = time.monotonic()
    results = run_jobs(
        [Job("endless", 9), Job("quick", 1)], Endless, slots=2, stop_after=lambda job, result: True
    )
    assert list(results) == ["quick"]
    assert time.monotonic() - began < 15
