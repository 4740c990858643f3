"""The stage: choose tests, take known verdicts from the memory, run the others, compare with the ledger."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.engine.installed import ready_runner
from ci.engine.jobs import Job, default_slots, memory_budget, parse_shard, run_jobs, shard
from ci.engine.memo import VerdictCache
from ci.engine.progress import JobProgress, Line, progress
from ci.engine.workers.parent import Setup, WorkerSlot
from ci.upstream.expression import matcher
from ci.upstream.judge import Judge
from ci.upstream.junit import junit_text
from ci.upstream.ledger import UNKNOWN, Cost, Verdict, load_durations, load_ledger
from ci.upstream.process import TestWorker, setup_of
from ci.upstream.suite import Basis, Suite, basis_of, installed, worker_environment
from provisioning.base.commands import quoted, session, typed
from provisioning.base.errors import UsageError
from provisioning.base.findings import Artifact, Severity, StageRun
from provisioning.base.rendering import terminal
from provisioning.base.settings import Selection, selection_of
from provisioning.environment import resolve

RUNNER_MEMORY = 256 << 20
"""Beside what the worker itself takes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be run, on what, and what is expected of it."""

    suite: Suite
    basis: Basis
    setup: Setup
    judge: Judge
    costs: Mapping[str, Cost]
    slots: int

    def job(self, test: str) -> Job:
        cost = self.costs.get(test, UNKNOWN)
        return Job(test, cost.seconds, (cost.megabytes << 20) + RUNNER_MEMORY)


class Workers:
    """Starts workers for the slots. One that listed the tests is the first that a slot gets."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._idle: list[TestWorker] = []

    def tests(self) -> list[str]:
        self._idle.append(TestWorker(self._setup))
        return self._idle[0].tests()

    def take(self) -> TestWorker:
        try:
            return self._idle.pop()
        except IndexError:
            return TestWorker(self._setup)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


