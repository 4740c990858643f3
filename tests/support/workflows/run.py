"""Run a job of a workflow: its steps in order, in a workspace of its own.

What a run of all jobs is (their order, their matrix, which are left out) is GitHub's part: a test hands each
job what it needs of the earlier ones.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tests.support.workflows.commands import FILES, pairs
from tests.support.workflows.expression import (
    Scope,
    Value,
    as_text,
    condition,
    expand,
    status_functions,
    texts,
)
from tests.support.workflows.files import Input, Step, read_action, read_workflow
from tests.support.workflows.machine import Machine, Repository, StepFailed
from tests.support.workflows.stand_ins import STAND_INS


@dataclass(slots=True)
class JobResult:
    result: Literal["success", "failure"] = "success"
    log: str = ""
    """What was printed, with the summary of each step."""
    outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Steps:
    """A job, or a composite action that it uses: what its steps share."""

    inputs: Mapping[str, Value]
    env: dict[str, str]
    """Variables of the steps that use the action. They override the job's."""
    repository: Repository
    """The repository that `$/` means here."""
    action: str = ""
    """The composite action's folder."""
    done: dict[str, Value] = field(default_factory=dict)
    failure: str = ""
    """The first step that failed, and its error."""


def defaults(declared: Mapping[str, Input]) -> dict[str, Value]:
    return {name: row.default or ("" if row.type == "string" else False) for name, row in declared.items()}


class JobRun:
    """`needs` has the results of the jobs that it needs, `matrix` its row."""

    def __init__(
        self,
        machine: Machine,
        repository: Repository,
        path: str,
        job: str,
        inputs: Mapping[str, Value] | None = None,
        needs: Mapping[str, JobResult] | None = None,
        matrix: Mapping[str, Value] | None = None,
    ) -> None:
        self.machine, self.repository = machine, repository
        self.workflow = read_workflow(repository.root, path)
        self.job = self.workflow.jobs[job]
        self.inputs = {**defaults(self.workflow.call.inputs), **(inputs or {})}
        self.contexts: dict[str, Value] = {
            "matrix": matrix or {},
            "needs": {
                name: {"result": row.result, "outputs": row.outputs} for name, row in (needs or {}).items()
            },
        }
        self.lines: list[str] = []
        home = machine.place_of(f"{job}-{(matrix or {}).get('name', '')}")
        self.workspace, self.temp, self.caches = home / "workspace", home / "temp", home / "cache"
        self.paths: list[str] = []
        self.env: dict[str, str] = {}
        """Variables of the workflow and the job, and those that steps set for later steps."""
        self.count = 0

    def run(self) -> JobResult:
        for folder in (self.workspace, self.temp, self.caches):
            folder.mkdir(parents=True)
        (self.temp / "event.json").write_text(json.dumps(self.machine.event), encoding="utf-8")
        steps = _Steps(self.inputs, {}, self.repository)
        for level in (self.workflow.env, self.job.env):
            self.env |= texts(level, self._scope(steps))
        for step in self.job.steps:
            self._step(step, steps)
        outputs = texts(self.job.outputs, self._scope(steps))
        return JobResult("failure" if steps.failure else "success", "\n".join(self.lines), outputs)

    def _step(self, step: Step, steps: _Steps) -> None:
        inner = replace(steps, env=steps.env | texts(step.env, self._scope(steps)))
        outputs: dict[str, str] = {}
        if condition(step.condition, self._scope(inner)):
            self.lines.append(f"━━ {step.title}")
            try:
                outputs |= self._run(step, inner) if step.run else self._use(step, inner)
            except StepFailed as error:
                self.lines.append(str(error))
                outputs |= error.outputs
                steps.failure = steps.failure or f"{step.title}: {error}"
        if step.id:
            steps.done[step.id] = {"outputs": outputs}

    def _run(self, step: Step, steps: _Steps) -> Mapping[str, str]:
        self.count += 1
        folder = self.temp / f"step-{self.count}"
        folder.mkdir()
        script, printed = folder / "script.sh", folder / "output"
        script.write_text(as_text(expand(step.run, self._scope(steps))) + "\n", encoding="utf-8")
        files = {name: folder / name for name in FILES}
        for file in files.values():
            file.touch()
        # In a file, as what it leaves running would hold a pipe.
        with printed.open("wb") as stream:
            code = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
                cwd=self.workspace / as_text(expand(step.working_directory, self._scope(steps))),
                env=self._environ(steps) | {name: str(file) for name, file in files.items()},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=3600,
                check=False,
            ).returncode
        shown = (printed, files["GITHUB_STEP_SUMMARY"])
        self.lines += [f"$ {step.run}", *(file.read_text(errors="replace") for file in shown)]
        self.env |= pairs(files["GITHUB_ENV"])
        self.paths[:0] = reversed(files["GITHUB_PATH"].read_text(encoding="utf-8").splitlines())
        outputs = pairs(files["GITHUB_OUTPUT"])
        if code:
            raise StepFailed(f"ended with exit code {code}", outputs)
        return outputs

    def _use(self, step: Step, steps: _Steps) -> Mapping[str, str]:
        passed = texts(step.inputs, self._scope(steps))
        location = self.machine.used(step.uses, steps.repository)
        if location is None:
            return STAND_INS[step.uses.partition("@")[0]](passed, self)
        repository, path = location
        action = read_action(repository.root, path)
        inputs = {**defaults(action.inputs), **passed}
        inner = _Steps(inputs, steps.env, repository, str(repository.root / path))
        for entry in action.steps:
            self._step(entry, inner)
        if inner.failure:
            raise StepFailed(f"a step of {step.uses} failed: {inner.failure}")
        return texts({name: row.value for name, row in action.outputs.items()}, self._scope(inner))

    def _scope(self, steps: _Steps) -> Scope:
        """What an expression of a step can name."""
        github: dict[str, Value] = {**self.machine.github, "event": self.machine.event}
        contexts: dict[str, Value] = {
            **self.contexts,
            "github": {**github, "workspace": str(self.workspace)},
            "inputs": steps.inputs,
            "env": {**self.env, **steps.env},
            "runner": {"temp": str(self.temp), "arch": "X64"},
            "steps": steps.done,
            # Of the workflow file that defines the job; in a called workflow it is not the caller's.
            "job": {"workflow_repository": self.repository.name, "workflow_sha": self.repository.sha},
        }
        return Scope(contexts, status_functions(failed=bool(steps.failure)))

    def _environ(self, steps: _Steps) -> dict[str, str]:
        variables = {f"GITHUB_{name.upper()}": value for name, value in self.machine.github.items()}
        variables |= {
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_EVENT_PATH": str(self.temp / "event.json"),
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_ACTION_PATH": steps.action,
            "XDG_CACHE_HOME": str(self.caches),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "PATH": os.pathsep.join([*self.paths, self.machine.env["PATH"]]),
        }
        return {**self.machine.env, **self.env, **steps.env, **variables}


