"""Work in steps, each kept under the digest of all that decides it: what a program is known by, how its work
is done, and what is kept of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ci.jobs import Job, Line, WorkOptions
from ci.outcome import Failure, Refused, Result, WorkerDied, failure_of, line_of
from ci.plain import Facts, as_json, read
from ci.results import (
    CachedResults,
    ExportReply,
    Key,
    Lines,
    OfThisRun,
    relocated,
    surroundings,
)
from ci.trouble import of_error
from ci.work import TEMPORARY, ChildTask, Exports, Home, Outcome, run
from provisioning.base.errors import ToolkitError
from provisioning.base.files import empty_folder
from provisioning.base.findings import Metric
from provisioning.base.settings import Selection


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Packages(Protocol):
    """What the user's code may import beside our packages."""

    @property
    def folder(self) -> Path | None: ...

    def key(self) -> Metric: ...


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """What is done with which programs, or with what else has a name."""

    programs: tuple[Named, ...]
    selection: Selection
    work: WorkOptions
    logs: Path


class NotCached(Exception):
    """Two results that differ could have one key: nothing is looked up, and nothing is kept. Says why."""


def _name_of(program: Named) -> str:
    return program.name


def _unknown(program: Named) -> str:
    return ""


def _cheap(program: Named) -> Job:
    return Job(program.name)


def _any(program: Named, result: Result) -> bool:
    return True


def _line_of(program: Named, result: Result) -> Line:
    return line_of(result)


def _nothing(program: Named, gone: WorkerDied, folder: Path) -> None:
    return None


def _no_rows(program: Named, reply: Mapping[str, object]) -> Key:
    return {}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One piece of a lane's work on its programs. `program` is what its plan has of them."""

    plan: WorkPlan
    kind: str
    """Names its cached results."""
    title: str
    """Of its progress bar."""
    function: str
    """MODULE:FUNCTION, which does the work of a request."""
    home: Callable[[Any], Home]
    """Where the user's code has these packages of its own; None where it has none."""
    request: Callable[[Any], Mapping[str, object]]
    """What the function gets of a program, beside the folders and the log to write to: `into` for the
    result's files, `scratch` for what the program needs meanwhile, and `shared` of its export."""
    key: Callable[[Any, CachedResults], Key]
    """What the result depends on, beside what the home has and an export says."""
    reply: Any = None
    """The dataclass of a reply, new or cached; None of a step that reads none."""
    own_packages: bool = True
    """Whether the user's code runs in it, with the packages that its suite names."""

    cost: Callable[[Any], Job] = _cheap
    accepts: Callable[[Any, Result], bool] = _any
    """Whether a result is one to keep, and to take when it is there."""
    line: Callable[[Any, Result], Line] = _line_of

    export: Callable[[Any], ChildTask] | None = None
    """What builds the program's model; programs of one name share it."""
    export_key: Callable[[Any, Mapping[str, object]], Key] = _no_rows
    """What the result depends on of the model. Raises NotCached, or Refused of this program alone."""
    subject: Callable[[Any], str] = _name_of
    """What tells a program from all others, of whatever suite."""
    code: Callable[[Any], str] = _unknown
    """The digest of all that an export of this run read; empty if that is not known."""

    keeps_files: bool = False
    """Whether the files that it writes are its result; else they are there to be looked at if it fails."""
    leaves_files: bool = False
    """Whether its log and files stay with the logs: its work itself removes what nobody will look at."""
    remembers_all: bool = False
    """Whether results that it does not accept are kept too, for when it does."""
    log_in_folder: str = ""
    """The name of its log where that is one of its result's files."""

    left: Callable[[Any, WorkerDied, Path], dict[str, object] | None] = _nothing
    """What a process that died has left in its folder that is a result."""
    ended: Callable[[Any, WorkerDied, Path], Failure] | None = None
    """What it says, by the log, of a program whose process died, where the machine is not to blame."""


@dataclass(frozen=True)
class _Export:
    """What an export says of its model, now or in an earlier stage of this run."""

    lines: Lines = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    """The variables that its code names, that are set, and that it was not given."""
    key: Key = field(default_factory=dict)
    """Of the program, as an earlier stage found it."""


