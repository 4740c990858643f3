"""Do work in steps. Each result is kept under the digest of everything that decides it. A step says how a
program is identified, how its work is done, and what is kept of it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ci.work.child import NOT_CACHED
from ci.work.jobs import Job, Line, WorkOptions
from ci.work.outcome import Failure, Refused, Result, TaskOutcome, line_of
from ci.work.plain import Facts, read
from ci.work.processes import ChildTask, Home
from ci.work.request import key_of, sent_request
from ci.work.results import CachedResults, ExportReply, Key, Lines, relocate_lines, surroundings
from ci.work.schedule import Exports, run_tasks
from ci.work.template import TEMPORARY
from ci.work.trouble import trouble_of_error
from provisioning.base.errors import ToolkitError
from provisioning.base.files import empty_folder
from provisioning.base.findings import Metric
from provisioning.base.settings import Selection

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["NotCached", "NotExported", "Step", "WorkPlan", "require_done", "run_step"]


class Named(Protocol):
    @property
    def name(self) -> str: ...


P = TypeVar("P", bound=Named)


class Packages(Protocol):
    """The packages that the user's code may import beside ours."""

    @property
    def folder(self) -> Path | None: ...

    @property
    def projects(self) -> tuple[Path, ...]: ...

    def key(self) -> Metric: ...


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """The programs, or other things with a name, to work on, and how."""

    programs: tuple[Named, ...]
    selection: Selection
    work: WorkOptions
    logs: Path


class NotCached(Exception):
    """Raised if two different results could have the same key: nothing is then looked up or kept. The message
    says why."""


class NotExported(NotCached):
    """Raised if the model has no graph. Its work is done all the same, and reports what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Step(Generic[P]):
    """One step of a lane's work on its programs. `program` is the plan's type of program."""

    plan: WorkPlan
    kind: str
    """The name under which its results are cached."""
    title: str
    """The title of its progress bar."""
    function: str
    """MODULE:FUNCTION, which does the work of a request."""
    home: Callable[[Any], Home]
    """Returns the home where the user's code finds these packages of its own; None means that it has none."""
    request: Callable[[P], DataclassInstance]
    """Returns the function's request for a program (ci/work/request.py). The result depends on the request,
    on what the home has and on what an export says. The function also receives the log and the folders to
    write to: `into` for the result's files, `scratch` for temporary files, `export_folder` for those of its
    export."""
    reply: Any = None
    """The dataclass of a reply, new or cached; None if the step reads no reply."""
    keeps_files: bool = False
    """Whether the files that it writes are its result. If not, they only help to examine a failure."""
    cost: Callable[[P], Job] = lambda program: Job(program.name)
    keeps: Callable[[P, Result], bool] = lambda program, result: True
    """Whether a result is kept in the cache, and reused if it is there. The log of one that is not kept
    stays."""
    line: Callable[[P, Result], Line] = lambda program, result: line_of(result)
    export: Callable[[P], ChildTask] | None = None
    """Returns the task that builds the program's model; programs whose tasks have the same name share it."""
    common: Callable[[P], ChildTask | None] = lambda program: None
    """Returns the task that begins the work of several programs, if this one is among them: see
    ChildTask.common. Programs whose tasks have the same name share it."""
    export_key: Callable[[P, Mapping[str, object]], Key] = lambda program, reply: {}
    """Returns the part of the key that depends on the model. Raises NotCached, or Refused for this program
    only."""
    subject: Callable[[P], str] = lambda program: str(program.name)
    """Returns a text that identifies the program among those of all suites."""
    remains_of: Callable[[P, Failure, Path], dict[str, object] | None] = lambda *_: None
    """Returns the result that a process left in its folder before it died, if there is one."""


@dataclass
class _ProgramState(Generic[P]):
    """The state of a program while its step runs."""

    program: P
    lines: Lines = field(default_factory=dict)
    """The lines of its exported model."""
    variables: tuple[str, ...] = ()
    """The variables that its code names and that are set, but that it did not receive."""
    key: Key | None = None
    """None before its model is exported, and if its result is not cached."""
    not_cached: str = ""
    """The reason why its result is not cached."""
    exported: bool = True
    """Whether its model has a graph."""
    reason: str = ""
    """The reason why it is worked on, instead of reusing a result."""
    folder: Path | None = None
    """The folder that its work writes to; None before the work begins."""
    result: Result | None = None