def run_gate(machine: Machine) -> dict[str, JobResult]:
    """The gate as the repository's workflow calls it, its jobs by their names."""
    caller = read_workflow(machine.own.root, ".github/workflows/qnn.yml").jobs["qnn"]
    called = machine.used(caller.uses, machine.own)
    assert called is not None, caller.uses
    inputs = expand(caller.inputs, Scope({}))

    def run(job: str, needs: Mapping[str, JobResult], row: Mapping[str, Value] | None = None) -> JobResult:
        return JobRun(machine, *called, job, inputs, needs, row).run()

    plan = run("plan", {})
    rows = json.loads(plan.outputs["jobs"])
    stages = {row["name"]: run("stage", {"plan": plan}, row) for row in rows}
    good = all(stage.result == "success" for stage in stages.values())
    needs = {"plan": plan, "stage": JobResult("success" if good else "failure")}
    return {"plan": plan, **stages, **{name: run(name, needs) for name in ("report", "verdict")}}


def results(jobs: Mapping[str, JobResult]) -> dict[str, str]:
    return {name: job.result for name, job in jobs.items()}


def failures(jobs: Mapping[str, JobResult]) -> str:
    """The end of the log of each job that failed, to be shown where an assertion fails."""
    failed = (f"━━ {name}\n{job.log[-4000:]}" for name, job in jobs.items() if job.result == "failure")
    return "\n".join(failed)


ANNOTATION = re.compile(r"^::(?:error|warning) .*$", re.MULTILINE)
"""What GitHub shows beside the files of a change."""
