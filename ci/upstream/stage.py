"""The stage: choose the tests, take known verdicts from the cache, run the rest, judge by the ledger."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.engine.installed import ready_runner
from ci.engine.jobs import Job, default_slots, memory_budget, run_jobs, shard
from ci.engine.memo import VerdictCache
from ci.engine.progress import Line, Lines, progress
from ci.engine.workers.parent import Setup, tail
from ci.upstream.expression import compile_expression
from ci.upstream.junit import junit_text
from ci.upstream.ledger import (
    UNKNOWN,
    Cost,
    Ledger,
    durations_path,
    durations_text,
    ledger_path,
    load_durations,
    load_ledger,
    measured,
)
from ci.upstream.pool import Verdict, Workers, setup_of
from ci.upstream.suite import Basis, basis_of, installed_suite, list_tests
from provisioning.base.diagnosis import Explanation, nearest
from provisioning.base.errors import UsageError
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Outcome, Severity, StageRun
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, Selection
from provisioning.environment import Environment, resolve

RUNNER_MEMORY = 256 << 20
"""Beside what the worker itself takes."""

LOGS_KEPT = 25
"""Logs of surprises named in the report; all are in the folder."""


@dataclass(frozen=True, slots=True)
class Options:
    selection: Selection
    command: str
    logs: Path
    expression: str = ""
    sample: bool = False
    shard: tuple[int, int] = (1, 1)
    only_list: bool = False
    jobs: int | None = None
    timeout: float = 900
    cache: bool = True
    fail_fast: bool = False
    keep: bool = False
    update_ledger: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run, on what, and what is expected of it."""

    setup: Setup
    basis: Basis
    ledger: Ledger
    costs: Mapping[str, Cost]
    slots: int
    chosen: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """Every test of the suite with the digest of its source."""

    def job(self, test: str) -> Job:
        cost = self.costs.get(test, UNKNOWN)
        return Job(test, cost.seconds, (cost.megabytes << 20) + RUNNER_MEMORY)

    def key(self, test: str) -> str:
        return self.basis.key(test, self.sources[test])

    def expected(self, test: str) -> str:
        return self.ledger.outcome(test, self.basis.soc)


def run_stage(options: Options, environ: Mapping[str, str]) -> int:
    stage = StageRun("test_delegate", options.selection.profile, options.selection.target, options.command)
    if options.only_list:
        return _run(options, environ, stage)
    with stage.reported(options.selection.reports, "delegate-not-measured"):
        return _run(options, environ, stage)


def _run(options: Options, environ: Mapping[str, str], stage: StageRun) -> int:
    cache = VerdictCache(options.selection.store, "delegate", enabled=options.cache)
    plan = make_plan(options, environ)
    with Workers(plan.setup, plan.slots, keep=options.keep) as workers:
        # Which tests there are is no verdict: it is kept whatever --no-cache says.
        listing = VerdictCache(options.selection.store, "delegate")
        plan = choose(plan, options, list_tests(plan.basis.suite, listing, workers.tests))
        if options.only_list:
            print_list(plan)
            return 0
        known = known_verdicts(plan, cache)
        jobs = [plan.job(test) for test in plan.chosen if test not in known]
        _announce(plan, known, jobs)
        verdicts = {**known, **_run_jobs(plan, jobs, workers, cache, fail_fast=options.fail_fast)}
    cache.prune()
    if options.update_ledger:
        plan = replace(plan, ledger=_update(plan, verdicts.values(), options.logs))
    judge(stage, verdicts.values(), plan.ledger, plan.basis.soc, options.logs)
    _measure(stage, plan, verdicts)
    stage.artifacts.append(Artifact.of("junit", _write_junit(plan, verdicts.values(), options.logs)))
    report = stage.finish()
    report.write(options.selection.reports)
    from provisioning.base.rendering import show

    show(replace(report, metrics={k: v for k, v in report.metrics.items() if isinstance(v, int | float)}))
    return 0 if report.outcome is Outcome.PASS else 1


