"""Run one job: its steps in order, in a workspace of its own."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.github.rehearse import commands, expression
from ci.github.rehearse.equivalents import JobSpace, Repository, equivalent
from ci.github.rehearse.expression import Function, Known, Value, as_text, expand_all, truthy
from ci.github.rehearse.model import Action, Input, Job, Step, Workflow, complete_inputs, read_action
from ci.github.rehearse.rehearsal import JobResult, Rehearsal, StepResult
from provisioning.base import units
from provisioning.base.errors import CheckFailed, UsageError

SUMMARY_LIMIT = 1 << 20

AFTER_CANCEL = 300.0
"""Seconds for steps that run although their job was cancelled."""

STAND_INS = {
    "gh": """\
#!/bin/sh
if [ "$2" = view ]; then
  echo 'release not found' >&2
  exit 1
fi
echo "::notice title=gh::would run gh $1 $2 $3 $4"
""",
    "skopeo": """\
#!/bin/sh
for word; do
  case "$last" in --digestfile) echo "sha256:$(echo "$*" | sha256sum | cut -c -64)" > "$word" ;; esac
  last=$word
done
echo "::notice title=skopeo::would run skopeo $1 ... $last"
""",
}
"""Programs that change nothing: the user's own may have the right to publish."""

SHELLS = {
    "": ["bash", "-e", "{0}"],
    "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail", "{0}"],
    "sh": ["sh", "-e", "{0}"],
}


@dataclass(slots=True)
class _Scope:
    """A job, or a composite action that it uses: what its steps share."""

    steps: dict[str, StepResult]
    inputs: Value
    env: dict[str, str]
    """Variables of the steps that use the action. They override the job's."""
    repository: Repository
    """The repository that `$/` means here."""
    action: str = ""
    """The composite action's folder."""
    failed: bool = False
    failure: str = ""
    """The first step that failed, and its error."""


