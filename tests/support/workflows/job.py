"""Run one job: its steps in order, in a workspace of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.workflows import commands, expression
from tests.support.workflows.actions import JobSpace, stand_in
from tests.support.workflows.commands import StepFailed
from tests.support.workflows.expression import Known, Unknown, Value, as_text
from tests.support.workflows.files import Job, Step, Workflow, complete_inputs, read_action
from tests.support.workflows.machine import JobResult, Machine, Repository, StepResult, git

PROGRAMS = {
    "gh": """\
#!/bin/sh
if [ "$2" = view ]; then
  echo 'release not found' >&2
  exit 1
fi
""",
    "skopeo": """\
#!/bin/sh
for word; do
  case "$last" in --digestfile) echo "sha256:$(echo "$*" | sha256sum | cut -c -64)" > "$word" ;; esac
  last=$word
done
""",
}
"""Programs that change nothing: the user's own may have the right to publish."""

SHELLS = {"": ["bash", "-e"], "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail"]}


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
    failure: str = ""
    """The first step that failed, and its error."""


@dataclass
class JobRun:
    machine: Machine
    workflow: Workflow
    repository: Repository
    job: Job
    job_contexts: Mapping[str, Value]
    name: str

    def __post_init__(self) -> None:
        slug = "".join(c if c.isalnum() or c in "-." else "_" for c in self.name)
        self.home = self.machine.scratch / "jobs" / slug
        self.workspace = self.home / "workspace"
        self.temp = self.home / "temp"
        self.log = self.machine.logs / f"{slug}.log"
        self.result = JobResult(self.name, "success", log=self.log)
        self.paths: list[str] = []
        self.env: dict[str, str] = {}
        """Variables of the workflow and the job, and those that steps set for later steps."""
        self.step_count = 0

    def run(self) -> JobResult:
        for folder in (self.workspace, self.temp, self.home / "cache", self.home / "programs"):
            folder.mkdir(parents=True)
        for name, text in PROGRAMS.items():
            program = self.home / "programs" / name
            program.write_text(text, encoding="utf-8")
            program.chmod(0o755)
        (self.home / "event.json").write_text(json.dumps(self.machine.event.payload), encoding="utf-8")
        scope = _Scope({}, self.job_contexts["inputs"], {}, self.repository)
        self.minutes = expression.number(self._expand(self.job.timeout_minutes, scope))
        for level in (self.workflow.env, self.job.env):
            self.env |= self._texts(level, scope)
        with self.log.open("w", encoding="utf-8") as self.stream:
            for step in self.job.steps:
                self.result.steps.append(self._step(step, scope))
        self.result.outputs = self._texts(self.job.outputs, scope)
        self.result.result = "failure" if scope.failure else "success"
        self.result.failure = scope.failure
        return self.result

    def _step(self, step: Step, scope: _Scope) -> StepResult:
        result = StepResult(step.title)
        if step.id:
            scope.steps[step.id] = result
        inner = replace(scope, env=scope.env | self._texts(step.env, scope))
        if not expression.condition(step.condition, self._scope(inner)):
            return result
        result.title = as_text(self._expand(step.name, inner)) or step.title
        self._log(f"━━ {result.title}")
        try:
            if step.run:
                self._run(step, inner, result)
            elif (location := self.machine.used(step.uses, scope.repository)) is not None:
                self._use_action(step, *location, inner, result)
            else:
                self._use_stand_in(step, inner, result)
            result.outcome = result.conclusion = "success"
        except StepFailed as error:
            result.outcome = "failure"
            result.conclusion = "success" if step.continue_on_error else "failure"
            self._log(str(error))
            if not step.continue_on_error:
                scope.failure = scope.failure or f"{result.title}: {error}"
        return result

    # The three kinds of step

    def _run(self, step: Step, scope: _Scope, result: StepResult) -> None:
        if step.shell not in SHELLS:
            raise Unknown(f"the shell {step.shell!r}: expected one of {', '.join(SHELLS)}")
        self.step_count += 1
        folder = self.temp / f"step-{self.step_count}"
        folder.mkdir()
        script = folder / "script.sh"
        script.write_text(as_text(self._expand(step.run, scope)) + "\n", encoding="utf-8")
        files = {name: folder / name for name in commands.FILES}
        for file in files.values():
            file.touch()
        environ = self._environ(scope) | {name: str(file) for name, file in files.items()}
        self._log(f"$ {step.run.strip()}")
        code, output = self._process([*SHELLS[step.shell], str(script)], environ, folder / "output")
        self._log(output)
        self.result.annotations += commands.shown_annotations(output)
        self._collect(step, files, result, failed=code != 0)
        if code:
            raise StepFailed(f"ended with exit code {code}")

    def _use_action(
        self, step: Step, repository: Repository, path: str, scope: _Scope, result: StepResult
    ) -> None:
        home = self._downloaded(repository)
        action = read_action(home, path)
        inputs = complete_inputs(step.uses, action.inputs, self._expand(step.inputs, scope), typed=False)
        inner = _Scope({}, Known(f"inputs of {step.uses}", inputs), scope.env, repository, str(home / path))
        for entry in action.steps:
            self._step(entry, inner)
        outputs = {name: as_text(self._expand(row.value, inner)) for name, row in action.outputs.items()}
        result.outputs = Known(f"outputs of {step.uses}", outputs)
        if inner.failure:
            raise StepFailed(f"a step of {step.uses} failed: {inner.failure}")

    def _use_stand_in(self, step: Step, scope: _Scope, result: StepResult) -> None:
        third_party = stand_in(step.uses)
        inputs = complete_inputs(step.uses, third_party.inputs, self._expand(step.inputs, scope), typed=False)
        self._log(f"{step.uses.partition('@')[0]}: a stand-in")
        place = JobSpace(self.machine, self.workspace, self.temp, self.paths, self._log, self._show)
        outputs = third_party.act({name: as_text(value) for name, value in inputs.items()}, place)
        result.outputs = Known(f"outputs of {step.uses}", outputs)

    def _downloaded(self, repository: Repository) -> Path:
        """The job's own copy of a repository. GitHub's runner downloads one for its actions too."""
        copy = self.home / "actions" / repository.name
        if not copy.exists():
            git(repository.root, "checkout-index", "--all", f"--prefix={copy}/")
        return copy

    # Contexts and environment

    def _texts(self, values: Mapping[str, object], scope: _Scope) -> dict[str, str]:
        return {name: as_text(self._expand(value, scope)) for name, value in values.items()}

    def _expand(self, value: Any, scope: _Scope) -> Any:
        return expression.expand(value, self._scope(scope))

    def _github(self) -> Known:
        shared = self.job_contexts["github"]
        assert isinstance(shared, Mapping)
        return Known("github", {**shared, "workspace": str(self.workspace)})

    def _scope(self, scope: _Scope) -> expression.Scope:
        """What an expression of a step can name."""
        steps: dict[str, Value] = {
            name: {"outcome": step.outcome, "conclusion": step.conclusion, "outputs": step.outputs}
            for name, step in scope.steps.items()
        }
        # The workflow file that defines the job; in a called workflow it is not the caller's.
        job = {"workflow_repository": self.repository.name, "workflow_sha": self.repository.sha}
        contexts: dict[str, Value] = {
            **self.job_contexts,
            "github": self._github(),
            "inputs": scope.inputs,
            "env": {**self.env, **scope.env},
            "steps": Known("steps", steps),
            "job": Known("job", job),
        }
        failed = bool(scope.failure)
        return expression.Scope(contexts, status_functions(succeeded=not failed, failed=failed))

    def _environ(self, scope: _Scope) -> dict[str, str]:
        variables = {
            f"GITHUB_{name.upper()}": as_text(value)
            for name, value in self._github().items()
            if name not in ("event", "token")
        }
        variables |= {"GITHUB_EVENT_PATH": str(self.home / "event.json"), "RUNNER_TEMP": str(self.temp)}
        if scope.action:
            variables["GITHUB_ACTION_PATH"] = scope.action
        path = os.pathsep.join([*self.paths, str(self.home / "programs"), self.machine.env["PATH"]])
        private = {"XDG_CACHE_HOME": str(self.home / "cache"), "CI": "true", "GITHUB_ACTIONS": "true"}
        return {**self.machine.env, **private, **self.env, **scope.env, **variables, "PATH": path}

    # Processes and what they write

    def _process(self, argv: Sequence[str], environ: Mapping[str, str], output: Path) -> tuple[int, str]:
        """The exit code, and what was printed."""
        with output.open("wb") as stream:
            code = subprocess.run(
                argv,
                cwd=self.workspace,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=60 * self.minutes,
                check=False,
            ).returncode
        return code, output.read_text(encoding="utf-8", errors="replace")

    def _collect(self, step: Step, files: Mapping[str, Path], result: StepResult, *, failed: bool) -> None:
        self.env |= commands.pairs(files["GITHUB_ENV"])
        written = commands.pairs(files["GITHUB_OUTPUT"])
        # A step that failed may have set none of its outputs.
        result.outputs = written if failed else Known(f"outputs of {step.id or step.title}", written)
        added = files["GITHUB_PATH"].read_text(encoding="utf-8").splitlines()
        self.paths[:0] = reversed(added)
        self.result.summary += files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")

    def _show(self, text: str) -> None:
        self._log(text)
        self.machine.lines.append(f"{self.result.name}: {text}")

    def _log(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()


def status_functions(*, succeeded: bool, failed: bool) -> dict[str, expression.Function]:
    """Nobody cancels a run here."""
    return {
        "always": lambda: True,
        "cancelled": lambda: False,
        "success": lambda: succeeded,
        "failure": lambda: failed,
    }
