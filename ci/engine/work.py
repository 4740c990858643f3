"""Do named work: use what the memo has, give the rest to workers, and remember what passes."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from ci.engine.inputs import key_of
from ci.engine.jobs import Job, core_shares, default_slots, memory_budget, run_jobs
from ci.engine.memo import CachedResult, Memo, WorkDone
from ci.engine.progress import Line, failed, progress
from ci.engine.trouble import MACHINE, Blame, InTrouble, Trouble, of_error
from ci.engine.watch import Touched
from ci.engine.workers.parent import Refused, Worker, WorkerDied, WorkerSlot
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Metric
from provisioning.base.rendering.text import plural


@dataclass(frozen=True, slots=True)
class Failure:
    """WorkDone without a result; `kind` is the step that failed, and `message` says what happened."""

    kind: str
    message: str
    fix: str = ""
    log: Path | None = None
    blame: Blame = "model"
    exit_code: int = 1
    """Of a command that does this work alone."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the worker said beside these."""

    @classmethod
    def of(cls, trouble: Trouble, log: Path | None = None) -> Failure:
        """What the machine is to blame for."""
        code = EnvironmentLacking.exit_code
        return cls(trouble.kind, trouble.message, trouble.fix, log, "machine", code)

    @property
    def rule(self) -> str:
        """The end of its finding's rule."""
        return MACHINE if self.blame == "machine" else self.kind

    @property
    def of_work(self) -> bool:
        """Whether it says that the same work would fail again, so that a cached pass of it is no longer
        believed. A time-out does not: it depends on the limit."""
        return self.blame != "machine" and self.kind != "timeout"


@dataclass(frozen=True, slots=True)
class Result:
    facts: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    """Files of the result, or of a failure."""
    failure: Failure | None = None
    cached: bool = False
    seconds: float = 0.0
    why: str = ""
    """Why the work was done; empty if the result was remembered."""
    not_remembered: str = ""
    """Why the memo did not keep it."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """The variables that the work asked for and did not have (`Touched.asked`)."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of work: facts as JSON, and what it touched."""

    facts: Mapping[str, Any]
    touched: Touched
    folder: Path | None = None
    """Files of the result, from `Memo.scratch`."""
    evidence: Path | None = None
    """Files to look at if the result is refused; removed if it is accepted."""
    own: tuple[Path, ...] = ()
    """Other folders of this work; they are no inputs."""