def _measure(stage: StageRun, plan: Plan, verdicts: Mapping[str, Verdict]) -> None:
    missing = len(plan.chosen) - len(verdicts)
    if missing:
        stage.add(
            "delegate-stopped",
            Severity.NOTE,
            "test_delegate",
            f"{missing} tests were not reached, because --fail-fast stopped at a surprise",
            "run without --fail-fast",
        )
    ran = [verdict for verdict in verdicts.values() if not verdict.cached]
    stage.metrics |= counts(verdicts.values(), plan.ledger, plan.basis.soc)
    stage.metrics |= {
        "not_reached": missing,
        "selected": len(plan.chosen),
        "workers": plan.slots,
        "test_seconds": round(sum(verdict.seconds for verdict in ran), 1),
        "test_cpu_seconds": round(sum(verdict.cpu_seconds for verdict in ran), 1),
        "soc": plan.basis.soc,
        **plan.basis.as_metrics(),
    }


def _write_junit(plan: Plan, verdicts: Iterable[Verdict], logs: Path) -> Path:
    path = logs / "junit.xml"
    logs.mkdir(parents=True, exist_ok=True)
    path.write_text(junit_text(verdicts, plan.ledger, plan.basis.soc, logs), encoding="utf-8")
    return path


def make_plan(options: Options, environ: Mapping[str, str]) -> Plan:
    """All but which tests there are, which may take a worker to know."""
    suite = installed_suite()
    found = resolve(options.selection, environ)
    runner = ready_runner(environ, options.selection.reports)
    slots = options.jobs or default_slots()
    environment = worker_environment(found, environ, runner, slots)
    return Plan(
        setup=setup_of(environment, options.logs, options.timeout),
        basis=basis_of(suite, found.root("qnn-sdk").path, runner, options.selection.soc, environment),
        ledger=load_ledger(options.selection.profile),
        costs=load_durations(),
        slots=slots,
    )


def choose(plan: Plan, options: Options, tests: Mapping[str, str]) -> Plan:
    """The plan with the tests asked for, in the order of their names."""
    version = plan.basis.suite.versions["executorch"]
    named = {each.test for each in plan.ledger.expected} | set(plan.ledger.sample)
    if gone := sorted(named - tests.keys()):
        raise UsageError(
            f"the ledger {plan.ledger.profile} names {gone[0]}, and executorch {version} has no such test",
            remedy="take it out of the ledger",
        )
    matches = compile_expression(options.expression) if options.expression else None
    pool = plan.ledger.sample if options.sample else tuple(tests)
    jobs = [plan.job(test) for test in pool if matches is None or matches(test)]
    chosen = tuple(sorted(job.name for job in shard(jobs, *options.shard)))
    if not chosen:
        asked = [f"-k {options.expression!r}"] if options.expression else []
        asked += ["--sample"] if options.sample else []
        asked += [f"--shard {options.shard[0]}/{options.shard[1]}"] if options.shard != (1, 1) else []
        raise UsageError(
            f"no test of executorch {version} is left by {' '.join(asked)}",
            remedy="nox -s test_delegate -- --list",
        )
    return replace(plan, chosen=chosen, sources=tests)


