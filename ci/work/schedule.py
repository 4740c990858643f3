"""Run named tasks in child processes, longest first, as many as cores and memory allow.

A task may need an export, or a common task that begins its work: that runs first, once, and the tasks that
need it are forks of its process (`processes`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ci.work.jobs import (
    Job,
    JobProgress,
    Line,
    core_shares,
    default_slots,
    longest_first,
    memory_budget,
)
from ci.work.outcome import Failure, TaskOutcome
from ci.work.processes import ChildTask, Home, Running, Template, template_of, wait_for_one
from ci.work.trouble import trouble_of_error
from provisioning.base.progress import bar_for

__all__ = ["run_tasks"]


@dataclass(frozen=True)
class Exports:
    """Tasks that other tasks need: each runs once, and its process stays so that the others can be forks of
    it."""

    tasks: Mapping[str, ChildTask]
    settle: Callable[[ChildTask, Mapping[str, object]], ChildTask | TaskOutcome]
    """Receives a task that needs an export, and the reply of that export. Returns the task to run, or an
    outcome that is known without any work."""


NO_EXPORTS = Exports({}, lambda task, reply: task)


def run_tasks(
    tasks: Sequence[ChildTask],
    home: Home,
    title: str,
    line: Callable[[str, TaskOutcome], Line],
    jobs: int | None = None,
    *,
    memory: int | None = None,
    exports: Exports = NO_EXPORTS,
) -> dict[str, TaskOutcome]:
    """Run the tasks. Returns the outcome of each by name, in the order in which they ended. `memory` is how
    many bytes they may use together; the default is most of what is free."""
    if not tasks:
        return {}
    if len({task.name for task in tasks}) != len(tasks):
        raise ValueError("two tasks have the same name")
    with template_of(home) as template:
        schedule = _Schedule(tasks, template, exports, jobs, memory or memory_budget())
        bar = bar_for(sys.stderr)
        with JobProgress(title, schedule.waiting, line, sys.stderr, bar, schedule.doing) as progress:
            schedule.run(progress)
        return schedule.outcomes


@dataclass(frozen=True, slots=True)
class _Active:
    """A task that is running, or what it needs and what runs first: its export, or the common task."""

    entry: Running
    job: Job
    cores: set[int]
    needed: str = ""
    """The name of what runs first."""
    went_on: bool = False
    """Whether the task goes on from the common one."""


class _Schedule:
    """Decides which task runs when: the longest starts first, if cores and memory are free and no other task
    is making what it needs."""

    def __init__(
        self,
        tasks: Sequence[ChildTask],
        template: Template,
        exports: Exports,
        jobs: int | None,
        memory: int | None,
    ) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._template, self._exports, self._memory = template, exports, memory
        self.waiting = longest_first(task.cost or Job(task.name) for task in tasks)
        self.slots = min(jobs or default_slots(), len(tasks))
        shares = core_shares(self.slots, max(1, default_slots() // self.slots))
        self._free_cores = [next(shares) for _ in range(self.slots)]
        self._active: dict[str, _Active] = {}
        self._held: dict[str, Running] = {}
        """The exports and common tasks whose processes wait for orders."""
        self._failed: dict[str, TaskOutcome] = {}
        self._settled: dict[str, ChildTask | TaskOutcome] = {}
        self._alone: set[str] = set()
        """These tasks failed as they went on from a common one, and are done as a whole."""
        self.outcomes: dict[str, TaskOutcome] = {}

    def doing(self, name: str) -> str:
        """What a task, or the export that it needs, is doing."""
        active = self._active.get(name)
        return active.entry.doing if active else "starting its process"

    def run(self, progress: JobProgress[TaskOutcome]) -> None:
        try:
            while self.waiting or self._active:
                self._start_all(progress)
                if self._active:
                    wait_for_one([active.entry for active in self._active.values()])
                for name, active in list(self._active.items()):
                    if (outcome := active.entry.outcome()) is not None:
                        del self._active[name]
                        self._go_on(active, outcome, progress)
        finally:
            for entry in reversed(self._held.values()):
                entry.close()
                entry.remove()

    def _go_on(self, active: _Active, outcome: TaskOutcome, progress: JobProgress[TaskOutcome]) -> None:
        if active.needed:
            if isinstance(outcome, dict):
                self._held[active.needed] = active.entry
            else:
                self._failed[active.needed] = outcome
                if active.needed != self._tasks[active.job.name].export:
                    _say_alone(f"{active.job.name} and those like it are", outcome)
        elif active.went_on and isinstance(outcome, Failure) and outcome.is_repeatable:
            self._alone.add(active.job.name)
            _say_alone(f"{active.job.name} is", outcome)
        else:
            self._free_cores.append(active.cores)
            self._end(active.job, outcome, active.entry.seconds, progress)
            return
        self._begin(active.job, active.cores, progress)

    def _start_all(self, progress: JobProgress[TaskOutcome]) -> None:
        while self._free_cores and (job := self._fitting()):
            self.waiting.remove(job)
            progress.begin(job)
            self._begin(job, self._free_cores.pop(), progress)

    def _fitting(self) -> Job | None:
        in_work = {active.needed for active in self._active.values() if active.needed}
        jobs = [job for job in self.waiting if not in_work & {*_needs_of(self._tasks[job.name])}]
        if self._memory is None or not self._active:
            # With nothing else running, even the largest may start: waiting would not free more memory.
            return jobs[0] if jobs else None
        free = self._memory - sum(active.job.memory for active in self._active.values())
        return next((job for job in jobs if job.memory <= free), None)

    def _begin(self, job: Job, cores: set[int], progress: JobProgress[TaskOutcome]) -> None:
        """Start a task, or what it needs first."""
        task, orders, needed, went_on = self._tasks[job.name], self._template.orders, "", False
        ready: ChildTask | TaskOutcome = task
        if task.export in self._failed:
            ready = self._failed[task.export]
        elif exporter := self._held.get(task.export):
            ready, orders = self._settle(task, exporter), exporter.to_forks
        elif task.export:
            ready, needed = self._exports.tasks[task.export], task.export
        if isinstance(ready, ChildTask) and not needed and (common := self._common_of(task)):
            if holder := self._held.get(common.name):
                orders, went_on = holder.to_forks, True
            else:
                ready, needed = common, common.name
        if isinstance(ready, ChildTask):
            try:
                entry = orders.start(ready, cores, holds=bool(needed))
            except OSError as error:
                if not (trouble := trouble_of_error(error)):
                    raise
                ready = Failure.of(trouble, ready.log)
            else:
                self._active[job.name] = _Active(entry, job, cores, needed, went_on)
                return
        self._free_cores.append(cores)
        self._end(job, ready, 0.0, progress)

    def _settle(self, task: ChildTask, exporter: Running) -> ChildTask | TaskOutcome:
        """Return the task to run, or its outcome; a task that is tried again is settled once."""
        if task.name not in self._settled:
            self._settled[task.name] = self._exports.settle(task, exporter.reply)
        return self._settled[task.name]

    def _common_of(self, task: ChildTask) -> ChildTask | None:
        """Return the common task that this one is to go on from."""
        common = task.common
        if common is None or common.name in self._failed or task.name in self._alone:
            return None
        return common

    def _end(
        self, job: Job, outcome: TaskOutcome, seconds: float, progress: JobProgress[TaskOutcome]
    ) -> None:
        self.outcomes[job.name] = outcome
        progress.end(job, outcome, seconds)
        names = (*(job.name for job in self.waiting), *self._active)
        needed = {need for name in names for need in _needs_of(self._tasks[name])}
        for need in _needs_of(self._tasks[job.name]):
            if need in self._held and need not in needed:
                # Its memory is free for the next one.
                entry = self._held.pop(need)
                entry.close()
                entry.remove()


def _say_alone(subject: str, failure: Failure) -> None:
    reason = failure.message.partition("\n")[0][:200]
    sys.stderr.write(f"{subject} done as a whole, as what they have in common failed: {reason}\n")


def _needs_of(task: ChildTask) -> Iterator[str]:
    """Yield the names of the common task and of the export that a task needs."""
    if task.common:
        yield task.common.name
    if task.export:
        yield task.export
