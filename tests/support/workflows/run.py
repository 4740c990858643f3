"""Run a workflow of a repository, its jobs in the order and by the rules of GitHub.

Every job has a fresh workspace, a home for caches and a temporary folder. A run sees the working tree of the
repository: changes that are not committed, but no new files.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provisioning.base.settings import ROOT
from tests.support.workflows import expression
from tests.support.workflows.api import listing
from tests.support.workflows.expression import Known, Unknown, Value, as_text, expand
from tests.support.workflows.files import (
    Job,
    Workflow,
    complete_inputs,
    read_workflow,
)
from tests.support.workflows.job import JobRun, status_functions
from tests.support.workflows.machine import (
    MAIN,
    NO_COMMIT,
    OWNER,
    TOOLKIT,
    JobResult,
    Machine,
    Repository,
    Result,
    fresh_environment,
    git,
    github_context,
    make_event,
    snapshot,
)


@dataclass(frozen=True)
class Finished:
    """A run that is over: what its jobs did, and what would be seen outside it."""

    every_job: Sequence[JobResult]
    """Also those that were left out, in the files' order."""
    lines: Sequence[str]

    @property
    def jobs(self) -> dict[str, JobResult]:
        """Those that ran, or were to."""
        return {job.name: job for job in self.every_job if job.result != "left out"}

    def results(self) -> dict[str, str]:
        return {name: job.result for name, job in self.jobs.items()}

    def log(self, job: str) -> str:
        log = self.jobs[job].log
        assert log is not None, f"{job} did not run"
        return log.read_text(encoding="utf-8")

    def failures(self) -> str:
        """Of each job that failed the error and the end of its log, to be shown where an assertion fails."""
        failed = [job for job in self.every_job if job.failure]
        ends = (f"━━ {job.name}: {job.failure}\n" + self.log(job.name)[-4000:] for job in failed)
        return "\n".join(ends)


def run_workflow(
    scratch: Path,
    name: str,
    root: Path = ROOT,
    *,
    event: str = "pull_request",
    ref: str = MAIN,
    everything_changed: bool = False,
    rows: Sequence[str] = (),
    env: Mapping[str, str | None] | None = None,
    variables: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    toolkit: Path = ROOT,
    cache: Path | None = None,
) -> Finished:
    """Run `.github/workflows/NAME.yml` of the repository at `root`, as GitHub does after this event.

    The change that is gated is the last commit. `env` is set in every job (None: not set); of a matrix only
    the jobs called `rows` run. `secrets` are the repository's and its environments'. Runs with the same
    `cache` share GitHub's cache. In `scratch` only logs remain.
    """
    work, stack = scratch / "run", contextlib.ExitStack()
    try:
        own = root.resolve() == toolkit.resolve()
        ours = snapshot(root, work / "repository", TOOLKIT if own else f"{OWNER}/{root.name}")
        theirs = ours if own else snapshot(toolkit, work / "toolkit", TOOLKIT)
        workflow = read_workflow(ours.root, f".github/workflows/{name}.yml")
        before = git(ours.root, "rev-list", "--first-parent", "--max-count=1", "--skip=1", "HEAD").strip()
        base = NO_COMMIT if everything_changed or not before else before
        caches = cache or work / "cache"
        environ = {**fresh_environment(os.environ, ROOT / ".nox"), **(env or {})}
        api = stack.enter_context(listing(caches))
        machine = Machine(
            scratch=work,
            logs=scratch / "logs",
            cache=caches,
            api=api,
            repository=ours,
            toolkit=theirs,
            event=make_event(workflow, event, ours, ref, base),
            env={name: value for name, value in environ.items() if value is not None},
            variables=variables or {},
            rows=tuple(rows),
        )
        machine.logs.mkdir(parents=True)
        # As on GitHub, inputs of `workflow_call` exist and are empty after another event.
        inputs = dict.fromkeys(workflow.call.inputs, "")
        results = _Run(machine, workflow, workflow, ours, inputs, secrets or {}).run()
        return Finished(results, machine.lines)
    finally:
        stack.close()
        shutil.rmtree(work, ignore_errors=True)


Ended = tuple[list[JobResult], Result, Mapping[str, str]]
"""Of a job of the file: the jobs that it stands for, their result together, and its outputs."""