class _StepRun(Generic[P]):
    """One step of the programs that have the same packages. A program goes through it like this: its model is
    exported (`_export_task`), its result is looked up (`_settle`, `_look_up`) or worked on (`_task`), and the
    outcome is kept or becomes a failure (`_conclude`)."""

    def __init__(self, step: Step[P], programs: Sequence[P], own: Packages | None) -> None:
        self._step, self._work, self._logs = step, step.plan.work, step.plan.logs
        self._programs = {program.name: _ProgramState(program) for program in programs}
        store = step.plan.selection.store
        self._cached = CachedResults(store, step.kind)
        self._home = step.home(own)
        base = surroundings(
            store, self._home.environment, own.folder if own else None, own.projects if own else ()
        )
        self._key_of_all: Key = {**base, "suite": own.key() if own else {}}
        # A cached program without files has none that --keep could keep.
        self._may_reuse = self._work.cache and (step.keeps_files or not self._work.keep)
        self._scratch = Path()
        self._exports: dict[str, ChildTask] = {}

    def results(self) -> dict[str, Result]:
        title, jobs = self._step.title, self._work.jobs
        with tempfile.TemporaryDirectory(prefix=f"qnn-ci-{self._step.kind}-") as scratch:
            self._scratch = Path(scratch)
            tasks = list(self._tasks())
            if not self._exports and len(self._programs) > 1:
                count = len(self._programs) - len(tasks)
                sys.stderr.write(f"{title}: {count} cached, {len(tasks)} to do\n")
            run_tasks(
                tasks, self._home, title, self._line, jobs, exports=Exports(self._exports, self._settle)
            )
            for task in tasks:
                if task.common:
                    # What fails in it is done again by each program alone, which has a log of its own.
                    task.common.log.unlink(missing_ok=True)
        self._cached.close()
        return {name: state.result for name, state in self._programs.items() if state.result}

    def _tasks(self) -> Iterator[ChildTask]:
        """Yield the task of each program whose model is to be exported, or whose result is not cached."""
        for state in self._programs.values():
            if export := self._export_task(state):
                self._exports.setdefault(export.name, export)
                yield ChildTask(
                    state.program.name,
                    "",
                    {},
                    0,
                    self._log(state),
                    cost=self._step.cost(state.program),
                    export=export.name,
                    common=self._common_task(state, export.name),
                )
            elif isinstance(task := self._look_up(state, {}), ChildTask):
                yield task

    def _export_task(self, state: _ProgramState[P]) -> ChildTask | None:
        if not self._step.export:
            return None
        task = self._step.export(state.program)
        folder = {"export_folder": str(self._folder_of_export(task.name))}
        return replace(task, request={**task.request, **folder}, until=self._work.until)

    def _common_task(self, state: _ProgramState[P], export: str) -> ChildTask | None:
        task = self._step.common(state.program)
        if task is None:
            return None
        into = self._scratch / "common" / hashlib.sha256(task.name.encode()).hexdigest()[:16]
        folders = {"into": str(into), "export_folder": str(self._folder_of_export(export))}
        return replace(task, request={**task.request, **folders}, until=self._work.until)

    def _folder_of_export(self, name: str) -> Path:
        """The folder for files that all programs of an export use."""
        return self._scratch / hashlib.sha256(name.encode()).hexdigest()[:16]

    def _settle(self, task: ChildTask, reply: Mapping[str, object]) -> ChildTask | TaskOutcome:
        """Decide what to do with a program whose model has been exported."""
        state, exported = self._programs[task.name], read(ExportReply, reply)
        environ = {*self._home.environment, *TEMPORARY}
        state.lines = exported.lines
        state.variables = tuple(name for name in _variables_named_in(exported.modules) if name not in environ)
        try:
            libraries = self._digests_of(exported.libraries)
            return self._look_up(
                state, {"libraries": libraries, **self._step.export_key(state.program, reply)}
            )
        except NotCached as error:
            state.not_cached = state.reason = str(error)
            state.exported = not isinstance(error, NotExported)
            return self._begin(state)
        except Refused as refused:
            return Failure.refused(refused, self._exports[task.export].log)

    def _digests_of(self, libraries: Sequence[str]) -> list[Metric]:
        try:
            return [[Path(library).name, self._cached.digest(Path(library))] for library in libraries]
        except OSError as error:
            raise NotCached(f"its code has loaded {error.filename}, which cannot be read") from error

    def _look_up(self, state: _ProgramState[P], model: Key) -> ChildTask | TaskOutcome:
        """Return the work to do, or the outcome if the result is cached."""
        request_key = key_of(self._step.request(state.program), self._cached.digest)
        if clash := request_key.keys() & {*self._key_of_all, *model}:
            raise ValueError(f"{self._step.kind} asks for {sorted(clash)}, which its key has anyway")
        state.key = {**self._key_of_all, **request_key, **model}
        if self._may_reuse:
            state.result = self._cached_result(state, state.key)
            if state.result:
                return {}
            state.reason = self._cached.difference(self._step.subject(state.program), state.key)
        return self._begin(state)

    def _cached_result(self, state: _ProgramState[P], key: Key) -> Result | None:
        cached = self._cached.find(key)
        facts = relocate_lines(cached.facts, cached.facts.get("lines", {}), state.lines) if cached else None
        if not cached or facts is None:
            return None
        result = replace(self._result(state, facts), folder=cached.folder, cached=True)
        return result if self._step.keeps(state.program, result) else None

    def _result(self, state: _ProgramState[P], facts: Facts) -> Result:
        record = read(self._step.reply, facts) if self._step.reply else None
        return Result(facts, record=record, variables=state.variables)

    def _begin(self, state: _ProgramState[P]) -> ChildTask | TaskOutcome:
        try:
            return self._task(state)
        except OSError as error:
            state.result = self._failure_of_machine(state, error)
            return {}

    def _task(self, state: _ProgramState[P]) -> ChildTask:
        step, name, log = self._step, state.program.name, self._log(state)
        state.folder = self._cached.scratch() if step.keeps_files else empty_folder(self._logs / name)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        export = step.export(state.program).name if step.export else ""
        request = sent_request(step.request(state.program))
        folders = {
            "into": str(state.folder.absolute()),
            "scratch": str(self._scratch / "programs" / name),
            "export_folder": str(self._folder_of_export(export)),
        }
        if clash := request.keys() & folders:
            raise ValueError(f"{step.kind} asks for {sorted(clash)}, which each task has")
        return ChildTask(
            name,
            step.function,
            {**request, **folders},
            self._work.timeout,
            log,
            cost=step.cost(state.program),
            export=export,
            until=self._work.until,
        )

    def _log(self, state: _ProgramState[P]) -> Path:
        return self._logs / f"{state.program.name}.log"

    def _line(self, name: str, outcome: TaskOutcome) -> Line:
        state = self._programs[name]
        result = state.result = state.result or self._conclude(state, outcome)
        line = self._step.line(state.program, result)
        if self._work.why and state.reason:
            sys.stderr.write(f"  {name}: {state.reason}\n")
        return Line("cached", line.note, 0.0) if result.cached else line

    def _conclude(self, state: _ProgramState[P], outcome: TaskOutcome) -> Result:
        try:
            if isinstance(outcome, Failure) and not outcome.details and state.folder:
                outcome = self._step.remains_of(state.program, outcome, state.folder) or outcome
            if isinstance(outcome, dict):
                return self._finish(state, outcome)
            return self._fail(state, outcome)
        except OSError as error:
            return self._failure_of_machine(state, error)

    def _failure_of_machine(self, state: _ProgramState[P], error: OSError) -> Result:
        if not (trouble := trouble_of_error(error)):
            raise error
        return Result(failure=Failure.of(trouble, self._log(state)))

    def _fail(self, state: _ProgramState[P], failure: Failure) -> Result:
        # What has not begun failed while its model was exported.
        exported = bool(state.folder and state.exported) or not self._step.export
        failure = replace(failure, exported=exported)
        if state.folder and self._step.keeps_files:
            shutil.rmtree(state.folder, ignore_errors=True)
        if failure.is_repeatable and state.key:
            self._cached.forget(state.key)
        return Result(failure=failure, variables=state.variables)

    def _finish(self, state: _ProgramState[P], reply: dict[str, object]) -> Result:
        step, into = self._step, state.folder
        assert into is not None
        if reason := str(reply.get(NOT_CACHED) or ""):
            if state.key:
                self._cached.forget(state.key)
            state.key, state.not_cached = None, state.not_cached or reason
        if step.export:
            reply = {**reply, "lines": dict(state.lines)}
        result = replace(self._result(state, reply), folder=into)
        if not step.keeps(state.program, result):
            if state.key:
                # An earlier result of the same key would hide this one.
                self._cached.forget(state.key)
            return result
        if not self._work.keep:
            self._log(state).unlink(missing_ok=True)
            if not step.keeps_files:
                shutil.rmtree(into, ignore_errors=True)
        return self._keep(state, replace(result, folder=into if step.keeps_files else None), reply)

    def _keep(self, state: _ProgramState[P], result: Result, reply: dict[str, object]) -> Result:
        """Cache the result; the returned one has its files in the cache."""
        reason = state.not_cached
        if state.key:
            try:
                subject = self._step.subject(state.program)
                cached = self._cached.keep(subject, state.key, reply, result.folder)
                return replace(result, facts=cached.facts, folder=cached.folder)
            except OSError as error:
                reason = error.strerror or str(error)
        sys.stderr.write(f"{state.program.name} is not cached: {reason}\n")
        return result


def _variables_named_in(modules: Iterable[str]) -> list[str]:
    """The user's variables that are set and that one of these modules names in a string."""
    paths = (path for path in map(Path, modules) if path.is_file())
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in paths)
    names = {name for text in texts for name in re.findall(r"""["']([A-Za-z_][A-Za-z0-9_]*)["']""", text)}
    return sorted(name for name in names & os.environ.keys() if not name.startswith("QNN_CI_"))


def run_step(step: Step[P], programs: Sequence[P], own: Packages | None = None) -> dict[str, Result]:
    """Return the result of each program by name."""
    return _StepRun(step, programs, own).results() if programs else {}


def require_done(result: Result) -> Result:
    """Return the result, or raise the error of a failure. For commands that work on one program."""
    if failure := result.failure:
        raise ToolkitError(failure.message, fix=failure.fix, exit_code=failure.exit_code)
    return result
