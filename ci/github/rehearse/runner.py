"""Runs a workflow's jobs on this machine, in the order and by the rules that GitHub's runner has.

Every job has a fresh workspace, home for caches and temporary directory; jobs that do not need each other run
side by side. What is shared with other jobs, as on GitHub, is in `equivalents.Machine`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ci.github.rehearse import commands, expression
from ci.github.rehearse.equivalents import Machine, Place, Repository, equivalent
from ci.github.rehearse.expression import Function, Known, Value, as_text, truthy
from ci.github.rehearse.model import (
    Action,
    Input,
    Job,
    Step,
    Workflow,
    allowed_in,
    check_permissions,
    given_inputs,
    matrix_rows,
    read_action,
    read_workflow,
)
from provisioning.base.errors import CheckFailed, UsageError

Result: TypeAlias = Literal["success", "failure", "cancelled", "skipped", "left out"]

OWN = ("./", "$/")
"""How the repository's own files are named: in the job's workspace, or as they are at the running commit."""

SUMMARY_LIMIT = 1 << 20
SHELLS = {
    "": ["bash", "-e", "{0}"],
    "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail", "{0}"],
    "sh": ["sh", "-e", "{0}"],
}

Said: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    ref: str
    payload: Mapping[str, Value]
    base_ref: str = ""
    head_ref: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """What part of a workflow to run; patterns as of file names."""

    only: tuple[str, ...] = ()
    """Jobs by id, and what they need."""
    rows: tuple[str, ...] = ()
    """Of matrices: only the jobs with these names."""


@dataclass(slots=True)
class StepResult:
    title: str
    outcome: Result
    conclusion: Result
    seconds: float
    outputs: dict[str, str]


@dataclass(slots=True)
class JobResult:
    """One job, or one row of its matrix."""

    name: str
    result: Result
    seconds: float = 0.0
    steps: list[StepResult] = field(default_factory=list)
    annotations: list[commands.Annotation] = field(default_factory=list)
    summary: str = ""
    log: Path | None = None
    fault: str = ""
    """Which step failed, and how."""
    outputs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What all workflows of one rehearsal share."""

    scratch: Path
    machine: Machine
    event: Event
    env: Mapping[str, str]
    """What a fresh runner's environment has."""
    slots: threading.Semaphore
    say: Said
    keep_logs: Path
    cancelled: threading.Event = field(default_factory=threading.Event)
    default_branch: str = "main"


# Workflows: jobs in the order of their needs.


@dataclass(slots=True)
class _Running:
    """A workflow on its way."""

    repository: Repository
    workflow: Workflow
    caller: Workflow
    """The one that the event began, which contexts speak of in those that it calls as well."""
    inputs: Mapping[str, Value]
    prefix: str
    chosen: frozenset[str]
    done: dict[str, threading.Event]
    results: dict[str, Result] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    jobs: dict[str, list[JobResult]] = field(default_factory=dict)
    faults: list[BaseException] = field(default_factory=list)

    def ancestors(self, job: Job) -> set[str]:
        found: set[str] = set()
        for need in job.needs:
            found |= {need} | self.ancestors(self.workflow.jobs[need])
        return found


def run_workflow(
    rehearsal: Rehearsal,
    workflow: Workflow,
    inputs: Mapping[str, Value],
    choice: Choice,
    prefix: str = "",
    *,
    repository: Repository | None = None,
    caller: Workflow | None = None,
) -> tuple[list[JobResult], Result, dict[str, str]]:
    """All jobs' results in the file's order, the whole's, and the outputs of a called workflow."""
    chosen, within = _chosen(workflow, choice)
    running = _Running(
        repository=repository or rehearsal.machine.repository,
        workflow=workflow,
        caller=caller or workflow,
        inputs=inputs,
        prefix=prefix,
        chosen=chosen,
        done={name: threading.Event() for name in workflow.jobs},
    )
    threads = [
        threading.Thread(target=_run_when_ready, args=(rehearsal, running, job, within), name=job.id)
        for job in workflow.jobs.values()
    ]
    for thread in threads:
        thread.start()
    try:
        # Not the threads' ends: Python before 3.13 takes a thread for ended whose join is interrupted.
        for done in running.done.values():
            while not done.wait(0.2):
                pass  # in pieces, so that an interruption arrives
    except KeyboardInterrupt:
        rehearsal.cancelled.set()
        for done in running.done.values():
            done.wait()  # as jobs write to their workspaces, which are taken away next
        raise
    if running.faults:
        raise running.faults[0]
    results = [result for name in workflow.jobs for result in running.jobs.get(name, [])]
    outputs = {}
    if workflow.outputs:
        contexts: dict[str, Value] = {
            "jobs": Known("jobs", {n: {"outputs": o} for n, o in running.outputs.items()}),
            "inputs": Known("inputs", inputs),
        }
        outputs = {
            name: as_text(expression.expand(text, contexts, {})) for name, text in workflow.outputs.items()
        }
    return results, combined(running.results.values()), outputs