def worker_environment(
    found: Environment, environ: Mapping[str, str], runner: Path, slots: int
) -> dict[str, str]:
    threads = max(1, default_slots() // slots)
    return {
        **found.merged(environ),
        "QNN_DELEGATE_TEST": "1",
        "QNN_SOC_MODEL": found.soc,
        "QNN_EXECUTOR_RUNNER": str(runner),
        "QNN_BUILD_FOLDER": str(runner.parent.parent),
        # Workers side by side leave no cores to share out within each.
        "OMP_NUM_THREADS": str(threads),
        "PYTHONWARNINGS": "ignore",
    }


def known_verdicts(plan: Plan, cache: VerdictCache) -> dict[str, Verdict]:
    known = {}
    for test in plan.chosen:
        if kept := cache.get(plan.key(test)):
            known[test] = Verdict(
                test,
                str(kept["outcome"]),
                str(kept["reason"]),
                subtests=int(str(kept["subtests"])),
                seconds=float(str(kept["seconds"])),
                cached=True,
            )
    return known


class _Keeping:
    """Keeps each verdict as it comes, so that an interrupted run has not run for nothing.

    Only what the ledger expects is kept: a surprise runs again until it is mended or recorded.
    """

    def __init__(self, plan: Plan, cache: VerdictCache, shown: Lines[Verdict]) -> None:
        self._plan, self._cache, self._shown = plan, cache, shown

    def started(self, job: Job) -> None:
        self._shown.started(job)

    def ended(self, job: Job, result: Verdict, seconds: float) -> None:
        if result.outcome == self._plan.expected(result.test) and not result.broke:
            keep(self._plan, self._cache, result)
        self._shown.ended(job, result, seconds)


def keep(plan: Plan, cache: VerdictCache, verdict: Verdict) -> None:
    cache.put(
        plan.key(verdict.test),
        {
            "test": verdict.test,
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "subtests": verdict.subtests,
            "seconds": verdict.seconds,
        },
    )


def _run_jobs(
    plan: Plan, jobs: Sequence[Job], workers: Workers, cache: VerdictCache, *, fail_fast: bool
) -> dict[str, Verdict]:
    if not jobs:
        return {}
    expected = {job.name: plan.expected(job.name) for job in jobs}

    def line(verdict: Verdict) -> Line:
        return line_of(verdict, expected)

    with progress("delegate tests", jobs, plan.slots, line) as shown:
        return run_jobs(
            jobs,
            workers.slot,
            slots=plan.slots,
            memory=memory_budget(),
            observer=_Keeping(plan, cache, shown),
            stop_after=lambda job, verdict: fail_fast and verdict.outcome != expected[job.name],
        )


WORDS = {"passed": "passed", "failed": "FAILED", "not_run": "not run", "expected_failure": "expected"}


def line_of(verdict: Verdict, expected: Mapping[str, str]) -> Line:
    surprising = verdict.outcome != expected.get(verdict.test, "passed")
    note = "" if verdict.outcome == "passed" else verdict.reason
    return Line(WORDS[verdict.outcome] + ("!" if surprising else ""), note, surprising, verdict.seconds)


def judge(stage: StageRun, verdicts: Iterable[Verdict], ledger: Ledger, soc: str, logs: Path) -> None:
    """A finding for every test that does not simply pass; an error where the ledger says otherwise."""
    selecting = f" --profile {ledger.profile}" if ledger.profile != DEFAULT_PROFILE else ""
    selecting += f" --soc {soc}" if soc != DEFAULT_SOC else ""
    for verdict in sorted(verdicts, key=lambda each: each.test):
        entry = ledger.entry(verdict.test, soc)
        expected = entry.outcome if entry else "passed"
        again = f"nox -s test_delegate -- -k {verdict.test.partition('.')[2]}{selecting}"
        if verdict.outcome != expected:
            message, remedy = _surprise(verdict, expected, entry.cause if entry else "", logs, again)
            rule = {"passed": "delegate-passed", "not_run": "delegate-not-run"}.get(
                verdict.outcome, "delegate-failed"
            )
            stage.add(rule, Severity.ERROR, verdict.test, message, remedy)
            log = logs / f"{verdict.test}.log"
            if log.is_file() and len(stage.artifacts) < LOGS_KEPT:
                stage.artifacts.append(Artifact.of("log", log))
        elif entry and verdict.outcome == "not_run":
            stage.add("delegate-not-run", Severity.NOTE, verdict.test, f"not run: {entry.cause}", again)
        elif entry:
            stage.add("delegate-known-failure", Severity.NOTE, verdict.test, entry.cause, again)


def _surprise(verdict: Verdict, expected: str, cause: str, logs: Path, again: str) -> tuple[str, str]:
    log = logs / f"{verdict.test}.log"
    if verdict.outcome == "passed":
        return f"passes, and the ledger has it as {expected}: {cause}", f"{again} --update-ledger"
    if verdict.outcome == "not_run":
        return f"was not run: {verdict.reason}", again
    if expected == "not_run":
        return f"runs now and fails: {verdict.reason}", f"{again} --update-ledger"
    known = explanation_of(verdict, logs)
    if known:
        return f"{verdict.reason.rstrip('.')}. {known}", known.mend
    return f"{verdict.reason} (nothing known matches its log)", f"read {log}, or {again} --keep"


def explanation_of(verdict: Verdict, logs: Path) -> Explanation | None:
    text = tail(logs / f"{verdict.test}.log")
    return nearest(f"{text}\n{verdict.reason}\n")


def counts(verdicts: Iterable[Verdict], ledger: Ledger, soc: str) -> dict[str, int]:
    """Every verdict counts once as passed, failed, not run or expected failure."""
    total = {
        "passed": 0,
        "failed": 0,
        "not_run": 0,
        "expected_failures": 0,
        "unexpected_passes": 0,
        "cached": 0,
    }
    for verdict in verdicts:
        expected = ledger.outcome(verdict.test, soc)
        total["cached"] += verdict.cached
        if verdict.outcome == "passed":
            total["passed"] += 1
            total["unexpected_passes"] += expected != "passed"
        elif verdict.outcome == "not_run":
            total["not_run"] += 1
        elif verdict.outcome == expected:
            total["expected_failures"] += 1
        else:
            total["failed"] += 1
    return total


def _update(plan: Plan, verdicts: Iterable[Verdict], logs: Path) -> Ledger:
    verdicts = list(verdicts)
    causes = {each.test: cause_of(each, logs) for each in verdicts if each.outcome != "passed"}
    ledger = plan.ledger.updated(verdicts, causes, plan.basis.soc)
    costs = measured(plan.costs, verdicts)
    for path, text in (
        (ledger_path(ledger.profile), ledger.as_toml()),
        (durations_path(), durations_text({test: costs[test] for test in plan.sources if test in costs})),
    ):
        replace_text(path, text)
        sys.stderr.write(f"wrote {path}\n")
    return ledger


def cause_of(verdict: Verdict, logs: Path) -> str:
    if verdict.outcome == "failed" and (known := explanation_of(verdict, logs)):
        return f"{verdict.reason.rstrip('.')}. {known.cause}"
    return verdict.reason or verdict.outcome


def print_list(plan: Plan) -> None:
    for test in plan.chosen:
        cost = plan.costs.get(test)
        entry = plan.ledger.entry(test, plan.basis.soc)
        length = f"{cost.seconds:7.1f} s" if cost else "        ?"
        print(f"{length}  {test}" + (f"  [{entry.outcome}]" if entry else ""))
    seconds = sum(plan.job(test).seconds for test in plan.chosen)
    print(f"{len(plan.chosen)} tests, about {seconds / plan.slots / 60:.1f} min on {plan.slots} cores")


def _announce(plan: Plan, known: Mapping[str, Verdict], jobs: Sequence[Job]) -> None:
    absent = ", ".join(plan.basis.suite.absent)
    versions = plan.basis.suite.versions
    sys.stderr.write(
        f"{len(plan.chosen)} tests on {plan.basis.soc}: executorch {versions['executorch']}, "
        f"QNN {plan.basis.sdk['build_id']}; {len(known)} cached, {len(jobs)} to run on {plan.slots} workers"
        + (f"; shims for {absent}" if absent else "")
        + "\n"
    )
    sys.stderr.flush()