class JobRun:
    def __init__(
        self,
        rehearsal: Rehearsal,
        workflow: Workflow,
        repository: Repository,
        job: Job,
        contexts: Mapping[str, Value],
        name: str,
    ) -> None:
        self.rehearsal = rehearsal
        self.workflow = workflow
        self.repository = repository
        self.job = job
        self.job_contexts = contexts
        self.home = _own_folder(rehearsal.scratch, name)
        self.workspace = self.home / "workspace"
        self.temp = self.home / "temp"
        self.result = JobResult(name, "success", log=rehearsal.logs / f"{self.home.name}.log")
        self.masks: list[str] = []
        self.paths: list[str] = []
        self.env: dict[str, str] = {}
        """Variables of the workflow and the job, and those that steps set for later steps."""
        self.deadline = time.monotonic()
        self.step_count = 0
        self.cancelled_before = rehearsal.cancelled.is_set()

    def run(self) -> JobResult:
        started = time.monotonic()
        for folder in (self.workspace, self.temp, self.home / "cache", self.rehearsal.logs):
            folder.mkdir(parents=True, exist_ok=True)
        limit = expression.number(expand_all(self.job.timeout_minutes, self.job_contexts, {}))
        self.deadline = started + 60 * limit
        scope = _Scope({}, self.job_contexts["inputs"], {}, self.repository)
        for level in (self.workflow.env, self.job.env):
            self.env |= self._texts(level, scope)
        with (self.result.log or Path(os.devnull)).open("w", encoding="utf-8") as self.stream:
            for step in self.job.steps:
                self._step(step, scope, top=True)
        self.result.outputs = {
            name: as_text(self._expand(text, scope)) for name, text in self.job.outputs.items()
        }
        if self._cancelled():
            self.result.result = "cancelled"
        elif scope.failed and not truthy(expand_all(self.job.continue_on_error, self.job_contexts, {})):
            self.result.result = "failure"
        self.result.failure = scope.failure
        self.result.seconds = round(time.monotonic() - started, 3)
        self.rehearsal.print(
            f"{self.result.name}: {self.result.result} in {units.seconds(self.result.seconds)}"
        )
        return self.result

    def _step(self, step: Step, scope: _Scope, *, top: bool = False) -> None:
        started = time.monotonic()
        result = StepResult(step.title, "skipped", "skipped", 0.0, {})
        if step.id:
            scope.steps[step.id] = result
        if top:
            self.result.steps.append(result)
        inner = replace(scope, env=scope.env | self._texts(step.env, scope))
        if self.rehearsal.aborted.is_set() or not expression.condition(
            step.condition, self._contexts(inner), self._functions(inner)
        ):
            return
        result.title = self._masked(as_text(self._expand(step.name, inner)) if step.name else step.title)
        self._log(f"━━ {result.title}")
        failure = ""
        try:
            if time.monotonic() > self.deadline:
                raise CheckFailed(f"the job's {self.job.timeout_minutes} minutes are over")
            if step.run:
                self._run(step, inner, result)
            elif (action := self._action_of(step.uses, inner)) is not None:
                self._use_action(step, *action, inner, result)
            else:
                self._use_equivalent(step, inner, result)
            result.outcome = result.conclusion = "success"
        except CheckFailed as error:
            failure = self._masked(error.message)
            result.outcome = result.conclusion = "failure"
            if truthy(self._expand(step.continue_on_error, inner)):
                result.conclusion = "success"
            else:
                scope.failed = True
        result.seconds = round(time.monotonic() - started, 3)
        if top:
            mark = {"success": "ok", "failure": "FAILED"}.get(result.conclusion, result.conclusion)
            self.rehearsal.print(f"{self.result.name}: {mark}: {result.title} ({result.seconds:.1f} s)")
        if failure:
            self._log(failure)
            if result.conclusion == "failure" and not scope.failure:
                scope.failure = f"{result.title}: {failure}"

    # The three kinds of step

    def _run(self, step: Step, scope: _Scope, result: StepResult) -> None:
        shell = SHELLS.get(step.shell)
        if shell is None:
            raise UsageError(
                f"the shell {step.shell!r} is not known: expected one of {', '.join(filter(None, SHELLS))}",
                remedy="correct the step, or add it to ci/github/rehearse/job.py",
            )
        self.step_count += 1
        folder = self.temp / f"step-{self.step_count}"
        folder.mkdir()
        script = folder / "script.sh"
        script.write_text(as_text(self._expand(step.run, scope)) + "\n", encoding="utf-8")
        files = {name: folder / kind for name, kind in commands.FILES.items()}
        for file in files.values():
            file.touch()
        environ = self._environ(scope) | {name: str(file) for name, file in files.items()}
        where = self.workspace / as_text(self._expand(step.working_directory, scope))
        self._log(f"$ {step.run.strip()}")
        output = commands.StepOutput()
        minutes = expression.number(self._expand(step.timeout_minutes, scope) or 360)
        deadline = min(self.deadline, time.monotonic() + 60 * minutes)
        argv = [part.replace("{0}", str(script)) for part in shell]
        code = self._process(argv, where, environ, output, deadline)
        self.result.annotations += [one.masked(self.masks) for one in output.shown()]
        if dropped := output.dropped():
            self._log(f"GitHub would not show {dropped} more annotations of this step")
        self._collect(step, files, result, failed=code != 0)
        if code:
            raise CheckFailed(f"ended with exit code {code}")

    def _action_of(self, uses: str, scope: _Scope) -> tuple[Repository, Path, str] | None:
        """Repository, checkout and path of a composite action; None if it is not on this machine."""
        if uses.startswith("./"):
            return scope.repository, self.workspace, uses[2:]
        if uses.startswith("$/"):
            return scope.repository, self._downloaded(scope.repository), uses[2:]
        if (location := self.rehearsal.machine.used(uses)) is None:
            return None
        repository, path = location
        self._log(f"{uses}: this checkout stands in, at {repository.sha[:12]}")
        return repository, self._downloaded(repository), path

    def _use_action(
        self,
        step: Step,
        repository: Repository,
        home: Path,
        path: str,
        scope: _Scope,
        result: StepResult,
    ) -> None:
        action: Action = read_action(home, path)
        inputs = complete_inputs(step.uses, action.inputs, self._inputs(step, scope), typed=False)
        inner = _Scope({}, Known(f"inputs of {step.uses}", inputs), scope.env, repository, str(home / path))
        for one in action.steps:
            self._step(one, inner)
        outputs = {name: as_text(self._expand(text, inner)) for name, text in action.outputs.items()}
        result.outputs = Known(f"outputs of {step.uses}", outputs)
        if inner.failed:
            raise CheckFailed(f"a step of {step.uses} failed: {inner.failure}")

    def _use_equivalent(self, step: Step, scope: _Scope, result: StepResult) -> None:
        stand_in = equivalent(step.uses)
        inputs = self._inputs(step, scope)
        declared = {name: Input(required=name in stand_in.required) for name in stand_in.inputs}
        complete_inputs(step.uses, declared, inputs, typed=False)
        self._log(f"{step.uses.partition('@')[0]}: {stand_in.what}")
        place = JobSpace(
            self.rehearsal.machine,
            self.workspace,
            self.temp,
            self.rehearsal.event.ref,
            f"refs/heads/{self.rehearsal.default_branch}",
            self._log,
            self._print,
        )
        done = stand_in.act({name: as_text(value) for name, value in inputs.items()}, place)
        result.outputs = Known(f"outputs of {step.uses}", done.outputs, empty=stand_in.outputs)
        self.paths = [*done.path, *(p for p in self.paths if p not in done.path)]

    def _downloaded(self, repository: Repository) -> Path:
        """The job's own copy of a repository. GitHub's runner downloads one for its actions too."""
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
        expanded: Value = expand_all(value, self._contexts(scope), self._functions(scope))
        return expanded

    def _contexts(self, scope: _Scope) -> dict[str, Value]:
        outer = self.job_contexts["github"]
        assert isinstance(outer, Known)
        status = "failure" if scope.failed else "success"
        if self._cancelled():
            status = "cancelled"
        github: dict[str, Value] = {key: outer[key] for key in outer}
        github |= {"workspace": str(self.workspace), "event_path": str(self.home / "event.json")}
        if scope.action:
            github |= {"action_path": scope.action, "action_status": status}
        steps: dict[str, Value] = {
            name: {"outcome": one.outcome, "conclusion": one.conclusion, "outputs": one.outputs}
            for name, one in scope.steps.items()
        }
        return {
            **self.job_contexts,
            "github": Known("github", github),
            "inputs": scope.inputs,
            "env": {**self.env, **scope.env},
            "steps": Known("steps", steps),
            "job": Known("job", {"status": status, **self._workflow_of_job()}),
            "runner": Known("runner", self._runner()),
            "secrets": Known("secrets", {"GITHUB_TOKEN": ""}),
        }

    def _workflow_of_job(self) -> dict[str, Value]:
        """The workflow file that defines the job; in a called workflow it is not the caller's."""
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
        return {
            "always": lambda: True,
            "cancelled": self._cancelled,
            "success": lambda: not scope.failed and not self._cancelled(),
            "failure": lambda: scope.failed and not self._cancelled(),
            "hashFiles": functools.partial(hash_files, self.workspace),
        }

    def _cancelled(self) -> bool:
        """Whether this job was cancelled. A job that began after the cancellation was not."""
        return self.rehearsal.cancelled.is_set() and not self.cancelled_before

    def _environ(self, scope: _Scope) -> dict[str, str]:
        github = self._contexts(scope)["github"]
        assert isinstance(github, Known)
        event = self.home / "event.json"
        if not event.exists():
            event.write_text(json.dumps(expression.plain(self.rehearsal.event.payload)), encoding="utf-8")
        variables = {
            f"GITHUB_{key.upper()}": as_text(github[key])
            for key in github
            if key not in ("event", "token", "action_path", "action_status")
        }
        variables |= {
            f"RUNNER_{key.upper()}": as_text(value) for key, value in self._runner().items() if value
        }
        if scope.action:
            variables["GITHUB_ACTION_PATH"] = scope.action
        path = os.pathsep.join([*self.paths, self._stand_ins(), self.rehearsal.env.get("PATH", os.defpath)])
        private = {"XDG_CACHE_HOME": str(self.home / "cache"), "CI": "true", "GITHUB_ACTIONS": "true"}
        return {**self.rehearsal.env, **private, **self.env, **scope.env, **variables, "PATH": path}

    def _stand_ins(self) -> str:
        folder = self.home / "programs"
        if not folder.exists():
            folder.mkdir(parents=True)
            for name, text in STAND_INS.items():
                (folder / name).write_text(text, encoding="utf-8")
                (folder / name).chmod(0o755)
        return str(folder)

    # Processes and what they write

    def _process(
        self,
        argv: Sequence[str],
        where: Path,
        environ: Mapping[str, str],
        output: commands.StepOutput,
        deadline: float,
    ) -> int:
        cancelled_before = self.rehearsal.cancelled.is_set()
        if cancelled_before:
            deadline = min(deadline, time.monotonic() + AFTER_CANCEL)
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
                cancelled = self.rehearsal.cancelled.is_set() and not cancelled_before
                if late or cancelled or self.rehearsal.aborted.is_set():
                    if late:
                        message = "the step was ended: its time is over"
                        output.annotations.append(commands.Annotation("error", "", message))
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
                    output.read(line)
                    self.masks += [mask for mask in output.masks if mask not in self.masks]
                    self._log(line.rstrip("\n"))
            return process.returncode
        finally:
            over.set()
            watcher.join()

    def _collect(self, step: Step, files: Mapping[str, Path], result: StepResult, *, failed: bool) -> None:
        for name, value in commands.pairs(files["GITHUB_ENV"]).items():
            if commands.FORBIDDEN.match(name):
                raise CheckFailed(f"GITHUB_ENV cannot set {name}")
            self.env[name] = value
        written = commands.pairs(files["GITHUB_OUTPUT"])
        # A script may set an output that it names on some runs only. One that failed may have set none.
        names = re.findall(r"[A-Za-z_][\w-]*", step.run)
        where = f"outputs of {step.id or step.title}"
        result.outputs = written if failed else Known(where, written, empty=names)
        for entry in commands.entries(files["GITHUB_PATH"]):
            self.paths = [entry, *(p for p in self.paths if p != entry)]
        if (size := files["GITHUB_STEP_SUMMARY"].stat().st_size) > SUMMARY_LIMIT:
            raise CheckFailed(f"the step's summary has {size} bytes: GitHub takes {SUMMARY_LIMIT}")
        summary = files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8", errors="replace")
        self.result.summary += self._masked(summary)

    def _print(self, text: str) -> None:
        self._log(text)
        self.rehearsal.print(f"{self.result.name}: {self._masked(text)}")

    def _masked(self, text: str) -> str:
        return commands.masked(text, self.masks)

    def _log(self, text: str) -> None:
        self.stream.write(self._masked(text) + "\n")
        self.stream.flush()


def _own_folder(scratch: Path, name: str) -> Path:
    """A new folder, named by the job. Two names may differ in punctuation alone."""
    slug = "".join(c if c.isalnum() or c in "-." else "_" for c in name)
    folder, number = scratch / slug, 1
    while True:
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
        number += 1
        folder = scratch / f"{slug}_{number}"


def hash_files(workspace: Path, *patterns: Value) -> str:
    """The SHA-256 of the SHA-256 of each matching file; empty if no file matches."""
    files: dict[str, None] = {}
    for pattern in map(as_text, patterns):
        for path in workspace.glob(pattern.removeprefix("!")):
            name = str(path)
            if pattern.startswith("!"):
                files.pop(name, None)
            elif path.is_file():
                files[name] = None
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(hashlib.sha256(Path(name).read_bytes()).digest())
    return total.hexdigest() if files else ""