def combined(results: Iterable[Result]) -> Result:
    """What several jobs come to."""
    found = set(results)
    order: tuple[Result, ...] = ("failure", "cancelled", "success")
    for result in order:
        if result in found:
            return result
    return "left out" if found == {"left out"} else "skipped"


def _chosen(workflow: Workflow, choice: Choice) -> tuple[frozenset[str], Choice]:
    """The jobs to run, and what of the workflows that they call."""
    import fnmatch

    if not choice.only:
        return frozenset(workflow.jobs), choice
    within = replace(choice, only=())
    named = {n for n in workflow.jobs if any(fnmatch.fnmatchcase(n, pattern) for pattern in choice.only)}
    if not named:
        # A caller's only job may be a workflow that has the named ones.
        named, within = {name for name, job in workflow.jobs.items() if job.uses}, choice
    if not named:
        raise UsageError(
            f"{workflow.path} has no job {' or '.join(choice.only)}",
            remedy=f"use one of: {', '.join(workflow.jobs)}",
        )
    chosen: set[str] = set()
    waiting = list(named)
    while waiting:
        name = waiting.pop()
        chosen.add(name)
        waiting += [need for need in workflow.jobs[name].needs if need not in chosen]
    return frozenset(chosen), within


def _run_when_ready(rehearsal: Rehearsal, running: _Running, job: Job, choice: Choice) -> None:
    try:
        for need in job.needs:
            running.done[need].wait()
        if running.faults:
            return
        if job.id not in running.chosen:
            running.results[job.id], running.outputs[job.id] = "left out", {}
            running.jobs[job.id] = [JobResult(running.prefix + _plain_name(job), "left out")]
            return
        _run_job(rehearsal, running, job, choice)
    except BaseException as fault:
        running.faults.append(fault)
        rehearsal.cancelled.set()
    finally:
        running.done[job.id].set()


def _run_job(rehearsal: Rehearsal, running: _Running, job: Job, choice: Choice) -> None:
    import fnmatch

    contexts: dict[str, Value] = {
        "github": github_context(rehearsal, running.caller, job.id),
        "needs": Known(
            "needs",
            {need: {"result": running.results[need], "outputs": running.outputs[need]} for need in job.needs},
        ),
        "inputs": Known("inputs", running.inputs),
        "vars": {},
    }
    before = [running.results[name] for name in running.ancestors(job)]
    status: dict[str, Function] = {
        "always": lambda: True,
        "cancelled": rehearsal.cancelled.is_set,
        "success": lambda: not rehearsal.cancelled.is_set() and all(r == "success" for r in before),
        "failure": lambda: "failure" in before,
    }
    name = running.prefix + _plain_name(job)
    if not expression.condition(job.condition, contexts, status):
        result: Result = "cancelled" if rehearsal.cancelled.is_set() else "skipped"
        rehearsal.say(f"{name}: {result}")
        running.results[job.id], running.outputs[job.id] = result, {}
        running.jobs[job.id] = [JobResult(name, result)]
        return
    rows: Sequence[dict[str, Any]] = [{}]
    if job.matrix is not None:
        rows = matrix_rows(_expanded(job.matrix, contexts, {}))
    named = [(_row_name(running, job, row, contexts), row) for row in rows]
    results: list[JobResult] = [JobResult(running.prefix + title, "left out") for title, _ in named]
    outputs: dict[str, str] = {}
    stop = threading.Event()

    def one(number: int, title: str, row: dict[str, Any]) -> None:
        try:
            inside = {**contexts, "matrix": row, "strategy": {"job-index": number, "job-total": len(rows)}}
            if job.uses:
                found, result, given = _call(rehearsal, running, job, inside, choice, title)
                results[number] = JobResult(running.prefix + title, result, outputs=given)
                called[number] = found
            else:
                with rehearsal.slots:
                    if stop.is_set() or rehearsal.cancelled.is_set():
                        results[number] = JobResult(running.prefix + title, "cancelled")
                        return
                    results[number] = _JobRun(rehearsal, running, job, inside, running.prefix + title).run()
                    if results[number].result == "failure" and truthy(_expanded(job.fail_fast, inside, {})):
                        stop.set()
            outputs.update(results[number].outputs)
        except BaseException as fault:
            running.faults.append(fault)
            rehearsal.cancelled.set()

    called: dict[int, list[JobResult]] = {}
    threads = [
        threading.Thread(target=one, args=(number, title, row), name=title)
        for number, (title, row) in enumerate(named)
        if job.matrix is None
        or not choice.rows
        or any(fnmatch.fnmatchcase(title, pattern) for pattern in choice.rows)
    ]
    if not threads:
        raise UsageError(
            f"the matrix of {name} has no job {' or '.join(choice.rows)}",
            remedy=f"use one of: {', '.join(title for title, _ in named)}",
        )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    running.results[job.id] = combined(r.result for r in results if r.result != "left out")
    running.outputs[job.id] = outputs
    running.jobs[job.id] = [one for number, r in enumerate(results) for one in called.get(number, [r])]


