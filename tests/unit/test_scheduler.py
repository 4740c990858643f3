"""Jobs run longest first, within slots and memory; shards are balanced and lose nothing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.engine import jobs as scheduler
from ci.engine.jobs import Calls, Estimate, Job, asked_shard, run_jobs, shard
from provisioning.base.errors import UsageError

JOBS = st.lists(
    st.builds(Job, st.text("abcdef", min_size=1, max_size=5), st.floats(0, 200), st.integers(0, 8)),
    max_size=40,
    unique_by=lambda job: job.name,
)


class Watch:
    """Counts what runs at once."""

    def __init__(self, until: Callable[[Watch], bool] = lambda watch: True) -> None:
        self.order: list[str] = []
        self.now: dict[str, Job] = {}
        self.most = self.most_memory = 0
        self.until = until
        self.changed = threading.Condition()

    def run(self, job: Job) -> str:
        with self.changed:
            self.order.append(job.name)
            self.now[job.name] = job
            self.most = max(self.most, len(self.now))
            self.most_memory = max(self.most_memory, sum(each.memory for each in self.now.values()))
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.until(self), timeout=20)
            del self.now[job.name]
        return job.name.upper()


@given(JOBS, st.integers(1, 6))
def test_the_shards_together_are_exactly_the_whole(jobs: list[Job], count: int) -> None:
    parts = [shard(jobs, index, count) for index in range(1, count + 1)]
    assert sorted(job.name for part in parts for job in part) == sorted(job.name for job in jobs)


@given(JOBS, st.integers(1, 6))
def test_shards_differ_by_no_more_than_the_longest_job(jobs: list[Job], count: int) -> None:
    loads = [sum(job.seconds for job in shard(jobs, index, count)) for index in range(1, count + 1)]
    longest = max((job.seconds for job in jobs), default=0)
    assert max(loads) - min(loads) <= longest + len(jobs) * 1e-3 + 1e-6


@given(JOBS, st.integers(1, 6), st.randoms())
def test_a_shard_does_not_depend_on_the_order_of_the_jobs(
    jobs: list[Job], count: int, source: random.Random
) -> None:
    shuffled = list(jobs)
    source.shuffle(shuffled)
    assert shard(jobs, 1, count) == shard(shuffled, 1, count)


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/0", "-1/2", "1/2/3"])
def test_a_shard_that_makes_no_sense_is_wrong_use(text: str) -> None:
    with pytest.raises(UsageError, match="1 <= i <= n"):
        scheduler.parse_shard(text)


def test_the_longest_job_starts_first() -> None:
    watch = Watch()
    jobs = [Job("short", 1), Job("long", 9), Job("middle", 5)]
    run_jobs(jobs, lambda: Calls(watch.run), slots=1)
    assert watch.order == ["long", "middle", "short"]


def test_every_job_gives_its_result() -> None:
    jobs = [Job(str(number)) for number in range(50)]
    results = run_jobs(jobs, lambda: Calls(lambda job: int(job.name) * 2), slots=4)
    assert results == {str(number): number * 2 for number in range(50)}


def test_slots_work_side_by_side() -> None:
    watch = Watch(until=lambda w: w.most == 3)
    run_jobs([Job("a"), Job("b"), Job("c")], lambda: Calls(watch.run), slots=3)
    assert watch.most == 3


def test_no_more_jobs_run_at_once_than_there_are_slots() -> None:
    watch = Watch()
    run_jobs([Job(str(n)) for n in range(30)], lambda: Calls(watch.run), slots=2)
    assert watch.most <= 2


@given(JOBS)
def test_memory_stays_within_the_budget_unless_one_job_alone_exceeds_it(jobs: list[Job]) -> None:
    watch = Watch()
    run_jobs(jobs, lambda: Calls(watch.run), slots=3, memory=6)
    assert watch.most_memory <= max([6, *(job.memory for job in jobs)])
    assert len(watch.order) == len(jobs)


def test_a_smaller_job_goes_ahead_of_one_that_does_not_fit() -> None:
    watch = Watch(until=lambda w: {"large", "small"} <= set(w.order))
    jobs = [Job("large", 9, 5), Job("also-large", 8, 5), Job("small", 1, 1)]
    run_jobs(jobs, lambda: Calls(watch.run), slots=2, memory=6)
    assert watch.order[:2] == ["large", "small"]


def test_a_failing_slot_raises_in_the_caller() -> None:
    def fail(job: Job) -> None:
        raise OSError(job.name)

    with pytest.raises(OSError, match="only"):
        run_jobs([Job("only")], lambda: Calls(fail), slots=2)


def test_nothing_is_started_after_the_result_that_stops() -> None:
    watch = Watch()
    jobs = [Job("first", 9), Job("second", 5), Job("third", 1)]
    results = run_jobs(
        jobs, lambda: Calls(watch.run), slots=1, stop_after=lambda job, result: result == "SECOND"
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


def test_a_slot_that_opens_after_the_end_does_nothing() -> None:
    """It would not be closed any more, and what it started would stay."""
    opening, closed, ran = threading.Event(), threading.Event(), []
    makers = iter(["first", "late"])

    class Late:
        def __init__(self) -> None:
            self.name = next(makers)
            if self.name == "late":
                opening.set()
                assert closed.wait(20)

        def run(self, job: Job) -> str:
            ran.append(self.name)
            assert opening.wait(20)
            return job.name

        def close(self) -> None:
            closed.set()

    run_jobs([Job("a"), Job("b")], Late, slots=2, stop_after=lambda job, result: True)
    assert ran == ["first"]


def test_every_slot_is_closed() -> None:
    both, closed = threading.Barrier(2, timeout=20), []

    def at_once(job: Job) -> str:
        both.wait()
        return job.name

    class Counted(Calls[str]):
        def close(self) -> None:
            closed.append(1)

    run_jobs([Job("a"), Job("b")], lambda: Counted(at_once), slots=2)
    assert len(closed) == 2


def test_a_part_with_nothing_in_it_is_wrong_use() -> None:
    jobs = [Job("a", 2.0), Job("b", 1.0)]
    assert asked_shard(jobs, "2/2") == [jobs[1]]
    with pytest.raises(UsageError, match="--shard 3/3: of 2 in all, none is left"):
        asked_shard(jobs, "3/3")


def test_two_jobs_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        run_jobs([Job("a"), Job("a")], lambda: Calls(lambda job: job.name), slots=1)


def test_the_estimate_is_the_expected_work_over_the_slots() -> None:
    assert Estimate([Job("a", 30), Job("b", 30)], 2, clock=lambda: 0.0).left() == 30


def test_the_estimate_is_never_shorter_than_the_longest_job() -> None:
    for jobs in ([Job("a", 100), Job("b", 1)], [Job("b", 1), Job("a", 100)]):
        assert Estimate(jobs, 8, clock=lambda: 0.0).left() == 100


def test_the_estimate_follows_the_pace() -> None:
    estimate = Estimate([Job("a", 90), Job("b", 100)], 1, clock=lambda: 0.0)
    estimate.started(Job("a", 90))
    estimate.ended(Job("a", 90), 190)
    assert estimate.left() == pytest.approx(200)


def test_the_estimate_counts_down_while_a_job_runs() -> None:
    now = [0.0]
    estimate = Estimate([Job("a", 90)], 1, clock=lambda: now[0])
    estimate.started(Job("a", 90))
    now[0] = 60.0
    assert estimate.left() == pytest.approx(30)


def test_a_quota_limits_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_read", {"/sys/fs/cgroup/cpu.max": "100000 100000"}.get)
    assert scheduler.default_slots() == 1


def test_the_budget_is_a_part_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "available_memory", lambda: 2000)
    assert scheduler.memory_budget(0.5) == 1000