class _StepRun:
    """The programs of one step that have the same packages."""

    def __init__(self, step: Step, programs: Sequence[Named], own: Packages | None) -> None:
        self._step, self._own, self._programs = step, own, {row.name: row for row in programs}
        self._work, store = step.plan.work, step.plan.selection.store
        self._logs = step.plan.logs
        self._cached, self._this_run = CachedResults(store, step.kind), OfThisRun(store, os.environ)
        self._home = step.home(own)
        base = surroundings(store, self._home.environment, own.folder if own else None)
        self._base: Key = {**base, "suite": own.key() if own else {}}
        # A cached program without files has none that --keep could keep.
        self._may_reuse = self._work.cache and (step.keeps_files or not self._work.keep)
        self._keys: dict[str, Key] = {}
        self._reasons: dict[str, str] = {}
        """Why a program is worked on."""
        self._uncached: dict[str, str] = {}
        """Why a result is not kept."""
        self._exports: dict[str, _Export] = {}
        self._folders: dict[str, Path] = {}
        self._shared = Path()
        self._results: dict[str, Result] = {}

    def results(self) -> dict[str, Result]:
        step = self._step
        with tempfile.TemporaryDirectory(prefix=f"qnn-ci-{step.kind}-") as shared:
            self._shared = Path(shared)
            tasks, exports = [], dict[str, ChildTask]()
            for program in self._programs.values():
                export = self._export_of(program)
                if export and not self._known_in_this_run(program):
                    request = {**export.request, "export_folder": str(self._folder_of_export(export.name))}
                    exports.setdefault(export.name, replace(export, request=request, until=self._work.until))
                    tasks.append(
                        ChildTask(program.name, "", {}, 0, cost=step.cost(program), export=export.name)
                    )
                elif not export:
                    task = self._looked_up(program, {})
                    if isinstance(task, ChildTask):
                        tasks.append(task)
            if not exports and len(self._programs) > 1:
                cached, left = len(self._results), len(self._programs) - len(self._results)
                sys.stderr.write(f"{step.title}: {cached} cached, {left} to do\n")
            run(
                tasks,
                self._home,
                step.title,
                self._line,
                self._work.jobs,
                exports=Exports(exports, self._settled),
            )
        self._cached.close()
        self._this_run.close()
        return {name: self._results[name] for name in self._programs}

    def _export_of(self, program: Named) -> ChildTask | None:
        if not self._step.export:
            return None
        task = self._step.export(program)
        log = self._logs / Path(str(task.request["log"])).name
        return replace(task, request={**task.request, "log": str(log.absolute())})

    def _folder_of_export(self, name: str) -> Path:
        """For files that all programs of an export use."""
        return self._shared / hashlib.sha256(name.encode()).hexdigest()[:16]

    def _known_in_this_run(self, program: Named) -> bool:
        known = self._this_run.find(self._subject_of_run(program)) if self._may_reuse else None
        if known is None:
            return False
        export = self._exports[program.name] = read(_Export, known)
        self._keys[program.name] = export.key
        return self._take_cached(program)

    def _keep_for_this_run(self, program: Named) -> None:
        if self._step.export:
            export = replace(self._exports[program.name], key=self._keys[program.name])
            self._this_run.keep(self._subject_of_run(program), as_json(export))

    def _subject_of_run(self, program: Named) -> Metric:
        export = self._export_of(program)
        # Each stage has a log of its own.
        model = {name: part for name, part in export.request.items() if name != "log"} if export else None
        return {
            "kind": self._step.kind,
            "program": self._step.subject(program),
            "code": self._step.code(program) or os.urandom(8).hex(),
            # Which model it is: the key has only what is done with it.
            "export": json.loads(json.dumps(model)),
            "key": {**self._base, **self._step.key(program, self._cached)},
        }

    def _settled(self, task: ChildTask, reply: Mapping[str, object]) -> ChildTask | Outcome:
        """A program whose model has been exported."""
        program = self._programs[task.name]
        exported = read(ExportReply, reply)
        passed = {*self._home.environment, *TEMPORARY}
        asked = tuple(
            name for name in variables_named_in(map(Path, exported.modules), os.environ) if name not in passed
        )
        self._exports[program.name] = _Export(exported.lines, asked)
        try:
            return self._looked_up(program, self._step.export_key(program, reply))
        except NotCached as error:
            self._uncached[program.name] = self._reasons[program.name] = str(error)
            return self._begun(program)
        except Refused as refused:
            return refused

    def _looked_up(self, program: Named, model: Key) -> ChildTask | Outcome:
        """What is to be done, or the outcome of a program whose result is there."""
        rows = {**self._base, **self._step.key(program, self._cached), **model}
        self._keys[program.name] = rows
        if self._may_reuse:
            if self._take_cached(program):
                return {}
            self._reasons[program.name] = self._cached.difference(self._step.subject(program), rows)
        return self._begun(program)

    def _take_cached(self, program: Named) -> bool:
        cached = self._cached.find(self._keys[program.name])
        if cached is None:
            return False
        export = self._exports.get(program.name, _Export())
        facts = relocated(cached.facts, cached.facts.get("lines", {}), export.lines)
        if facts is None:
            return False
        result = replace(self._result(program, facts), folder=cached.folder, cached=True)
        if not self._step.accepts(program, result):
            return False
        self._results[program.name] = result
        self._keep_for_this_run(program)
        return True

    def _result(self, program: Named, facts: Facts) -> Result:
        export = self._exports.get(program.name, _Export())
        record = read(self._step.reply, facts) if self._step.reply else None
        return Result(facts, record=record, asked=export.asked)

    def _begun(self, program: Named) -> ChildTask | Outcome:
        try:
            return self._task(program)
        except OSError as error:
            self._results[program.name] = self._in_trouble(program, error)
            return {}

    def _in_trouble(self, program: Named, error: OSError) -> Result:
        if not (trouble := of_error(error)):
            raise error
        return Result(failure=Failure.of(trouble, self._final_log(program)))

    def _task(self, program: Named) -> ChildTask:
        step = self._step
        into = self._cached.scratch() if step.keeps_files else empty_folder(self._logs / program.name)
        self._folders[program.name] = into
        final = self._final_log(program)
        final.parent.mkdir(parents=True, exist_ok=True)
        final.unlink(missing_ok=True)
        export = self._export_of(program)
        name = export.name if export else ""
        asked = step.request(program)
        folders = {
            "into": str(into.absolute()),
            "log": str(self._log(program)),
            "scratch": str(self._shared / "programs" / program.name),
            "export_folder": str(self._folder_of_export(name)),
        }
        if clash := asked.keys() & folders:
            raise ValueError(f"{step.kind} asks for {sorted(clash)}, which each task has")
        request = {**asked, **folders}
        return ChildTask(
            program.name,
            step.function,
            request,
            self._work.timeout,
            cost=step.cost(program),
            export=name,
            until=self._work.until,
        )

    def _final_log(self, program: Named) -> Path:
        return self._logs / f"{program.name}.log"

    def _log(self, program: Named) -> Path:
        name, folder = self._step.log_in_folder, self._folders[program.name]
        return (folder / name if name else self._final_log(program)).absolute()

    def _line(self, name: str, outcome: Outcome) -> Line:
        program = self._programs[name]
        if name not in self._results:
            self._results[name] = self._ended(program, outcome)
        result = self._results[name]
        line = self._step.line(program, result)
        if self._work.why and name in self._reasons:
            sys.stderr.write(f"  {name}: {self._reasons[name]}\n")
        return Line("cached", line.note, line.look, 0.0) if result.cached and not line.look else line

    def _ended(self, program: Named, outcome: Outcome) -> Result:
        try:
            if isinstance(outcome, WorkerDied) and program.name in self._folders:
                outcome = self._step.left(program, outcome, self._folders[program.name]) or outcome
            if isinstance(outcome, dict):
                return self._finished(program, outcome)
            return self._failed(program, outcome)
        except OSError as error:
            return self._in_trouble(program, error)

    def _failed(self, program: Named, outcome: WorkerDied | Refused) -> Result:
        step, log = self._step, self._final_log(program)
        self._put_log(program)
        if program.name not in self._folders and (export := self._export_of(program)):
            # It has not begun: its model could not be exported.
            log = Path(str(export.request["log"]))
        failure = failure_of(outcome, log)
        if step.ended and isinstance(outcome, WorkerDied) and failure.blame != "machine":
            failure = step.ended(program, outcome, log)
        if failure.of_work and program.name in self._keys:
            self._cached.forget(self._keys[program.name])
        return Result(failure=failure, asked=self._exports.get(program.name, _Export()).asked)

    def _put_log(self, program: Named) -> None:
        """The log of a result that is none, for the user; its other files go."""
        if not self._step.keeps_files or program.name not in self._folders:
            return
        log = self._log(program)
        try:
            if self._step.log_in_folder and log.is_file():
                shutil.copyfile(log, self._final_log(program))
        finally:
            shutil.rmtree(self._folders[program.name], ignore_errors=True)

    def _finished(self, program: Named, reply: dict[str, Any]) -> Result:
        step, name, into = self._step, program.name, self._folders[program.name]
        if step.export:
            reply = {**reply, "lines": dict(self._exports[name].lines)}
        reason = self._uncached.get(name, "")
        result = replace(self._result(program, reply), folder=into)
        if not step.leaves_files:
            self._final_log(program).unlink(missing_ok=True)
        if not step.remembers_all and not step.accepts(program, result):
            if name in self._keys:
                # An earlier result of the same key would hide this one.
                self._cached.forget(self._keys[name])
            return result
        folder = into if step.keeps_files else None
        if not step.keeps_files and not step.leaves_files and not self._work.keep:
            shutil.rmtree(into, ignore_errors=True)
        if reason:
            sys.stderr.write(f"{name} is not cached: {reason}\n")
            return replace(result, folder=folder)
        try:
            kept = self._cached.keep(self._step.subject(program), self._keys[name], reply, folder)
        except OSError as error:
            sys.stderr.write(f"{name} is not cached: {error.strerror or error}\n")
            return replace(result, folder=folder)
        self._keep_for_this_run(program)
        return replace(result, facts=kept.facts, folder=kept.folder)


def variables_named_in(modules: Iterable[Path], environ: Mapping[str, str]) -> Iterator[str]:
    """The user's variables that are set, and that one of these modules names in a string."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in modules if path.is_file()]
    named = {name for text in texts for name in re.findall(r"""["']([A-Za-z_][A-Za-z0-9_]*)["']""", text)}
    yield from sorted(name for name in named & environ.keys() if not name.startswith("QNN_CI_"))


def run_step(step: Step, programs: Sequence[Named], own: Packages | None = None) -> dict[str, Result]:
    """The result of each program by name."""
    return _StepRun(step, programs, own).results() if programs else {}


def require_done(result: Result) -> Result:
    """For commands that work on one program. Raises the error of a failure."""
    if failure := result.failure:
        raise ToolkitError(failure.message, fix=failure.fix, exit_code=failure.exit_code)
    return result
