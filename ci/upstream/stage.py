"""The stage: choose tests, take known verdicts from the memory, run the others, compare with the ledger."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.engine.installed import ready_runner
from ci.engine.jobs import Job, default_slots, memory_budget, parse_shard, run_jobs, shard
from ci.engine.memo import Touched
from ci.engine.progress import Line, progress
from ci.engine.workers.parent import Setup, WorkerSlot
from ci.upstream.expression import matcher
from ci.upstream.judge import Judge
from ci.upstream.junit import junit_text
from ci.upstream.ledger import UNKNOWN, Cost, Verdict, load_durations, load_ledger
from ci.upstream.memory import Memory
from ci.upstream.process import TestWorker, setup_of
from ci.upstream.suite import Machinery, Suite, machinery, worker_environment
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
    machinery: Machinery
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

    def tests(self) -> tuple[list[str], Touched]:
        worker = TestWorker(self._setup)
        self._idle.append(worker)
        return worker.tests(), worker.common

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
        _run(suite, args, selection, environ, stage)
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


def _run(
    suite: Suite, args: argparse.Namespace, selection: Selection, environ: Mapping[str, str], stage: StageRun
) -> None:
    plan = make_plan(suite, args, selection, environ)
    memory = Memory(suite, plan.machinery, plan.judge, selection.store, reuse=not args.no_cache)
    workers = Workers(plan.setup)
    try:
        tests = memory.tests(workers.tests)
        chosen = choose(plan, args, tests)
        if args.list:
            _print_list(plan, chosen)
            return
        known = memory.known(chosen)
        jobs = [plan.job(test) for test in chosen if test not in known]
        _announce(plan, len(known), jobs)
        verdicts = {**known, **_run_jobs(plan, jobs, workers, memory, args)}
    finally:
        workers.close()
        memory.close()
    judge = plan.judge
    if args.update_ledger:
        judge = replace(judge, ledger=judge.updated_ledger(verdicts.values(), plan.costs, tests))
    _report(stage, plan, judge, verdicts, len(chosen))
    if memory.not_remembered:
        test, reason = next(iter(memory.not_remembered.items()))
        stage.add(
            "delegate-not-remembered",
            Severity.NOTE,
            test,
            f"{len(memory.not_remembered)} tests will run again next time: {reason}",
            "",
        )


def _report(
    stage: StageRun, plan: Plan, judge: Judge, verdicts: Mapping[str, Verdict], selected: int
) -> None:
    judge.findings(stage, verdicts.values())
    if missing := selected - len(verdicts):
        stage.add(
            "delegate-stopped",
            Severity.NOTE,
            stage.stage,
            f"{missing} tests were not reached, because --fail-fast stopped at a surprise",
            "run without --fail-fast",
        )
    ran = [verdict for verdict in verdicts.values() if not verdict.cached]
    stage.metrics |= {
        **judge.counts(verdicts.values()),
        "not_reached": missing,
        "selected": selected,
        "workers": plan.slots,
        "test_seconds": round(sum(verdict.seconds for verdict in ran), 1),
        "test_cpu_seconds": round(sum(verdict.cpu_seconds for verdict in ran), 1),
        "soc": judge.soc,
        **plan.machinery.as_metrics(),
    }
    junit = judge.logs / "junit.xml"
    junit.parent.mkdir(parents=True, exist_ok=True)
    text = junit_text(verdicts.values(), judge.ledger, judge.soc, judge.logs, stage.stage, plan.suite.module)
    junit.write_text(text, encoding="utf-8")
    stage.artifacts.append(Artifact.of("junit", junit))


def make_plan(
    suite: Suite, args: argparse.Namespace, selection: Selection, environ: Mapping[str, str]
) -> Plan:
    """All but which tests there are, which may take a worker to know."""
    suite.check()
    found = resolve(selection, environ)
    runner = ready_runner(environ, selection.reports)
    slots = args.jobs or default_slots()
    environment = worker_environment(found, environ, runner, slots)
    logs = Path(selection.reports).absolute() / suite.stage.removeprefix("test_")
    return Plan(
        suite=suite,
        machinery=machinery(found, environment, runner),
        setup=setup_of(suite, environment, logs, args.timeout),
        judge=Judge(load_ledger(selection.profile), selection.soc, logs),
        costs=load_durations(),
        slots=slots,
    )


def choose(plan: Plan, args: argparse.Namespace, tests: Sequence[str]) -> list[str]:
    """The tests that the flags name, sorted. A ledger that names unknown tests is an error."""
    ledger, version = plan.judge.ledger, plan.machinery.versions["executorch"]
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


def _run_jobs(
    plan: Plan, jobs: Sequence[Job], workers: Workers, memory: Memory, args: argparse.Namespace
) -> dict[str, Verdict]:
    if not jobs:
        return {}

    def work(job: Job, worker: TestWorker) -> Verdict:
        verdict, touched = worker.run(job.name, keep=args.keep)
        # At once, so that an interrupted run has not run for nothing.
        memory.record(verdict, touched, worker.common, plan.judge.logs)
        return verdict

    def line(verdict: Verdict) -> Line:
        return _line(verdict, plan.judge)

    with progress("delegate tests", jobs, plan.slots, line) as shown:
        return run_jobs(
            jobs,
            lambda: WorkerSlot(workers.take, work),
            slots=plan.slots,
            memory=memory_budget(),
            observer=shown,
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
    on = plan.machinery
    absent = f"; stand-ins for {', '.join(on.absent)}" if on.absent else ""
    sys.stderr.write(
        f"{cached + len(jobs)} tests on {plan.judge.soc}: executorch {on.versions['executorch']}, "
        f"QNN {on.build_id}; {cached} cached, {len(jobs)} to run on {plan.slots} workers"
        f"{absent}\n"
    )
    sys.stderr.flush()