def _plain_name(job: Job) -> str:
    """Without a row that would decide it."""
    return job.name if job.name and "${{" not in job.name else job.id


def _row_name(running: _Running, job: Job, row: Mapping[str, Any], contexts: Mapping[str, Value]) -> str:
    if "${{" in job.name:
        return as_text(expression.expand(job.name, {**contexts, "matrix": row}, {}))
    shown = ", ".join(as_text(v) for v in row.values() if not isinstance(v, (Mapping, list)))
    return (job.name or job.id) + (f" ({shown})" if shown else "")


def _call(
    rehearsal: Rehearsal,
    running: _Running,
    job: Job,
    contexts: Mapping[str, Value],
    choice: Choice,
    title: str,
) -> tuple[list[JobResult], Result, dict[str, str]]:
    """A job that is another workflow."""
    repository, path = called_from(rehearsal, running.repository, job.uses)
    called = read_workflow(repository.root, path)
    if "workflow_call" not in called.events:
        raise UsageError(f"{called.path} cannot be called", remedy="add `on: workflow_call` to it")
    where = f"{running.workflow.path}: jobs.{job.id}"
    check_permissions(where, allowed_in(running.workflow, job), called)
    given = given_inputs(where, called.inputs, _expanded(job.inputs, contexts, {}), typed=True)
    prefix = f"{running.prefix}{title} / "
    return run_workflow(
        rehearsal, called, given, choice, prefix, repository=repository, caller=running.caller
    )


def called_from(rehearsal: Rehearsal, repository: Repository, uses: str) -> tuple[Repository, str]:
    """Where a called workflow is: its repository, and its path in it."""
    if uses.startswith(OWN):
        return repository, uses[2:]
    found = rehearsal.machine.used(uses)
    if found is None:
        raise UsageError(
            f"{uses}: expected a workflow of {repository.name} or of this toolkit", remedy="rehearse it there"
        )
    rehearsal.say(f"{uses}: this checkout stands in, at {found[0].sha[:12]}")
    return found


def _expanded(value: Any, contexts: Mapping[str, Value], functions: Mapping[str, Function]) -> Any:
    """Any YAML with its expressions evaluated."""
    if isinstance(value, str):
        return expression.expand(value, contexts, functions)
    if isinstance(value, Mapping):
        return {key: _expanded(one, contexts, functions) for key, one in value.items()}
    if isinstance(value, list):
        return [_expanded(one, contexts, functions) for one in value]
    return value