class Task(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def subject(self) -> str:
        """By which the memory knows earlier work of the same program."""

    @property
    def memo(self) -> Memo:
        """Tasks of one repository share a memo, because its roots name the files."""

    @property
    def key(self) -> Mapping[str, Metric]:
        """The inputs that are known before the work is done."""

    @property
    def group(self) -> str:
        """Tasks of one group run one after another on one worker and share a dict."""

    @property
    def cost(self) -> Job:
        """The expected seconds and memory."""

    @property
    def log(self) -> Path:
        """What the work prints."""

    def work(self, worker: Worker, shared: dict[str, Any]) -> Finished | Failure:
        """Do the work. May raise `Gone`."""

    def ended(self, gone: WorkerDied, shared: Mapping[str, Any]) -> Failure:
        """How the process that did the work ended, as text."""

    def refused(self, refused: Refused, shared: Mapping[str, Any]) -> Failure:
        """What the worker says of work that did not succeed."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    title: str
    """Names the tasks on the progress bar."""
    worker: Callable[[int, int], Worker]
    """Starts a worker with this many threads that will do about this many tasks."""
    jobs: int | None = None
    explain: bool = False
    """Whether to print for each task why it is done."""
    share: bool = False
    """Whether tasks with equal keys and roots are done once. Only where their results are judged alike."""
    show_cached: bool = False
    """Whether to print the note of each cached result too."""
    is_cached: bool = True
    """Whether results are looked up and kept."""


def line_of(result: Result) -> Line:
    if result.failure:
        return failed(f"{result.failure.kind}: {result.failure.message}")
    return Line("passed")


@dataclass(frozen=True, slots=True)
class Assessment:
    accept: Callable[[str, Result], bool] = lambda name, result: True
    """A remembered result that it refuses is done again, so that its files can be looked at."""
    line: Callable[[str, Result], Line] = lambda group, result: line_of(result)
    stop_after: Callable[[str, Result], bool] = lambda group, result: False
    """Whether the work ends early."""
    remember_all: bool = False
    """Whether a new result that it refuses is remembered."""


def do(tasks: Sequence[Task], how: RunOptions, assessment: Assessment = Assessment()) -> dict[str, Result]:
    """The result of every task by name; fewer if the work ended early."""
    if not tasks:
        return {}
    results, todo = _remembered(tasks, assessment, how)
    # A key names files by root, and two repositories may have other files of equal names.
    same = {task.name: (key_of(task.key), task.memo.place) if how.share else task.name for task, _ in todo}
    first: dict[object, Task] = {}
    for task, _ in todo:
        first.setdefault(same[task.name], task)
    reasons = {task.name: why for task, why in todo}
    _announce(how, results, reasons, assessment)
    if first:
        results |= _Running(list(first.values()), how, assessment, reasons).results()
    for task, _ in todo:
        if (done := results.get(first[same[task.name]].name)) is not None:
            results.setdefault(task.name, done)
    _close(tasks)
    return {task.name: results[task.name] for task in tasks if task.name in results}


def _close(tasks: Iterable[Task]) -> None:
    for memo in {id(task.memo): task.memo for task in tasks}.values():
        memo.close()


def _remembered(
    tasks: Sequence[Task], assessment: Assessment, how: RunOptions
) -> tuple[dict[str, Result], list[tuple[Task, str]]]:
    if not how.is_cached:
        return {}, [(task, "--recheck") for task in tasks]
    results: dict[str, Result] = {}
    todo: list[tuple[Task, str]] = []
    for task in tasks:
        answer = task.memo.find(task.subject, task.key)
        if not isinstance(answer, CachedResult):
            todo.append((task, answer.why))
            continue
        result = Result(answer.result, answer.folder, cached=True, asked=answer.asked)
        if assessment.accept(task.name, result):
            results[task.name] = result
        else:
            todo.append((task, "what is remembered does not pass any more"))
    return results, todo


def _announce(
    how: RunOptions, cached: Mapping[str, Result], reasons: Mapping[str, str], assessment: Assessment
) -> None:
    if len(reasons) == 1 and not cached and not how.explain:
        # Its progress says as much.
        return
    line = f"{how.title}: {len(cached)} cached, {len(reasons)} to do"
    if how.explain:
        lines = [f"{name}: {why}" for name, why in reasons.items()]
    else:
        first, *others = Counter(reasons.values()).most_common() or [("", 0)]
        line += f": {first[0]}" * bool(first[0])
        line += f", and {plural(len(others), 'other reason')} (--why)" * bool(others)
        lines = []
    sys.stderr.write(f"{line}\n")
    if how.show_cached:
        lines += [
            f"cached    {name}: {assessment.line(name, result).note}" for name, result in cached.items()
        ]
    sys.stderr.writelines(f"  {line}\n" for line in lines)


class _Running:
    """Tasks at work, group by group on a few workers."""

    def __init__(
        self, tasks: Sequence[Task], how: RunOptions, assessment: Assessment, reasons: Mapping[str, str]
    ) -> None:
        self._how, self._assessment, self._reasons = how, assessment, reasons
        self._groups: dict[str, list[Task]] = {}
        for task in tasks:
            self._groups.setdefault(task.group, []).append(task)
        self._results: dict[str, Result] = {}
        self._noted: set[str] = set()
        self._at_work: dict[str, Worker] = {}
        self._commons: WeakKeyDictionary[Worker, Touched] = WeakKeyDictionary()
        self._jobs = [
            Job(name, sum(task.cost.seconds for task in group), max(task.cost.memory for task in group))
            for name, group in self._groups.items()
        ]
        self._slots = min(how.jobs or default_slots(), len(self._jobs))
        self._threads = max(1, default_slots() // self._slots)
        self._shares = core_shares(self._slots, self._threads)
        self._count = len(tasks)

    def results(self) -> dict[str, Result]:
        with progress(self._how.title, self._jobs, self._slots, self._line, self._doing) as shown:
            run_jobs(
                self._jobs,
                self._slot,
                slots=self._slots,
                memory=memory_budget(),
                observer=shown,
                stop_after=lambda job, result: self._assessment.stop_after(job.name, result),
            )
        return self._results

    def _slot(self) -> WorkerSlot[Result]:
        cores = next(self._shares)

        def start() -> Worker:
            worker = self._how.worker(self._threads, -(-self._count // self._slots))
            worker.keep_to(cores)
            return worker

        return WorkerSlot(start, self._work)

    def _work(self, job: Job, worker: Worker) -> Result:
        shared: dict[str, Any] = {}
        self._at_work[job.name] = worker
        worker.seen = Touched()
        done: list[Result] = []
        for task in self._groups[job.name]:
            done.append(self._once(task, worker, shared))
            self._results[task.name] = done[-1]
        return next((result for result in done if result.failure), done[0])

    def _once(self, task: Task, worker: Worker, shared: dict[str, Any]) -> Result:
        began = time.monotonic()
        done = _work(task, worker, shared)
        taken = Result(seconds=time.monotonic() - began, why=self._reasons[task.name])
        if isinstance(done, Failure):
            return self._failed(task, worker, done, taken)
        return self._finished(task, worker, done, taken)

    def _common(self, worker: Worker) -> Touched:
        if worker not in self._commons:
            self._commons[worker] = Touched.of(worker.touched)
        return self._commons[worker]

    def _failed(self, task: Task, worker: Worker, failure: Failure, taken: Result) -> Result:
        if failure.of_work and self._how.is_cached:
            task.memo.forget(task.key)
        return replace(taken, failure=failure, asked=worker.asked)

    def _finished(self, task: Task, worker: Worker, done: Finished, taken: Result) -> Result:
        if not self._how.is_cached:
            if done.evidence:
                shutil.rmtree(done.evidence, ignore_errors=True)
            return replace(taken, facts=done.facts, folder=done.folder)
        memo = task.memo
        own = (*done.own, *([done.evidence] if done.evidence else ()))
        work = WorkDone(done.touched, self._common(worker), own)
        taken = replace(taken, facts=done.facts, folder=done.folder, asked=done.touched.asked)
        if not self._assessment.accept(task.name, taken):
            # An earlier result of the same inputs would hide this one.
            memo.forget(task.key)
            if not self._assessment.remember_all:
                return replace(taken, folder=done.evidence or done.folder)
        if done.evidence:
            shutil.rmtree(done.evidence, ignore_errors=True)
        entry = memo.remember(task.subject, task.key, done.facts, work, done.folder)
        if entry.not_remembered and entry.not_remembered not in self._noted:
            self._noted.add(entry.not_remembered)
            sys.stderr.write(f"{task.name} is not remembered: {entry.not_remembered}\n")
        return replace(taken, folder=entry.folder, not_remembered=entry.not_remembered)

    def _line(self, name: str, result: Result) -> Line:
        """Of a whole group."""
        tasks, line = self._groups[name], self._assessment.line
        if len(tasks) == 1 or result.failure:
            return line(tasks[0].name if len(tasks) == 1 else name, result)
        done = (task.name for task in tasks if task.name in self._results)
        lines = {name: line(name, self._results[name]) for name in done}
        worst = max(lines.values(), key=lambda shown: shown.look)
        return replace(
            worst, note="; ".join(f"{name}: {line.note}" for name, line in lines.items() if line.note)
        )

    def _doing(self, name: str) -> str:
        return self._at_work[name].doing if name in self._at_work else "starting its process"


def _work(task: Task, worker: Worker, shared: dict[str, Any]) -> Finished | Failure:
    """The work's outcome; what the machine is to blame for is told from what the work is, for all lanes."""
    try:
        return task.work(worker, shared)
    except WorkerDied as gone:
        try:
            # First: it puts the log in its place.
            ended = task.ended(gone, shared)
        except OSError as error:
            if not (trouble := of_error(error)):
                raise
        else:
            trouble = gone.trouble(task.log)
        return Failure.of(trouble, task.log) if trouble else ended
    except Refused as refused:
        return task.refused(refused, shared)
    except (OSError, MemoryError, InTrouble) as error:
        if not (trouble := of_error(error)):
            raise
        return Failure.of(trouble, task.log)
