"""Do named work: use what the memo has, give the rest to workers, and remember what passes."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from ci.engine.inputs import Touched, key_of
from ci.engine.jobs import Job, core_shares, default_slots, memory_budget, run_jobs
from ci.engine.memo import UNKNOWN_MAKER, CachedResult, Maker, Memo, processor_kind
from ci.engine.progress import Line, failed, progress
from ci.engine.runs import REFUSED, Repeats, Run, Runs
from ci.engine.trouble import MACHINE, Blame, InTrouble, Trouble, of_error
from ci.engine.workers.parent import Refused, Worker, WorkerDied, WorkerSlot
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Metric


@dataclass(frozen=True, slots=True)
class Failure:
    """Work without a result; `kind` is the step that failed, and `message` says what happened."""

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
    origin: str = ""
    """Of a cached one: `store`, `remote`, or the name of a CI system's cache."""
    seconds: float = 0.0
    why: str = ""
    """Why the work was done; empty if the result was remembered."""
    not_remembered: str = ""
    """Why the memo did not keep it."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """The variables that the work asked for and did not have (`Touched.asked`)."""
    maker: Maker = UNKNOWN_MAKER
    """Of a cached one."""
    runs: Runs = field(default_factory=Runs)
    """What the same work gave each time it was done, this time too."""


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
    """One program's work."""

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
    """The settings that are the same for all tasks."""

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
    repeats: Repeats = field(default_factory=Repeats)
    """What is the same when the work is done again."""


def line_of(result: Result) -> Line:
    if result.failure:
        return failed(f"{result.failure.kind}: {result.failure.message}")
    return Line("passed")


def do(
    tasks: Sequence[Task],
    how: RunOptions,
    *,
    accept: Callable[[str, Result], bool] = lambda name, result: True,
    line: Callable[[str, Result], Line] = lambda group, result: line_of(result),
    stop_after: Callable[[str, Result], bool] = lambda group, result: False,
    remember_all: bool = False,
) -> dict[str, Result]:
    """The result of every task by name; fewer if `stop_after` ended the work early.

    `accept` judges results. A remembered result that it refuses is done again, so that its files can be
    looked at. A new result that it refuses is not remembered, except with `remember_all`."""
    results, todo = _remembered(tasks, accept, how.repeats)
    # A key names files by root, and two repositories may have other files of equal names.
    same = {task.name: (key_of(task.key), task.memo.place) if how.share else task.name for task, _ in todo}
    first: dict[object, Task] = {}
    for task, _ in todo:
        first.setdefault(same[task.name], task)
    reasons = {task.name: why for task, why in todo}
    _announce(how, results, reasons, line)
    if first:
        results |= _run(first.values(), how, reasons, accept, line, stop_after, remember_all)
    for task, _ in todo:
        if (done := results.get(first[same[task.name]].name)) is not None:
            results.setdefault(task.name, done)
    for memo in {id(task.memo): task.memo for task in tasks}.values():
        memo.close()
    return {task.name: results[task.name] for task in tasks if task.name in results}


def do_again(
    tasks: Sequence[Task],
    how: RunOptions,
    is_same: Callable[[Task, Finished], bool],
    *,
    accept: Callable[[str, Result], bool],
    line: Callable[[str, Result], Line],
    threads: int,
    until: float,
) -> dict[str, Result]:
    """Do work of which there are cached results; none starts after `until`, a time of time.monotonic().

    `is_same` compares: what it confirms stays as it is in the cache, with anything else `do` would do."""
    sys.stderr.write(f"{how.title}: {len(tasks)} to do again\n")
    sys.stderr.flush()
    reasons = dict.fromkeys((task.name for task in tasks), "--recheck")
    results = _run(tasks, how, reasons, accept, line, is_same=is_same, threads=threads, until=until)
    for memo in {id(task.memo): task.memo for task in tasks}.values():
        memo.close()
    return results


def _remembered(
    tasks: Sequence[Task], accept: Callable[[str, Result], bool], repeats: Repeats
) -> tuple[dict[str, Result], list[tuple[Task, str]]]:
    results: dict[str, Result] = {}
    todo: list[tuple[Task, str]] = []
    for task in tasks:
        answer = task.memo.find(task.subject, task.key)
        if not isinstance(answer, CachedResult):
            todo.append((task, answer.why))
            continue
        result = Result(
            answer.result,
            answer.folder,
            None,
            True,
            answer.origin,
            asked=answer.asked,
            maker=answer.maker,
            runs=Runs(task.memo.runs(task.key), repeats),
        )
        if accept(task.name, result):
            results[task.name] = result
        else:
            todo.append((task, "what is remembered does not pass any more"))
    return results, todo


def cached_from(results: Iterable[Result]) -> dict[str, Metric]:
    """How many cached results came from where, for a report."""
    origins = Counter(result.origin for result in results if result.cached)
    return {"cached_from": dict(origins)} if origins else {}


def _announce(
    how: RunOptions,
    cached: Mapping[str, Result],
    reasons: Mapping[str, str],
    line: Callable[[str, Result], Line],
) -> None:
    origins = Counter(result.origin for result in cached.values() if result.origin != "store")
    more = "".join(f" ({count} from {origin})" for origin, count in origins.items())
    sys.stderr.write(f"{how.title}: {len(cached)} cached{more}, {len(reasons)} to do\n")
    if how.explain:
        lines = [f"{name}: {why}" for name, why in reasons.items()]
    else:
        lines = [f"{count} because {why}" for why, count in Counter(reasons.values()).items()]
    if how.show_cached:
        lines += [f"cached    {name}: {line(name, result).note}" for name, result in cached.items()]
    sys.stderr.writelines(f"  {line}\n" for line in lines)
    sys.stderr.flush()