def github_context(rehearsal: Rehearsal, workflow: Workflow, job: str) -> Known:
    event, repository = rehearsal.event, rehearsal.machine.repository.name
    file = f"{repository}/{workflow.path}@{event.ref}"
    return Known(
        "github",
        {
            "action": "",
            "actor": "rehearsal",
            "api_url": "https://api.github.com",
            "base_ref": event.base_ref,
            "event": event.payload,
            "event_name": event.name,
            "head_ref": event.head_ref,
            "job": job,
            "ref": event.ref,
            "ref_name": re.sub("^refs/(?:heads|tags|pull)/", "", event.ref),
            "ref_protected": event.ref == f"refs/heads/{rehearsal.default_branch}",
            "ref_type": "tag" if event.ref.startswith("refs/tags/") else "branch",
            "repository": repository,
            "repository_owner": repository.split("/")[0],
            "run_attempt": "1",
            "run_id": "1",
            "run_number": "1",
            "server_url": "https://github.com",
            "sha": rehearsal.machine.repository.sha,
            "token": "",
            "triggering_actor": "rehearsal",
            "workflow": workflow.name,
            "workflow_ref": file,
            "workflow_sha": rehearsal.machine.repository.sha,
        },
    )


# Jobs: steps in order, in a workspace of their own.


@dataclass(slots=True)
class _Scope:
    """Where steps stand: in a job, or in a composite action that it uses."""

    steps: dict[str, StepResult]
    inputs: Mapping[str, Value]
    env: dict[str, str]
    """What the using steps set, which beats what the job has."""
    repository: Repository
    """What `$/` means here."""
    action: str = ""
    """The composite action's folder."""
    failed: bool = False
    fault: str = ""
    """Which step failed first, and how."""


