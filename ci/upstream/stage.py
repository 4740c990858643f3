"""The stage: choose tests, take remembered verdicts, run the other tests, compare with the ledger."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from ci.engine.inputs import Roots, Touched
from ci.engine.installed import ready_runner
from ci.engine.jobs import Job, default_slots, parse_shard, shard
from ci.engine.memo import Entry, Memo
from ci.engine.progress import Line
from ci.engine.work import How, Result, do
from ci.engine.workers.parent import Setup, Worker
from ci.suites.expression import matcher
from ci.upstream.judge import Judge
from ci.upstream.junit import junit_text
from ci.upstream.ledger import UNKNOWN, Ledger, Recorded, Verdict, load_ledger, load_record
from ci.upstream.operators_page import OPERATORS, accept_table, write_table
from ci.upstream.process import TestTask, is_killed, setup_of, tests_of, verdict_of
from ci.upstream.suite import DELEGATE, Machinery, Suite, machinery, worker_environment
from ci.upstream.upstream_reports import print_reports
from provisioning.base import units
from provisioning.base.commands import quoted, session
from provisioning.base.errors import UsageError
from provisioning.base.findings import Artifact, Severity
from provisioning.base.rendering import terminal
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, ROOT, Selection, selection_of
from provisioning.base.stage_run import StageRun
from provisioning.environment import resolve

RUNNER_MEMORY = 256 << 20
"""Memory beside the worker's own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be run, on what, and the expected results."""

    suite: Suite
    machinery: Machinery
    setup: Setup
    judge: Judge
    costs: Mapping[str, Recorded]
    slots: int

    def job(self, test: str) -> Job:
        cost = self.costs.get(test, UNKNOWN)
        return Job(test, cost.seconds, (cost.megabytes << 20) + RUNNER_MEMORY)


