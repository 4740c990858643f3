"""A lane's work in steps: what a lane says of each, and how all are cached, started and ended."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ci.engine.jobs import Job
from ci.engine.memo import Memo
from ci.engine.progress import Line
from ci.engine.recheck import FILLED, RepeatableWork, Repeats
from ci.engine.watch import Touched
from ci.engine.work import Assessment, Failure, Finished, Result, RunOptions, do, line_of
from ci.engine.workers.parent import Refused, Worker, WorkerDied, WorkerSpec
from ci.pipeline.models.own_packages import NO_PACKAGES, OwnPackages
from ci.pipeline.stage import Named, WorkPlan, by_packages, memos_of
from ci.pipeline.suite import AnyProgram
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, EnvironmentLacking, ToolkitError
from provisioning.base.files import empty_folder
from provisioning.base.findings import Metric

N = TypeVar("N", bound=Named)
P = TypeVar("P", bound=AnyProgram[Any, Any])
Asker = Callable[..., dict[str, Any]]
"""Gives the reply to a request of these fields."""


@dataclass
class Ask:
    """Asks the worker for the parts of a step's work on one program."""

    worker: Worker
    log: Path
    into: Path
    scratch: Path
    """A folder of the whole step's; what lies there is gone after it."""
    shared: dict[str, Any]
    """Of all programs of a group, which one worker works on."""
    touched: Touched = field(default_factory=Touched)

    def __call__(self, **request: Any) -> dict[str, Any]:
        """The reply to a request. Raises Refused and Gone."""
        request = {"log": str(self.log.absolute()), "into": str(self.into.absolute()), **request}
        reply = self.worker.ask(request)
        self.touched |= Touched.of(reply.pop("touched", {}))
        return reply

    def once(self, part: str, **request: Any) -> dict[str, Any]:
        """The reply to the first such request of the group, or its error; `into` is a folder of that part."""
        if part not in self.shared:
            before, self.touched = self.touched, Touched()
            outcome: dict[str, Any] | Refused | WorkerDied
            try:
                into = empty_folder(self.scratch / part)
                outcome = {**self(into=str(into), **request), "into": str(into)}
            except (Refused, WorkerDied) as error:
                outcome = error
            self.shared[part] = outcome, self.touched
            self.touched = before
        outcome, touched = self.shared[part]
        self.touched |= touched
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@dataclass(frozen=True)
class Step(ABC, Generic[N]):
    """One piece of a lane's work on its programs: what the cache remembers of each."""

    keeps_files: ClassVar[bool] = False
    """Whether the files that it writes are its result; else they are there to be looked at if it fails."""
    leaves_files: ClassVar[bool] = False
    """Whether its log and files stay with the logs: its work itself removes what nobody will look at."""
    remembers_all: ClassVar[bool] = False
    """Whether results that it does not accept are remembered too."""
    done_once: ClassVar[bool] = False
    """Whether programs with equal keys share a result."""
    own_packages: ClassVar[bool] = True
    """Whether the user's code runs in it, with the packages that its suite names."""
    shows_cached: ClassVar[bool] = False
    """Whether each cached result's line is printed too."""
    log_in_folder: ClassVar[str] = ""
    """The name of its log where that is one of its result's files."""
    repeats: ClassVar[Repeats | None] = None
    """What is the same when its work is done twice; None: it is not compared."""

    plan: WorkPlan[N]

    @property
    @abstractmethod
    def kind(self) -> str:
        """Names its cached results."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Of its progress bar."""

    @abstractmethod
    def environment(self, own: OwnPackages) -> Mapping[str, str]:
        """Of its workers, and of what the user's code reads there."""

    @abstractmethod
    def worker(self, own: OwnPackages, threads: int, count: int) -> WorkerSpec:
        """What starts a worker with so many threads for about so many programs."""

    def start(self, own: OwnPackages, threads: int, count: int) -> Worker:
        return Worker(replace(self.worker(own, threads, count), until=self.plan.work.until))

    def start_filled(self, own: OwnPackages, threads: int, count: int) -> Worker:
        """A worker that no other work shares, whose fresh memory is filled."""
        spec = self.worker(own, threads, count)
        return Worker(replace(spec, environment={**spec.environment, **FILLED}))

    @abstractmethod
    def key(self, program: N, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        """What its result depends on and is known before any work; `environ` is the workers'."""

    @abstractmethod
    def work(self, program: N, ask: Ask) -> Mapping[str, Any]:
        """The facts. Raises Refused and Gone."""

    def cost(self, program: N) -> Job:
        return Job(program.name)

    def group(self, program: N) -> str:
        """Programs of one group are worked on one after another by one worker, and share what they ask."""
        return program.name

    def folder(self, program: N) -> Path:
        """For the files of a program that failed."""
        return self.plan.logs / program.name

    def log(self, program: N) -> Path:
        return self.plan.logs / f"{program.name}.log"

    def reads(self, program: N) -> tuple[Path, ...]:
        """Folders of earlier steps' results: their content is in the key."""
        return ()

    def accepts(self, program: N, result: Result) -> bool:
        """Whether a result is one to remember, and to take when it is."""
        return True

    def stops_after(self, program: N, result: Result) -> bool:
        """Whether the programs that are left are not worked on."""
        return False

    def line(self, program: N, result: Result) -> Line:
        return line_of(result)

    def ended(self, program: N, gone: WorkerDied, log: Path) -> Failure:
        """What it says of a program that its worker died of."""
        fix = "give it longer with --timeout" if gone.kind == "timeout" else session("diagnose", log)
        return Failure(gone.kind, gone.sentence(log), fix, log)


@dataclass(frozen=True)
class StepTask(Generic[N]):
    """A step's work on one program, as the engine takes it."""

    step: Step[N]
    program: N
    memo: Memo
    key: Mapping[str, Metric]
    scratch: Path
    whose: str = ""
    """The suite or the model: others may have programs of the same name."""

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def subject(self) -> str:
        return f"{self.name} {self.whose}".rstrip()

    @property
    def group(self) -> str:
        return self.step.group(self.program)

    @property
    def cost(self) -> Job:
        return self.step.cost(self.program)

    @property
    def log(self) -> Path:
        return self.step.log(self.program)

    def work(self, worker: Worker, shared: dict[str, Any]) -> Finished | Failure:
        step, logs = self.step, self.step.plan.logs
        keep = step.leaves_files or step.plan.work.keep
        into = self.memo.scratch() if step.keeps_files else empty_folder(step.folder(self.program))
        shared[INTO] = into
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        log = into / step.log_in_folder if step.log_in_folder else self.log
        ask = Ask(worker, log, into, self.scratch, shared)
        facts = step.work(self.program, ask)
        if not step.leaves_files:
            self.log.unlink(missing_ok=True)
        # The worker's own logs are elsewhere when work is done twice.
        own = (logs, worker.setup.logs, self.scratch, *step.reads(self.program))
        if step.keeps_files:
            return Finished(facts, ask.touched, into, own=own)
        return Finished(facts, ask.touched, evidence=None if keep else into, own=(into, *own))

    def elsewhere(self, scratch: Path) -> StepTask[N]:
        """The same work with other folders for what it writes."""
        plan = self.step.plan
        step = replace(self.step, plan=replace(plan, logs=plan.logs / "recheck" / self.step.kind))
        return replace(self, step=step, scratch=scratch)

    def ended(self, gone: WorkerDied, shared: Mapping[str, Any]) -> Failure:
        self._put_log(shared)
        return self.step.ended(self.program, gone, self.log)

    def refused(self, refused: Refused, shared: Mapping[str, Any]) -> Failure:
        self._put_log(shared)
        return Failure(
            refused.kind,
            refused.message,
            refused.fix,
            self.log,
            exit_code=refused.exit_code,
            details=refused.details,
        )

    def _put_log(self, shared: Mapping[str, Any]) -> None:
        """The log of a result that is none, for the user; its other files go."""
        if not self.step.keeps_files or INTO not in shared:
            return
        log = shared[INTO] / self.step.log_in_folder
        try:
            if self.step.log_in_folder and log.is_file():
                shutil.copyfile(log, self.log)
        finally:
            shutil.rmtree(shared[INTO], ignore_errors=True)


@contextmanager
def asking(setup: WorkerSpec, log: Path) -> Iterator[Asker]:
    """For commands whose result is not cached: asks one worker, which starts with the first request."""
    workers: list[Worker] = []

    def ask(**request: Any) -> dict[str, Any]:
        if not workers:
            workers.append(Worker(setup))
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            reply = workers[0].ask({"log": str(log.absolute()), **request})
        except WorkerDied as gone:
            if trouble := gone.trouble(log):
                raise EnvironmentLacking(trouble.message, fix=trouble.fix) from gone
            late = "give it longer with --timeout" if gone.kind == "timeout" else ""
            raise CheckFailed(gone.sentence(log), fix=late or session("diagnose", log)) from gone
        log.unlink(missing_ok=True)
        return reply

    try:
        yield ask
    finally:
        for worker in workers:
            worker.end()


def require_done(result: Result) -> Result:
    """For commands that work on one program. Raises the error of a failure."""
    if failure := result.failure:
        raise ToolkitError(failure.message, fix=failure.fix, exit_code=failure.exit_code)
    return result


INTO = "into"
"""The folder of the program that a group's worker is at."""


def run_step(step: Step[P], programs: Iterable[P]) -> dict[str, Result]:
    results: dict[str, Result] = {}
    store = step.plan.selection.store
    programs = list(programs)
    kinds = by_packages(programs, store) if step.own_packages else [(NO_PACKAGES, programs)]
    for own, mine in kinds:
        with tempfile.TemporaryDirectory(prefix=f"qnn-ci-{step.kind}-") as scratch:
            results |= run_tasks(step, tasks_of(step, own, mine, Path(scratch)), own)
    return results


def run_tasks(
    step: Step[N], tasks: Sequence[StepTask[N]], own: OwnPackages = NO_PACKAGES
) -> dict[str, Result]:
    """The result of each task by name; fewer if the step stopped after one."""
    named, work = {task.name: task.program for task in tasks}, step.plan.work

    def accept(name: str, result: Result) -> bool:
        return step.accepts(named[name], result)

    def line(name: str, result: Result) -> Line:
        return step.line(named[name], result) if name in named else line_of(result)

    def stop_after(group: str, result: Result) -> bool:
        return group in named and step.stops_after(named[group], result)

    start = partial(step.start, own)
    how = RunOptions(
        step.title,
        start,
        work.jobs,
        work.why,
        share=step.done_once,
        show_cached=step.shows_cached,
    )
    assessment = Assessment(accept, line, stop_after, step.remembers_all)
    results = do(tasks, how, assessment)
    if step.repeats is not None:
        twice = replace(how, worker=partial(step.start_filled, own), is_cached=False)
        step.plan.repeatable.extend(
            RepeatableWork(step.kind, task.name, task.elsewhere, twice, step.repeats, step.plan.logs)
            for task in tasks
            if (result := results.get(task.name)) and not result.failure
        )
    return results


def tasks_of(step: Step[P], own: OwnPackages, programs: Sequence[P], scratch: Path) -> list[StepTask[P]]:
    work, environ = step.plan.work, step.environment(own)
    # A remembered program without files has none that --keep could keep.
    reuse = work.cache and (step.keeps_files or not work.keep)
    memos = memos_of(programs, step.kind, step.plan.selection.store, environ, reuse=reuse, own=own)
    tasks = []
    for program in programs:
        memo = memos[program.suite]
        key = {**step.key(program, memo, environ), **own.key()}
        whose = memo.roots.name(str(program.suite)) + program.model_without_suite
        tasks.append(StepTask(step, program, memo, key, scratch, whose))
    return tasks