class _JobRun:
    def __init__(
        self,
        rehearsal: Rehearsal,
        running: _Running,
        job: Job,
        contexts: Mapping[str, Value],
        name: str,
    ) -> None:
        self.rehearsal = rehearsal
        self.job = job
        self.outer = contexts
        self.workflow = running.workflow
        self.repository = running.repository
        slug = "".join(c if c.isalnum() or c in "-." else "_" for c in name)
        self.home = rehearsal.scratch / slug
        self.workspace = self.home / "workspace"
        self.temp = self.home / "temp"
        self.result = JobResult(name, "success", log=rehearsal.keep_logs / f"{slug}.log")
        self.masks: list[str] = []
        self.paths: list[str] = []
        self.env: dict[str, str] = {}
        """What the workflow and the job set, and then steps for those after them."""
        self.deadline = time.monotonic()
        self.number = 0

    def run(self) -> JobResult:
        begun = time.monotonic()
        for folder in (self.workspace, self.temp, self.home / "cache", self.rehearsal.keep_logs):
            folder.mkdir(parents=True, exist_ok=True)
        limit = expression.number(_expanded(self.job.timeout_minutes, self.outer, {}))
        self.deadline = begun + 60 * limit
        scope = _Scope({}, self.outer["inputs"], {}, self.repository)  # type: ignore[arg-type]
        for level in (self.workflow.env, self.job.env):
            self.env |= self._texts(level, scope)
        with (self.result.log or Path(os.devnull)).open("w", encoding="utf-8") as self.stream:
            for step in self.job.steps:
                self._step(step, scope, top=True)
        self.result.outputs = {
            name: as_text(self._expand(text, scope)) for name, text in self.job.outputs.items()
        }
        if self.rehearsal.cancelled.is_set():
            self.result.result = "cancelled"
        elif scope.failed and not truthy(_expanded(self.job.continue_on_error, self.outer, {})):
            self.result.result = "failure"
        self.result.fault = scope.fault
        self.result.seconds = round(time.monotonic() - begun, 3)
        self.rehearsal.say(f"{self.result.name}: {self.result.result} in {self.result.seconds:.1f} s")
        return self.result

    def _step(self, step: Step, scope: _Scope, *, top: bool = False) -> None:
        begun = time.monotonic()
        own = StepResult(step.title, "skipped", "skipped", 0.0, {})
        if step.id:
            scope.steps[step.id] = own
        if top:
            self.result.steps.append(own)
        here = replace(scope, env=scope.env | self._texts(step.env, scope))
        if not expression.condition(step.condition, self._contexts(here), self._functions(here)):
            return
        title = self._masked(as_text(self._expand(step.name, here)) if step.name else step.title)
        own.title = title
        self._log(f"━━ {title}")
        fault = ""
        try:
            if time.monotonic() > self.deadline:
                raise CheckFailed(f"the job's {as_text(self.job.timeout_minutes)} minutes are over")  # type: ignore[arg-type]
            if step.run:
                self._run(step, here, own)
            elif (found := self._action_of(step.uses, here)) is not None:
                self._use_action(step, *found, here, own)
            else:
                self._use_equivalent(step, here, own)
            own.outcome = own.conclusion = "success"
        except CheckFailed as error:
            fault = self._masked(error.message)
            own.outcome = own.conclusion = "failure"
            if truthy(self._expand(step.continue_on_error, here)):
                own.conclusion = "success"
            else:
                scope.failed = True
        own.seconds = round(time.monotonic() - begun, 3)
        mark = {"success": "ok", "failure": "FAILED"}.get(own.conclusion, own.conclusion)
        if top:
            self.rehearsal.say(f"{self.result.name}: {mark}: {title} ({own.seconds:.1f} s)")
        if fault:
            self._log(fault)
            if own.conclusion == "failure" and not scope.fault:
                scope.fault = f"{title}: {fault}"

    # The three kinds of step

    def _run(self, step: Step, scope: _Scope, own: StepResult) -> None:
        shell = SHELLS.get(step.shell)
        if shell is None:
            raise UsageError(
                f"the shell {step.shell!r} is not known: expected one of {', '.join(filter(None, SHELLS))}",
                remedy="correct the step, or add it to ci/github/rehearse/runner.py",
            )
        self.number += 1
        folder = self.temp / f"step-{self.number}"
        folder.mkdir()
        script = folder / "script.sh"
        script.write_text(as_text(self._expand(step.run, scope)) + "\n", encoding="utf-8")
        files = {name: folder / kind for name, kind in commands.FILES.items()}
        for file in files.values():
            file.touch()
        environ = self._environ(scope) | {name: str(file) for name, file in files.items()}
        where = self.workspace / as_text(self._expand(step.working_directory, scope))
        self._log(f"$ {step.run.strip()}")
        told = commands.Told()
        minutes = expression.number(self._expand(step.timeout_minutes, scope) or 360)
        deadline = min(self.deadline, time.monotonic() + 60 * minutes)
        argv = [part.replace("{0}", str(script)) for part in shell]
        code = self._process(argv, where, environ, told, deadline)
        self.result.annotations += [one.masked(self.masks) for one in told.shown()]
        if dropped := told.dropped():
            self._log(f"GitHub would not show {dropped} more annotations of this step")
        self._collect(files, own)
        if code:
            raise CheckFailed(f"ended with exit code {code}")

    def _action_of(self, uses: str, scope: _Scope) -> tuple[Repository, Path, str] | None:
        """A composite action that can be expanded: its repository, where that is here, its path there."""
        if uses.startswith("./"):
            return scope.repository, self.workspace, uses[2:]
        if uses.startswith("$/"):
            return scope.repository, self._downloaded(scope.repository), uses[2:]
        if (found := self.rehearsal.machine.used(uses)) is None:
            return None
        repository, path = found
        self._log(f"{uses}: this checkout stands in, at {repository.sha[:12]}")
        return repository, self._downloaded(repository), path

    def _use_action(
        self,
        step: Step,
        repository: Repository,
        home: Path,
        path: str,
        scope: _Scope,
        own: StepResult,
    ) -> None:
        action: Action = read_action(home, path)
        given = given_inputs(step.uses, action.inputs, self._inputs(step, scope), typed=False)
        inputs = Known(f"inputs of {step.uses}", given)
        inner = _Scope({}, inputs, scope.env, repository, str(home / path))
        for one in action.steps:
            self._step(one, inner)
        own.outputs = {name: as_text(self._expand(text, inner)) for name, text in action.outputs.items()}
        if inner.failed:
            raise CheckFailed(f"a step of {step.uses} failed: {inner.fault}")

    def _use_equivalent(self, step: Step, scope: _Scope, own: StepResult) -> None:
        stand_in = equivalent(step.uses)
        given = self._inputs(step, scope)
        declared = {name: Input(name in stand_in.required, None, "string") for name in stand_in.inputs}
        given_inputs(step.uses, declared, given, typed=False)
        self._log(f"{step.uses.partition('@')[0]}: {stand_in.what}")
        place = Place(
            self.rehearsal.machine,
            self.workspace,
            self.temp,
            self.rehearsal.event.ref,
            f"refs/heads/{self.rehearsal.default_branch}",
            self._log,
            self._tell,
        )
        done = stand_in.act({k: as_text(v) for k, v in given.items()}, place)
        own.outputs = dict(done.outputs)
        self.paths = [*done.path, *(p for p in self.paths if p not in done.path)]

    def _downloaded(self, repository: Repository) -> Path:
        """The job's own copy of a repository, as GitHub's runner downloads one for its actions."""
        copy = self.home / "actions" / repository.name
        if not copy.exists():
            command = ["git", "archive", "--format=tar", repository.sha]
            archive = subprocess.run(command, cwd=repository.root, check=True, capture_output=True)
            copy.mkdir(parents=True)
            subprocess.run(["tar", "-x"], cwd=copy, input=archive.stdout, check=True)
        return copy

    # Contexts and environment

    def _inputs(self, step: Step, scope: _Scope) -> dict[str, Value]:
        return {name: self._expand(value, scope) for name, value in step.inputs.items()}

    def _texts(self, values: Mapping[str, object], scope: _Scope) -> dict[str, str]:
        return {name: as_text(self._expand(value, scope)) for name, value in values.items()}

    def _expand(self, value: Any, scope: _Scope) -> Value:
        found: Value = _expanded(value, self._contexts(scope), self._functions(scope))
        return found

    def _contexts(self, scope: _Scope) -> dict[str, Value]:
        outer = self.outer["github"]
        assert isinstance(outer, Known)
        github: dict[str, Value] = {key: outer[key] for key in outer}
        github |= {"workspace": str(self.workspace), "event_path": str(self.home / "event.json")}
        if scope.action:
            github |= {"action_path": scope.action, "action_status": "failure" if scope.failed else "success"}
        status = "failure" if scope.failed else "success"
        steps: dict[str, Value] = {
            name: {"outcome": s.outcome, "conclusion": s.conclusion, "outputs": s.outputs}
            for name, s in scope.steps.items()
        }
        return {
            **self.outer,
            "github": Known("github", github),
            "inputs": scope.inputs,
            "env": {**self.env, **scope.env},
            "steps": Known("steps", steps),
            "job": Known("job", {"status": status, **self._called()}),
            "runner": Known("runner", self._runner()),
            "secrets": {},
        }

    def _called(self) -> dict[str, Value]:
        """Of the workflow file that defines the job, which in a called workflow is not the caller's."""
        own = self.repository == self.rehearsal.machine.repository
        ref = self.rehearsal.event.ref if own else self.repository.sha
        return {
            "workflow_repository": self.repository.name,
            "workflow_sha": self.repository.sha,
            "workflow_ref": f"{self.repository.name}/{self.workflow.path}@{ref}",
            "workflow_file_path": self.workflow.path,
        }

    def _runner(self) -> dict[str, Value]:
        return {
            "os": "Linux",
            "arch": "X64",
            "name": "rehearsal",
            "temp": str(self.temp),
            "tool_cache": str(self.home / "tools"),
            "debug": "",
            "environment": "self-hosted",
        }

    def _functions(self, scope: _Scope) -> dict[str, Function]:
        cancelled = self.rehearsal.cancelled.is_set
        return {
            "always": lambda: True,
            "cancelled": cancelled,
            "success": lambda: not scope.failed and not cancelled(),
            "failure": lambda: scope.failed,
            "hashFiles": functools.partial(hash_files, self.workspace),
        }

    def _environ(self, scope: _Scope) -> dict[str, str]:
        contexts = self._contexts(scope)
        github = contexts["github"]
        assert isinstance(github, Known)
        event = self.home / "event.json"
        if not event.exists():
            import json

            event.write_text(json.dumps(expression.plain(self.rehearsal.event.payload)), encoding="utf-8")
        given = {
            f"GITHUB_{key.upper()}": as_text(github[key])
            for key in github
            if key not in ("event", "token", "action_path", "action_status")
        }
        given |= {f"RUNNER_{key.upper()}": as_text(value) for key, value in self._runner().items() if value}
        if scope.action:
            given["GITHUB_ACTION_PATH"] = scope.action
        path = os.pathsep.join([*self.paths, self.rehearsal.env.get("PATH", os.defpath)])
        private = {"XDG_CACHE_HOME": str(self.home / "cache"), "CI": "true", "GITHUB_ACTIONS": "true"}
        return {**self.rehearsal.env, **private, **self.env, **scope.env, **given, "PATH": path}

    # Processes and what they tell

    def _process(
        self,
        argv: Sequence[str],
        where: Path,
        environ: Mapping[str, str],
        told: commands.Told,
        deadline: float,
    ) -> int:
        process = subprocess.Popen(
            argv,
            cwd=where,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.1):
                late = time.monotonic() > deadline
                if late or self.rehearsal.cancelled.is_set():
                    if late:
                        told.annotations.append(
                            commands.Annotation("error", "", "the step was ended: its time is over")
                        )
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGTERM)
                    if not over.wait(5):
                        with suppress(ProcessLookupError):
                            os.killpg(process.pid, signal.SIGKILL)
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with process:
                assert process.stdout is not None
                for line in process.stdout:
                    told.hear(line)
                    self.masks += [mask for mask in told.masks if mask not in self.masks]
                    self._log(line.rstrip("\n"))
            return process.returncode
        finally:
            over.set()
            watcher.join()

    def _collect(self, files: Mapping[str, Path], own: StepResult) -> None:
        for name, value in commands.pairs(files["GITHUB_ENV"]).items():
            if commands.FORBIDDEN.match(name):
                raise CheckFailed(f"GITHUB_ENV cannot set {name}")
            self.env[name] = value
        own.outputs = commands.pairs(files["GITHUB_OUTPUT"])
        for entry in commands.entries(files["GITHUB_PATH"]):
            self.paths = [entry, *(p for p in self.paths if p != entry)]
        if (size := files["GITHUB_STEP_SUMMARY"].stat().st_size) > SUMMARY_LIMIT:
            raise CheckFailed(f"the step's summary has {size} bytes: GitHub takes {SUMMARY_LIMIT}")
        summary = files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8", errors="replace")
        self.result.summary += self._masked(summary)

    def _tell(self, text: str) -> None:
        self._log(text)
        self.rehearsal.say(f"{self.result.name}: {self._masked(text)}")

    def _masked(self, text: str) -> str:
        return commands.masked(text, self.masks)

    def _log(self, text: str) -> None:
        self.stream.write(self._masked(text) + "\n")
        self.stream.flush()