class Workers:
    """Starts workers. The worker that listed the tests is taken first."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._idle: list[Worker] = []

    def tests(self) -> tuple[list[str], Touched]:
        worker = Worker(self._setup)
        self._idle.append(worker)
        return tests_of(worker), Touched.of(worker.touched)

    def take(self) -> Worker:
        try:
            return self._idle.pop()
        except IndexError:
            return Worker(self._setup)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


def run_suites(
    suites: Sequence[Suite], args: argparse.Namespace, environ: Mapping[str, str], stage_name: str
) -> int:
    """One after the other, in one report."""
    selection = selection_of(args)
    _check(args, selection)
    stage = StageRun.as_typed(stage_name, selection.profile, selection.target)
    if args.report_upstream:
        print_reports(selection.profile, [suite.name for suite in suites])
        return 0
    runs = Runs(args, selection, environ, stage, set(args.expressions))
    if args.list:
        runs.run_all(suites)
        return 0
    with stage.reported(selection.reports, "delegate-not-measured"):
        runs.run_all(suites)
    return stage.close(
        selection.reports,
        show=lambda report: terminal.show(
            replace(report, metrics={k: v for k, v in report.metrics.items() if isinstance(v, int | float)})
        ),
    )


@dataclass(frozen=True, slots=True)
class Runs:
    """What the runs of several suites share."""

    args: argparse.Namespace
    selection: Selection
    environ: Mapping[str, str]
    stage: StageRun
    unmatched: set[str]
    """Of several suites an expression need match in one alone."""

    def run_all(self, suites: Sequence[Suite]) -> None:
        empty: list[NothingChosen] = []
        for suite in suites:
            try:
                self._run(suite, last=suite is suites[-1])
            except NothingChosen as error:
                empty.append(error)
        if self.unmatched or len(empty) == len(suites):
            raise empty[-1]

    def _run(self, suite: Suite, *, last: bool) -> None:
        args, selection = self.args, self.selection
        plan = make_plan(suite, args, selection, self.environ)
        workers = Workers(plan.setup)
        try:
            tests = list_tests(plan, selection, workers)
            self.unmatched.difference_update(
                [each for each in self.unmatched if any(map(matcher([each]), tests))]
            )
            if last and self.unmatched:
                raise nothing_chosen(plan, "-k", min(self.unmatched))
            chosen = choose(plan, args, tests)
            if args.list:
                _print_list(plan, chosen)
                return
            _announce(plan)
            verdicts = run_tests(plan, selection, chosen, workers, args)
        finally:
            workers.close()
        judge = plan.judge
        if args.update_ledger or args.table:
            judge = judge.updated(verdicts.values(), tests, plan.machinery.measured_with())
            if args.table and plan.suite.name in OPERATORS:
                accept_table()
        _report(self.stage, plan, judge, verdicts, len(chosen))


class NothingChosen(UsageError):
    """The flags leave no test of the suite."""


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


def _report(
    stage: StageRun,
    plan: Plan,
    judge: Judge,
    verdicts: Mapping[str, Verdict],
    selected: int,
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
    counts: dict[str, int | float] = {
        **judge.counts(verdicts.values()),
        "not_reached": missing,
        "selected": selected,
        "test_seconds": round(sum(verdict.seconds for verdict in ran), 1),
        "test_cpu_seconds": round(sum(verdict.cpu_seconds for verdict in ran), 1),
    }
    for name, count in counts.items():
        before = stage.metrics.get(name, 0)
        stage.metrics[name] = count + before if isinstance(before, int | float) else count
    stage.metrics |= {"workers": plan.slots, "soc": judge.soc, **plan.machinery.as_metrics()}
    if plan.suite.name in OPERATORS:
        measured = plan.machinery.measured_with()
        stage.artifacts += [
            Artifact.of("table", path) for path in write_table(judge, verdicts.values(), measured)
        ]
    junit = judge.logs / "junit.xml"
    junit.parent.mkdir(parents=True, exist_ok=True)
    text = junit_text(verdicts.values(), judge, stage.stage, plan.suite.path)
    junit.write_text(text, encoding="utf-8")
    stage.artifacts.append(Artifact.of("junit", junit))


def make_plan(
    suite: Suite, args: argparse.Namespace, selection: Selection, environ: Mapping[str, str]
) -> Plan:
    """Everything except the list of tests, which may need a worker."""
    suite.check(selection.soc)
    qnn_environment = resolve(selection, environ)
    qnn_environment.explain()
    runner = ready_runner(environ, selection.reports)
    slots = args.jobs or default_slots()
    environment = worker_environment(qnn_environment, environ, runner, slots)
    logs = Path(selection.reports).absolute()
    logs /= suite.name if suite is DELEGATE else f"upstream/{suite.name}"
    record = load_record(suite.name, selection.profile, selection.soc)
    usual = load_record(suite.name, DEFAULT_PROFILE, DEFAULT_SOC)
    return Plan(
        suite=suite,
        machinery=machinery(qnn_environment, environment, runner),
        setup=setup_of(suite, environment, logs, args.timeout),
        judge=Judge(load_ledger(suite.name, selection.profile), selection.soc, logs, record),
        costs={**usual.tests, **record.tests},
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
    matches = matcher(args.expressions, whole=True)
    flows = tuple(f"[qnn_{flow}".removesuffix("_fp16") for flow in args.flows or ())
    sample = sample_of(args.sample, tests, ledger)
    jobs = [plan.job(test) for test in sample if matches(test) and (not flows or _of_flow(test, flows))]
    chosen = sorted(job.name for job in shard(jobs, *parse_shard(args.shard or "1/1")))
    if not chosen:
        flags = [word for each in args.expressions for word in ("-k", each)]
        flags += ["--sample", args.sample] if args.sample is not None else []
        flags += ["--shard", args.shard] if args.shard else []
        raise nothing_chosen(plan, *flags)
    return chosen


def nothing_chosen(plan: Plan, *flags: str) -> NothingChosen:
    version = plan.machinery.versions["executorch"]
    message = f"no test of executorch {version} matches {quoted(*flags)}"
    return NothingChosen(message, remedy=session(plan.suite.stage, "--list"))


def _of_flow(test: str, flows: Sequence[str]) -> bool:
    return any(f"{flow}{end}" in test for flow in flows for end in ("-", "]"))


SAMPLE = "1/25"


def sample_of(part: str | None, tests: Sequence[str], ledger: Ledger) -> Sequence[str]:
    """The part that `--sample` names: the ledger's own choice, or every so-manieth test by its hash.

    A hash chooses the same tests each time, and other tests that come or go do not change the choice."""
    if part is None:
        return tests
    if not part and ledger.sample:
        return ledger.sample
    index, count = parse_shard(part or SAMPLE)
    return [test for test in tests if int(sha256(test.encode()).hexdigest(), 16) % count == index - 1]


def memo_of(plan: Plan, selection: Selection, *, reuse: bool) -> Memo:
    on = plan.machinery
    roots = Roots({"toolkit": ROOT, **on.roots(), "python": sys.prefix, "store": selection.store})
    name = plan.suite.stage if plan.suite is DELEGATE else f"{plan.suite.stage}/{plan.suite.name}"
    return Memo(selection.store, name, roots, environ=on.environment, reuse=reuse)


def list_tests(plan: Plan, selection: Selection, workers: Workers) -> list[str]:
    """Every test of the suite, from memory or from a worker.

    The list is no verdict, so --no-cache does not apply."""
    memo = memo_of(plan, selection, reuse=True)
    key = {"suite": plan.suite.name, **plan.machinery.key(memo.roots)}
    answer = memo.find("the tests of the suite", key)
    if not isinstance(answer, Entry):
        tests, touched = workers.tests()
        answer = memo.remember("the tests of the suite", key, {"tests": tests}, touched)
    return [str(name) for name in answer.result["tests"]]


def run_tests(
    plan: Plan, selection: Selection, chosen: Sequence[str], workers: Workers, args: argparse.Namespace
) -> dict[str, Verdict]:
    """The verdicts, remembered or new.

    A surprise runs again each time, so that its log and files can be read; not with --resume."""
    memo, judge = memo_of(plan, selection, reuse=not args.no_cache), plan.judge

    def is_surprise(test: str, result: Result) -> bool:
        return judge.is_surprise(verdict_of(test, result))

    key = plan.machinery.key(memo.roots)
    tasks = [
        TestTask(test, memo, {"test": test, **key}, plan.job(test), judge.logs, args.keep) for test in chosen
    ]

    def work(tasks: Sequence[TestTask]) -> dict[str, Result]:
        return do(
            tasks,
            How(f"{plan.suite.name} tests", lambda threads, count: workers.take(), plan.slots),
            accept=lambda test, result: args.resume or not is_surprise(test, result),
            line=lambda result: _line(result, judge),
            stop_after=lambda test, result: args.fail_fast and is_surprise(test, result),
            remember_all=True,
        )

    results = work(tasks)
    # A kill from outside says nothing about a test.
    if killed := [task for task in tasks if is_killed(results.get(task.name))]:
        results |= work(killed)
    return {test: verdict_of(test, result) for test, result in results.items()}


WORDS = {
    "passed": "passed",
    "failed": "FAILED",
    "dies": "DIES",
    "wrong": "WRONG",
    "crash": "CRASH",
    "memory": "MEMORY",
    "timeout": "TIMEOUT",
    "bad_test": "bad test",
    "absent": "absent",
    "not_run": "not run",
    "expected_failure": "expected",
}


def _line(result: Result, judge: Judge) -> Line:
    verdict = verdict_of(str(result.facts.get("test", "")), result)
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
    print(f"{len(tests)} tests, about {units.seconds(seconds / plan.slots)} on {plan.slots} cores")


def _announce(plan: Plan) -> None:
    on = plan.machinery
    absent = f"; stand-ins for {', '.join(on.absent)}" if on.absent else ""
    sys.stderr.write(
        f"executorch {on.versions['executorch']}, QNN {on.build_id}, {plan.judge.soc}, "
        f"{plan.slots} workers{absent}\n"
    )
    sys.stderr.flush()