@dataclass(slots=True)
class _Run:
    """The run of one file: of the workflow that the event started, or of one that a job of it calls."""

    machine: Machine
    workflow: Workflow
    caller: Workflow
    """The workflow that the event started. In called workflows too, contexts name this one."""
    repository: Repository
    inputs: Mapping[str, Value]
    secrets: Mapping[str, Value]
    """A called workflow has those that its caller names, and no other."""
    prefix: str = ""
    ended: dict[str, Ended] = field(default_factory=dict)

    def run(self) -> list[JobResult]:
        """The results of all jobs, in the file's order."""
        waiting = dict(self.workflow.jobs)
        while waiting:
            ready = [job for job in waiting.values() if all(need in self.ended for need in job.needs)]
            if not ready:
                raise Unknown(f"{self.workflow.path}: a job needs one that is not there")
            for job in ready:
                self.ended[job.id] = self._together(
                    job.id, [row() for row in self._rows(waiting.pop(job.id))]
                )
        return [result for name in self.workflow.jobs for result in self.ended[name][0]]

    def result(self) -> Result:
        return combined(result for _, result, _ in self.ended.values())

    def outputs(self) -> dict[str, str]:
        """What the workflow's caller is given."""
        jobs: dict[str, Value] = {
            name: {"outputs": Known(f"outputs of {name}", outputs)}
            for name, (_, _, outputs) in self.ended.items()
        }
        scope = expression.Scope({**self._contexts(), "jobs": Known("jobs", jobs)})
        return {name: as_text(expand(row.value, scope)) for name, row in self.workflow.call.outputs.items()}

    def _together(self, name: str, rows: Sequence[Ended]) -> Ended:
        outputs = dict.fromkeys(self._declared(self.workflow.jobs[name]), "")
        for _, _, written in rows:
            # Of two rows that set one output, the later one's counts; one that sets none overwrites nothing.
            outputs.update({name: value for name, value in written.items() if value})
        results = [result for results, _, _ in rows for result in results]
        return results, combined(result for _, result, _ in rows), outputs

    def _declared(self, job: Job) -> Iterable[str]:
        """The names of a job's outputs, also if it did not run."""
        location = self.machine.used(job.uses, self.repository) if job.uses else None
        return read_workflow(location[0].root, location[1]).call.outputs if location else job.outputs

    def _contexts(self) -> dict[str, Value]:
        return {
            "github": Known("github", github_context(self.machine, self.caller)),
            "inputs": Known("inputs", self.inputs),
            "vars": self.machine.variables,
            "secrets": self.secrets,
        }

    def _rows(self, job: Job) -> Iterator[Callable[[], Ended]]:
        """What to run for a job: one thing, or each row of its matrix."""
        needs: dict[str, Value] = {
            need: {"result": self.ended[need][1], "outputs": Known(f"outputs of {need}", self.ended[need][2])}
            for need in job.needs
        }
        contexts = {**self._contexts(), "needs": Known("needs", needs)}
        before = [self.ended[name][1] for name in self._ancestors(job)]
        succeeded = all(result == "success" for result in before)
        status = status_functions(succeeded=succeeded, failed="failure" in before)
        if not expression.condition(job.condition, expression.Scope(contexts, status)):
            yield self._not_run(self.prefix + job.id, "skipped")
            return
        rows: Sequence[Mapping[str, Value]] = [{}]
        if job.strategy:
            rows = expand(job.strategy.matrix["include"], expression.Scope(contexts))
            if not rows:
                raise Unknown(f"{self.workflow.path}: jobs.{job.id}: the matrix is empty")
        for row in rows:
            inner: dict[str, Value] = {**contexts, "matrix": Known("matrix", row)}
            name = as_text(expand(job.name or job.id, expression.Scope(inner)))
            if job.strategy and self.machine.rows and name not in self.machine.rows:
                yield self._not_run(self.prefix + name, "left out")
            else:
                yield functools.partial(self._run_row, job, inner, self.prefix + name)

    def _ancestors(self, job: Job) -> set[str]:
        return set(job.needs).union(*(self._ancestors(self.workflow.jobs[need]) for need in job.needs))

    def _not_run(self, name: str, result: Result) -> Callable[[], Ended]:
        return lambda: ([JobResult(name, result)], result, {})

    def _run_row(self, job: Job, contexts: Mapping[str, Value], name: str) -> Ended:
        if job.uses:
            return self._call(job, contexts, name)
        result = JobRun(self.machine, self.workflow, self.repository, job, contexts, name).run()
        return [result], result.result, result.outputs

    def _call(self, job: Job, contexts: Mapping[str, Value], name: str) -> Ended:
        """Run a job that is another workflow."""
        location = self.machine.used(job.uses, self.repository)
        if location is None:
            raise Unknown(f"{job.uses}: expected a workflow of {self.repository.name} or {TOOLKIT}")
        called = read_workflow(location[0].root, location[1])
        if "workflow_call" not in called.events:
            raise Unknown(f"{called.path} cannot be called")
        where = f"{self.workflow.path}: jobs.{job.id}"
        passed = expand(job.inputs, expression.Scope(contexts))
        inputs = complete_inputs(where, called.call.inputs, passed, typed=True)
        secrets = expand(job.secrets, expression.Scope(contexts))
        if unknown := set(secrets) - set(called.call.secrets):
            raise Unknown(f"{where}: secrets: {called.path} declares no {', '.join(sorted(unknown))}")
        inner = _Run(self.machine, called, self.caller, location[0], inputs, secrets, f"{name} / ")
        return inner.run(), inner.result(), inner.outputs()


def combined(results: Iterable[Result]) -> Result:
    """The result of several jobs together."""
    distinct = set(results)
    order: tuple[Result, ...] = ("failure", "success", "skipped", "left out")
    return next(result for result in order if result in distinct)