def hash_files(workspace: Path, *patterns: Value) -> str:
    """SHA-256 over the SHA-256 of every file that matches; empty if none does."""
    found: dict[str, None] = {}
    for pattern in map(as_text, patterns):
        for path in workspace.glob(pattern.removeprefix("!")):
            name = str(path)
            if pattern.startswith("!"):
                found.pop(name, None)
            elif path.is_file():
                found[name] = None
    total = hashlib.sha256()
    for name in sorted(found):
        total.update(hashlib.sha256(Path(name).read_bytes()).digest())
    return total.hexdigest() if found else ""


def fresh_environment(environ: Mapping[str, str], given: Sequence[str], hidden: Path) -> dict[str, str]:
    """A hosted runner's environment: of the user's only how to reach an index or a container engine, and what
    was downloaded from there. Programs under `hidden` are not found."""
    kept = ("PIP_", "UV_", "SSL_", "LC_", "REQUESTS_", "DOCKER_")
    named = ("HOME", "LANG", "USER", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "QNN_CI_MIRROR")
    env = {
        name: value
        for name, value in environ.items()
        if name.upper().startswith(kept) or name.upper() in named
    }
    home = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".cache")
    env.setdefault("PIP_CACHE_DIR", str(home / "pip"))
    env.setdefault("UV_CACHE_DIR", str(home / "uv"))
    path = environ.get("PATH", os.defpath).split(os.pathsep)
    env["PATH"] = os.pathsep.join(entry for entry in path if not entry.startswith(str(hidden)))
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise UsageError(
                f"--env {shlex.quote(one)}: expected NAME=VALUE", remedy="--env QNN_CI_SOC=SM8750"
            )
        env[name] = value
    return env
