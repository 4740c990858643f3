"""Run a workflow's jobs on this machine, in the order and by the rules of GitHub's runner.

Every job has a fresh workspace, a home for caches and a temporary folder; jobs that do not need each other
run side by side. What jobs share on GitHub is in `equivalents.Machine`.
"""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from ci.github.rehearse import expression
from ci.github.rehearse.equivalents import Repository
from ci.github.rehearse.expression import Function, Known, Value, as_text, expand_all, truthy
from ci.github.rehearse.job import JobRun
from ci.github.rehearse.model import (
    Job,
    Workflow,
    allowed_in,
    check_permissions,
    complete_inputs,
    matrix_rows,
    read_workflow,
)
from ci.github.rehearse.rehearsal import Choice, JobResult, Rehearsal, Result, github_context
from provisioning.base.errors import UsageError

OWN = ("./", "$/")
"""Prefixes of a repository's own files: in the job's workspace, or at the running commit."""


@dataclass(slots=True)
class _WorkflowRun:
    repository: Repository
    workflow: Workflow
    caller: Workflow
    """The workflow that the event started. In called workflows too, contexts name this one."""
    inputs: Mapping[str, Value]
    prefix: str
    chosen: frozenset[str]
    done: dict[str, threading.Event]
    results: dict[str, Result] = field(default_factory=dict)
    outputs: dict[str, Mapping[str, Value]] = field(default_factory=dict)
    jobs: dict[str, list[JobResult]] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def ancestors(self, job: Job) -> set[str]:
        names: set[str] = set()
        for need in job.needs:
            names |= {need} | self.ancestors(self.workflow.jobs[need])
        return names


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
    """The results of all jobs in the file's order, the result of the workflow, and its outputs."""
    chosen, choice_in_called = _chosen(workflow, choice)
    run = _WorkflowRun(
        repository=repository or rehearsal.machine.repository,
        workflow=workflow,
        caller=caller or workflow,
        inputs=inputs,
        prefix=prefix,
        chosen=chosen,
        done={name: threading.Event() for name in workflow.jobs},
    )
    _run_all(
        rehearsal,
        run,
        [
            threading.Thread(target=_run_when_ready, args=(rehearsal, run, job, choice_in_called))
            for job in workflow.jobs.values()
        ],
    )
    if run.errors:
        raise run.errors[0]
    results = [result for name in workflow.jobs for result in run.jobs.get(name, [])]
    contexts: dict[str, Value] = {
        "jobs": Known("jobs", {name: {"outputs": outputs} for name, outputs in run.outputs.items()}),
        "inputs": Known("inputs", inputs),
    }
    outputs = {name: as_text(expand_all(text, contexts, {})) for name, text in workflow.outputs.items()}
    return results, combined(run.results.values()), outputs


def _run_all(rehearsal: Rehearsal, run: _WorkflowRun, jobs: Sequence[threading.Thread]) -> None:
    """Start all jobs and wait until they have ended, because the caller deletes their workspaces.

    The first interruption cancels as GitHub does, the second ends everything. It may come while jobs are
    being started, when some are already running."""
    interruption: KeyboardInterrupt | None = None
    waiting = iter(jobs)
    # Events, not threads: before Python 3.13 a thread whose join was interrupted counts as ended.
    while not all(done.is_set() for done in run.done.values()):
        try:
            for thread in waiting:
                thread.start()
            for done in run.done.values():
                while not done.wait(0.2):
                    pass  # in short waits, so that an interruption arrives
        except KeyboardInterrupt as error:
            if rehearsal.cancelled.is_set():
                rehearsal.abort()
            rehearsal.cancelled.set()
            interruption = error
    if interruption:
        raise interruption


def combined(results: Iterable[Result]) -> Result:
    """The result of several jobs together."""
    distinct = set(results)
    order: tuple[Result, ...] = ("failure", "cancelled", "success")
    for result in order:
        if result in distinct:
            return result
    return "left out" if distinct == {"left out"} else "skipped"


def _chosen(workflow: Workflow, choice: Choice) -> tuple[frozenset[str], Choice]:
    """The jobs to run, and the choice within the workflows that they call."""
    if not choice.only:
        return frozenset(workflow.jobs), choice
    in_called = replace(choice, only=())
    named = {name for name in workflow.jobs if _matches(name, choice.only)}
    if not named:
        # The named job may be one of a called workflow.
        named, in_called = {name for name, job in workflow.jobs.items() if job.uses}, choice
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
    return frozenset(chosen), in_called


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _run_when_ready(rehearsal: Rehearsal, run: _WorkflowRun, job: Job, choice: Choice) -> None:
    try:
        for need in job.needs:
            run.done[need].wait()
        if run.errors:
            return
        if job.id in run.chosen:
            _run_job(rehearsal, run, job, choice)
        else:
            _record(run, job, "left out", [JobResult(run.prefix + _plain_name(job), "left out")])
    except BaseException as error:
        run.errors.append(error)
        rehearsal.abort()
    finally:
        run.done[job.id].set()


def _record(
    run: _WorkflowRun,
    job: Job,
    result: Result,
    jobs: list[JobResult],
    outputs: Mapping[str, str] | None = None,
) -> None:
    run.results[job.id], run.jobs[job.id] = result, jobs
    # If the job does not run, the called workflow is not read, and its outputs are not known.
    outputs = {**dict.fromkeys(job.outputs, ""), **(outputs or {})}
    run.outputs[job.id] = {} if job.uses and not outputs else Known(f"outputs of {job.id}", outputs)