def _run(
    tasks: Iterable[Task],
    how: RunOptions,
    reasons: Mapping[str, str],
    accept: Callable[[str, Result], bool],
    line: Callable[[str, Result], Line],
    stop_after: Callable[[str, Result], bool] = lambda group, result: False,
    remember_all: bool = False,
    is_same: Callable[[Task, Finished], bool] | None = None,
    threads: int = 0,
    until: float = math.inf,
) -> dict[str, Result]:
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.group, []).append(task)
    results: dict[str, Result] = {}
    noted: set[str] = set()
    at_work: dict[str, Worker] = {}
    commons: WeakKeyDictionary[Worker, Touched] = WeakKeyDictionary()

    def common_of(worker: Worker) -> Touched:
        if worker not in commons:
            commons[worker] = Touched.of(worker.touched)
        return commons[worker]

    def once(task: Task, worker: Worker, shared: dict[str, Any]) -> Result:
        began = time.monotonic()
        done = _work(task, worker, shared)
        taken = Result(seconds=time.monotonic() - began, why=reasons[task.name])
        earlier, processor, rechecked = task.memo.runs(task.key), processor_kind(), is_same is not None

        def runs(run: Run) -> Runs:
            return Runs((*earlier, run), how.repeats)

        if isinstance(done, Failure):
            failed_run = Run(done.kind, processor, rechecked=rechecked)
            if done.of_work:
                task.memo.forget(task.key, worker.seen, common_of(worker), worker.written, failed_run)
                taken = replace(taken, runs=runs(failed_run))
            return replace(taken, failure=done, asked=worker.asked)
        own = (*done.own, *([done.evidence] if done.evidence else ()))
        run = Run.of(done.facts, processor, how.repeats)
        if is_same and is_same(task, done):
            task.memo.ran(task.key, run, done.touched, common_of(worker), own)
            for folder in filter(None, (done.folder, done.evidence)):
                shutil.rmtree(folder, ignore_errors=True)
            return replace(taken, runs=runs(run))
        taken = replace(taken, facts=done.facts, folder=done.folder, asked=done.touched.asked)
        run = replace(run, rechecked=rechecked)
        if not accept(task.name, taken):
            run = run if how.repeats.verdict_of(done.facts) else replace(run, verdict=REFUSED)
            kept = None if remember_all else run
            # An earlier result of the same inputs would hide this one.
            task.memo.forget(task.key, worker.seen, common_of(worker), worker.written, kept)
            if not remember_all:
                return replace(taken, folder=done.evidence or done.folder, runs=runs(run))
        if done.evidence:
            shutil.rmtree(done.evidence, ignore_errors=True)
        entry = task.memo.remember(
            task.subject,
            task.key,
            done.facts,
            done.touched,
            done.folder,
            common_of(worker),
            own,
            threads,
            run,
        )
        if entry.not_remembered and entry.not_remembered not in noted:
            noted.add(entry.not_remembered)
            sys.stderr.write(f"{task.name} is not remembered: {entry.not_remembered}\n")
        return replace(taken, folder=entry.folder, not_remembered=entry.not_remembered, runs=runs(run))

    def work(job: Job, worker: Worker) -> Result:
        shared: dict[str, Any] = {}
        at_work[job.name] = worker
        worker.seen, worker.written = Touched(), []
        done: list[Result] = []
        for task in groups[job.name]:
            if done and time.monotonic() >= until:
                break
            done.append(once(task, worker, shared))
            results[task.name] = done[-1]
        return next((result for result in done if result.failure), done[0])

    jobs = [
        Job(name, sum(task.cost.seconds for task in tasks), max(task.cost.memory for task in tasks))
        for name, tasks in groups.items()
    ]
    slots = min(how.jobs or default_slots() // (threads or 1) or 1, len(jobs))
    threads, count = threads or max(1, default_slots() // slots), sum(map(len, groups.values()))
    shares = core_shares(slots, threads)

    def slot() -> WorkerSlot[Worker, Result]:
        cores = next(shares)

        def start() -> Worker:
            worker = how.worker(threads, -(-count // slots))
            worker.keep_to(cores)
            return worker

        return WorkerSlot(start, work)

    def line_of_group(name: str, result: Result) -> Line:
        tasks = groups[name]
        if len(tasks) == 1 or result.failure:
            return line(tasks[0].name if len(tasks) == 1 else name, result)
        lines = {task.name: line(task.name, results[task.name]) for task in tasks if task.name in results}
        worst = max(lines.values(), key=lambda shown: shown.look)
        return replace(
            worst, note="; ".join(f"{name}: {line.note}" for name, line in lines.items() if line.note)
        )

    def doing(name: str) -> str:
        return at_work[name].doing if name in at_work else "starting its process"

    with progress(how.title, jobs, slots, line_of_group, doing) as shown:
        run_jobs(
            jobs,
            slot,
            slots=slots,
            memory=memory_budget(),
            observer=shown,
            stop_after=lambda job, result: stop_after(job.name, result),
            until=until,
        )
    return results


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


def empty_folder(path: Path) -> Path:
    """An empty folder of this name."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path