def run_suite(suite: Suite, args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    selection = selection_of(args)
    _check(args, selection)
    command = typed(f"nox -s {suite.stage} --", sys.argv[2:])
    stage = StageRun(suite.stage, selection.profile, selection.target, command)
    if args.list:
        _print_list(*_tests(suite, args, selection, environ))
        return 0
    with stage.reported(selection.reports, "delegate-not-measured"):
        _run(suite, args, selection, environ, stage)
    return stage.close(
        selection.reports,
        show=lambda report: terminal.show(
            replace(report, metrics={k: v for k, v in report.metrics.items() if isinstance(v, int | float)})
        ),
    )


def _check(args: argparse.Namespace, selection: Selection) -> None:
    if selection.target != "x86_64-linux":
        raise UsageError(
            f"--target {selection.target}: the emulator runs on x86_64-linux only", remedy="omit --target"
        )
    if len(selection.socs) > 1:
        raise UsageError(
            f"--soc {','.join(selection.socs)}: one chip at a time", remedy=quoted("--soc", selection.soc)
        )
    if args.shard:
        parse_shard(args.shard)


def _tests(
    suite: Suite, args: argparse.Namespace, selection: Selection, environ: Mapping[str, str]
) -> tuple[Plan, list[str]]:
    """The plan and the chosen tests, for what runs none."""
    plan = make_plan(suite, args, selection, environ)
    workers = Workers(plan.setup)
    try:
        return plan, choose(plan, args, list_tests(plan, selection, workers))
    finally:
        workers.close()


def _run(
    suite: Suite, args: argparse.Namespace, selection: Selection, environ: Mapping[str, str], stage: StageRun
) -> None:
    plan = make_plan(suite, args, selection, environ)
    workers = Workers(plan.setup)
    memory = Memory(plan, VerdictCache(selection.store, "delegate"))
    try:
        tests = list_tests(plan, selection, workers)
        chosen = choose(plan, args, tests)
        known = {} if args.no_cache else memory.known(chosen)
        jobs = [plan.job(test) for test in chosen if test not in known]
        _announce(plan, len(known), jobs)
        verdicts = {**known, **_run_jobs(plan, jobs, workers, memory, args)}
    finally:
        workers.close()
    memory.prune()
    judge = plan.judge
    if args.update_ledger:
        judge = replace(judge, ledger=judge.updated_ledger(verdicts.values(), plan.costs, tests))
    judge.findings(stage, verdicts.values())
    if missing := len(chosen) - len(verdicts):
        stage.add(
            "delegate-stopped",
            Severity.NOTE,
            suite.stage,
            f"{missing} tests were not reached, because --fail-fast stopped at a surprise",
            "run without --fail-fast",
        )
    ran = [verdict for verdict in verdicts.values() if not verdict.cached]
    stage.metrics |= {
        **judge.counts(verdicts.values()),
        "not_reached": missing,
        "selected": len(chosen),
        "workers": plan.slots,
        "test_seconds": round(sum(verdict.seconds for verdict in ran), 1),
        "test_cpu_seconds": round(sum(verdict.cpu_seconds for verdict in ran), 1),
        "soc": judge.soc,
        **plan.basis.as_metrics(),
    }
    junit = judge.logs / "junit.xml"
    junit.parent.mkdir(parents=True, exist_ok=True)
    junit.write_text(
        junit_text(verdicts.values(), judge.ledger, judge.soc, judge.logs, suite.stage, suite.module),
        encoding="utf-8",
    )
    stage.artifacts.append(Artifact.of("junit", junit))


def make_plan(
    suite: Suite, args: argparse.Namespace, selection: Selection, environ: Mapping[str, str]
) -> Plan:
    """All but which tests there are, which may take a worker to know."""
    package = installed(suite)
    found = resolve(selection, environ)
    runner = ready_runner(environ, selection.reports)
    slots = args.jobs or default_slots()
    environment = worker_environment(found, environ, runner, slots)
    logs = Path(selection.reports).absolute() / suite.stage.removeprefix("test_")
    return Plan(
        suite=suite,
        basis=basis_of(package, found.root("qnn-sdk").path, runner, selection.soc, environment),
        setup=setup_of(suite, package.file, environment, logs, args.timeout),
        judge=Judge(load_ledger(selection.profile), selection.soc, logs),
        costs=load_durations(),
        slots=slots,
    )


def list_tests(plan: Plan, selection: Selection, workers: Workers) -> list[str]:
    """Every test of the suite; a worker lists them unless this installation is known already."""
    cache = VerdictCache(selection.store, "delegate")
    reply = cache.through(plan.basis.installed.key(), lambda: {"tests": list(workers.tests())})
    tests = reply["tests"]
    assert isinstance(tests, list)
    return [str(name) for name in tests]


def choose(plan: Plan, args: argparse.Namespace, tests: Sequence[str]) -> list[str]:
    """The tests that the flags name, sorted. A ledger that names unknown tests is an error."""
    ledger, version = plan.judge.ledger, plan.basis.installed.versions["executorch"]
    named = {each.test for each in ledger.expected} | set(ledger.sample)
    if unknown := sorted(named - set(tests)):
        raise UsageError(
            f"the ledger {ledger.profile} names {unknown[0]}, and executorch {version} has no such test",
            remedy="remove it from the ledger",
        )
    matches = matcher(args.expressions)
    jobs = [plan.job(test) for test in (ledger.sample if args.sample else tests) if matches(test)]
    chosen = sorted(job.name for job in shard(jobs, *parse_shard(args.shard or "1/1")))
    if not chosen:
        flags = [word for each in args.expressions for word in ("-k", each)]
        flags += ["--sample"] if args.sample else []
        flags += ["--shard", args.shard] if args.shard else []
        raise UsageError(
            f"no test of executorch {version} matches {quoted(*flags)}",
            remedy=session(plan.suite.stage, "--list"),
        )
    return chosen


class Memory:
    """Verdicts of earlier runs. Only what the ledger expects is remembered: a surprise runs again each time,
    so that its log and files can be read."""

    def __init__(self, plan: Plan, cache: VerdictCache) -> None:
        self._plan, self._cache = plan, cache

    def known(self, tests: Iterable[str]) -> dict[str, Verdict]:
        known = {}
        for test in tests:
            if entry := self._cache.get(self._plan.basis.key(test)):
                known[test] = Verdict(
                    test,
                    outcome=str(entry["outcome"]),
                    reason=str(entry["reason"]),
                    subtests=int(str(entry["subtests"])),
                    seconds=float(str(entry["seconds"])),
                    cached=True,
                )
        return known

    def record(self, verdict: Verdict) -> None:
        if verdict.crashed or self._plan.judge.is_surprise(verdict):
            return
        names = ("test", "outcome", "reason", "subtests", "seconds")
        self._cache.put(self._plan.basis.key(verdict.test), {name: getattr(verdict, name) for name in names})

    def prune(self) -> None:
        self._cache.prune()


class _Observer:
    """Remembers and shows each verdict when it comes, so that an interrupted run is not lost."""

    def __init__(self, memory: Memory, shown: JobProgress[Verdict]) -> None:
        self._memory, self._shown = memory, shown

    def started(self, job: Job) -> None:
        self._shown.started(job)

    def ended(self, job: Job, result: Verdict, seconds: float) -> None:
        self._memory.record(result)
        self._shown.ended(job, result, seconds)


def _run_jobs(
    plan: Plan, jobs: Sequence[Job], workers: Workers, memory: Memory, args: argparse.Namespace
) -> dict[str, Verdict]:
    if not jobs:
        return {}

    def work(job: Job, worker: TestWorker) -> Verdict:
        return worker.run(job.name, keep=args.keep)

    def line(verdict: Verdict) -> Line:
        return _line(verdict, plan.judge)

    with progress("delegate tests", jobs, plan.slots, line) as shown:
        return run_jobs(
            jobs,
            lambda: WorkerSlot(workers.take, work),
            slots=plan.slots,
            memory=memory_budget(),
            observer=_Observer(memory, shown),
            stop_after=lambda job, verdict: args.fail_fast and plan.judge.is_surprise(verdict),
        )


WORDS = {"passed": "passed", "failed": "FAILED", "not_run": "not run", "expected_failure": "expected"}


def _line(verdict: Verdict, judge: Judge) -> Line:
    surprise = judge.is_surprise(verdict)
    note = "" if verdict.outcome == "passed" else verdict.reason
    return Line(WORDS[verdict.outcome] + ("!" if surprise else ""), note, surprise, verdict.seconds)


def _print_list(plan: Plan, tests: Sequence[str]) -> None:
    for test in tests:
        cost = plan.costs.get(test)
        entry = plan.judge.ledger.entry(test, plan.judge.soc)
        length = f"{cost.seconds:7.1f} s" if cost else "        ?"
        print(f"{length}  {test}" + (f"  [{entry.outcome}]" if entry else ""))
    seconds = sum(plan.job(test).seconds for test in tests)
    print(f"{len(tests)} tests, about {seconds / plan.slots / 60:.1f} min on {plan.slots} cores")


def _announce(plan: Plan, cached: int, jobs: Sequence[Job]) -> None:
    package = plan.basis.installed
    absent = f"; stand-ins for {', '.join(package.absent)}" if package.absent else ""
    sys.stderr.write(
        f"{cached + len(jobs)} tests on {plan.judge.soc}: executorch {package.versions['executorch']}, "
        f"QNN {plan.basis.sdk['build_id']}; {cached} cached, {len(jobs)} to run on {plan.slots} workers"
        f"{absent}\n"
    )
    sys.stderr.flush()