def _run_job(rehearsal: Rehearsal, run: _WorkflowRun, job: Job, choice: Choice) -> None:
    needs = {need: {"result": run.results[need], "outputs": run.outputs[need]} for need in job.needs}
    contexts: dict[str, Value] = {
        "github": github_context(rehearsal, run.caller, job.id),
        "needs": Known("needs", needs),
        "inputs": Known("inputs", run.inputs),
        "vars": dict(rehearsal.variables),
    }
    before = [run.results[name] for name in run.ancestors(job)]
    status: dict[str, Function] = {
        "always": lambda: True,
        "cancelled": rehearsal.cancelled.is_set,
        "success": lambda: not rehearsal.cancelled.is_set() and all(r == "success" for r in before),
        "failure": lambda: "failure" in before,
    }

    def wanted() -> bool:
        return not rehearsal.aborted.is_set() and expression.condition(job.condition, contexts, status)

    name = run.prefix + _plain_name(job)
    if not wanted():
        result: Result = "cancelled" if rehearsal.cancelled.is_set() else "skipped"
        rehearsal.print(f"{name}: {result}")
        _record(run, job, result, [JobResult(name, result)])
        return
    rows: Sequence[dict[str, Any]] = [{}]
    if job.strategy.matrix is not None:
        rows = matrix_rows(expand_all(job.strategy.matrix, contexts, {}))
    titles = [_row_name(job, row, contexts) for row in rows]
    columns = {key for row in rows for key in row}
    results = [JobResult(run.prefix + title, "left out") for title in titles]
    called: dict[int, list[JobResult]] = {}
    outputs: dict[str, str] = {}
    stop = threading.Event()
    side_by_side = expression.number(expand_all(job.strategy.max_parallel, contexts, {}))
    slots = threading.Semaphore(int(side_by_side) or len(rows))

    def run_row(number: int) -> None:
        row = Known("matrix", rows[number], empty=columns)
        strategy = {"job-index": number, "job-total": len(rows)}
        inner: dict[str, Value] = {**contexts, "matrix": row, "strategy": strategy}
        title = run.prefix + titles[number]
        try:
            # A called workflow takes no slot: its jobs do.
            with slots, nullcontext() if job.uses else rehearsal.slots:
                if stop.is_set() or (rehearsal.cancelled.is_set() and not wanted()):
                    results[number] = JobResult(title, "cancelled")
                elif job.uses:
                    called[number], results[number] = _call(rehearsal, run, job, inner, choice, title)
                else:
                    job_run = JobRun(rehearsal, run.workflow, run.repository, job, inner, title)
                    results[number] = job_run.run()
            if results[number].result == "failure" and truthy(expand_all(job.strategy.fail_fast, inner, {})):
                stop.set()
            outputs.update(results[number].outputs)
        except BaseException as error:
            run.errors.append(error)
            rehearsal.abort()

    threads = [
        threading.Thread(target=run_row, args=(number,))
        for number, title in enumerate(titles)
        if job.strategy.matrix is None or not choice.rows or _matches(title, choice.rows)
    ]
    if not threads:
        raise UsageError(
            f"the matrix of {name} has no job {' or '.join(choice.rows)}",
            remedy=f"use one of: {', '.join(titles)}",
        )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jobs = [one for number, result in enumerate(results) for one in called.get(number, [result])]
    _record(run, job, combined(r.result for r in results if r.result != "left out"), jobs, outputs)


def _plain_name(job: Job) -> str:
    """The job's name without its row."""
    return job.name if job.name and "${{" not in job.name else job.id


def _row_name(job: Job, row: Mapping[str, Any], contexts: Mapping[str, Value]) -> str:
    if "${{" in job.name:
        return as_text(expression.expand(job.name, {**contexts, "matrix": row}, {}))
    shown = ", ".join(as_text(v) for v in row.values() if not isinstance(v, (Mapping, list)))
    return (job.name or job.id) + (f" ({shown})" if shown else "")


def _call(
    rehearsal: Rehearsal,
    run: _WorkflowRun,
    job: Job,
    contexts: Mapping[str, Value],
    choice: Choice,
    title: str,
) -> tuple[list[JobResult], JobResult]:
    """Run a job that is another workflow; returns the results of its jobs, and its own."""
    repository, path = called_from(rehearsal, run.repository, job.uses)
    called = read_workflow(repository.root, path)
    if "workflow_call" not in called.events:
        raise UsageError(f"{called.path} cannot be called", remedy="add `on: workflow_call` to it")
    where = f"{run.workflow.path}: jobs.{job.id}"
    if job.secrets is not None:
        raise UsageError(
            f"{where}.secrets: a rehearsal has no secrets", remedy="choose other jobs with --only"
        )
    check_permissions(where, allowed_in(run.workflow, job), called)
    inputs = complete_inputs(where, called.inputs, expand_all(job.inputs, contexts, {}), typed=True)
    jobs, result, outputs = run_workflow(
        rehearsal, called, inputs, choice, f"{title} / ", repository=repository, caller=run.caller
    )
    return jobs, JobResult(title, result, outputs=outputs)


def called_from(rehearsal: Rehearsal, repository: Repository, uses: str) -> tuple[Repository, str]:
    """The repository of a called workflow, and its path there."""
    if uses.startswith(OWN):
        return repository, uses[2:]
    location = rehearsal.machine.used(uses)
    if location is None:
        raise UsageError(
            f"{uses}: expected a workflow of {repository.name} or of this toolkit", remedy="rehearse it there"
        )
    rehearsal.print(f"{uses}: this checkout stands in, at {location[0].sha[:12]}")
    return location
