"""The stage: choose tests, take remembered verdicts, run the other tests, compare with the ledger."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from ci.engine.inputs import Roots, Touched
from ci.engine.installed import ready_runner
from ci.engine.jobs import FunctionSlot, Job, default_slots, parse_shard, run_jobs, shard
from ci.engine.memo import CachedResult, Memo
from ci.engine.progress import Line, progress
from ci.engine.recheck import CachedWork, Repeats
from ci.engine.work import Result, RunOptions, do
from ci.engine.workers.child import WARM
from ci.engine.workers.parent import Worker, WorkerSpec
from ci.lanes.upstream.flags import UpstreamOptions
from ci.lanes.upstream.judge import Judge, rules_of
from ci.lanes.upstream.junit import junit_text
from ci.lanes.upstream.ledger import NOT_RUN, UNKNOWN, Ledger, RecordedTest, load_ledger, load_record, locked
from ci.lanes.upstream.operator_cells import OPERATORS
from ci.lanes.upstream.operators_page import accept_table, write_table
from ci.lanes.upstream.process import TestTask, blames_the_machine, setup_of, tests_of, verdict_of
from ci.lanes.upstream.suite import SuiteKeyContext, UpstreamSuite, machinery, worker_environment
from ci.lanes.upstream.upstream_reports import print_reports
from ci.lanes.upstream.verdict import UpstreamVerdict
from ci.pipeline.expression import matcher
from ci.pipeline.options import Choice, Part, WorkOptions
from ci.pipeline.recheck import findings as recheck_findings
from ci.pipeline.recheck import metrics, recheck
from ci.pipeline.stage import machine_failed
from provisioning.base import units
from provisioning.base.commands import quoted, session
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.findings import Artifact, Severity
from provisioning.base.rendering import terminal
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, ROOT, Selection
from provisioning.base.stage_run import StageRun
from provisioning.environment import resolve

RUNNER_MEMORY = 256 << 20
"""Memory beside the worker's own."""

START_SECONDS = 15.0
"""A worker's start. Less work than this is not shared."""


@dataclass(frozen=True, slots=True)
class UpstreamPlan:
    """What can be run, on what, and the expected results."""

    suite: UpstreamSuite
    machinery: SuiteKeyContext
    setup: WorkerSpec
    judge: Judge
    costs: Mapping[str, RecordedTest]
    slots: int

    def job(self, test: str) -> Job:
        cost = self.costs.get(test, UNKNOWN)
        return Job(test, cost.seconds, (cost.megabytes << 20) + RUNNER_MEMORY)


class Workers:
    """Starts workers. A worker that listed the tests and is warm is taken first."""

    def __init__(self, setup: WorkerSpec, *, to_list_alone: bool) -> None:
        self._setup, self._to_list_alone = setup, to_list_alone
        self._idle: list[Worker] = []

    def tests(self) -> tuple[list[str], Touched]:
        worker = self._start(warm=not self._to_list_alone)
        self._idle.append(worker)
        tests, touched = tests_of(worker), Touched.of(worker.touched)
        if self._to_list_alone:
            # It takes memory, and its suite's turn may be hours away.
            self.close()
        return tests, touched

    def take(self, count: int) -> Worker:
        """For this many tests."""
        try:
            return self._idle.pop()
        except IndexError:
            # Warming up takes as long as it saves the first test.
            return self._start(warm=count > 1)

    def _start(self, *, warm: bool) -> Worker:
        variables = {**self._setup.environment, WARM: "1" if warm else ""}
        try:
            return Worker(replace(self._setup, environment=variables))
        except EnvironmentLacking:
            if not warm:
                raise
            # The test that warms it up may end it. That test's own verdict says so.
            return self._start(warm=False)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


def run_suites(suites: Sequence[UpstreamSuite], options: UpstreamOptions, environ: Mapping[str, str]) -> int:
    """One after the other, in one report."""
    _check(options)
    selection = options.selection
    if options.report_upstream:
        print_reports(selection.profile, [suite.name for suite in suites])
        return 0
    stage = StageRun.as_typed(suites[0].stage, selection.profile, selection.target)
    with ExitStack() as started:
        if options.list_only:
            for run in prepare(suites, options, environ, started):
                _print_list(run.plan, run.chosen)
            return 0
        with stage.reported(selection.reports, f"{rules_of(stage)}-not-measured"):
            runs = prepare(suites, options, environ, started)
            # Each suite is reported, and what it accepts is written, before the next one runs.
            measured: Iterable[Measured] = (run_tests(run, options) for run in runs)
            if part := options.work.recheck:
                measured = _recheck(stage, runs, list(measured), part, options)
            done = [_close(stage, run, options, each) for run, each in zip(runs, measured, strict=True)]
            # The committed table is about one profile.
            table = options.accept and selection.profile == DEFAULT_PROFILE
            _write_tables(stage, runs, done, accept=table)
    return stage.close(
        selection.reports,
        lacking=machine_failed(stage.findings),
        show=lambda report: terminal.show(
            replace(report, metrics={k: v for k, v in report.metrics.items() if isinstance(v, int | float)})
        ),
    )


@dataclass(frozen=True, slots=True)
class ListedSuite:
    """A suite whose tests are listed and chosen."""

    plan: UpstreamPlan
    workers: Workers
    tests: Sequence[str]
    chosen: Sequence[str]


def prepare(
    suites: Sequence[UpstreamSuite], options: UpstreamOptions, environ: Mapping[str, str], started: ExitStack
) -> list[ListedSuite]:
    """The suites with tests that the flags choose. All are listed before the first test runs, so that a
    mistyped expression does not cost hours. Of several suites, an expression need match in one alone."""
    selection, choice = options.selection, options.choice
    plans = {suite.name: make_plan(suite, selection, options.work, environ) for suite in suites}
    workers = {name: Workers(plan.setup, to_list_alone=len(suites) > 1) for name, plan in plans.items()}
    for each in workers.values():
        started.callback(each.close)
    jobs = [Job(name) for name in plans]
    slots = options.work.jobs or default_slots()

    def line(name: str, tests: Sequence[str]) -> Line:
        return Line("listed", f"{len(tests)} tests")

    bar = progress("lists of tests", jobs, slots, line) if len(jobs) > 1 else nullcontext()
    with bar as shown:
        listed = run_jobs(
            jobs,
            lambda: FunctionSlot(lambda job: list_tests(plans[job.name], selection, workers[job.name])),
            slots=slots,
            observer=shown,
        )
    runs: list[ListedSuite] = []
    unmatched = set(choice.words)
    for name, plan in plans.items():
        tests = listed[name]
        unmatched -= {each for each in unmatched if any(map(matcher([each]), tests))}
        chosen = choose(plan, choice, options.flows, options.sample, tests)
        # A suite that has lost all its tests is no suite without a match.
        if chosen or not tests:
            runs.append(ListedSuite(plan, workers[name], tests, chosen))
    if unmatched or not runs:
        flags = [word for each in sorted(unmatched or choice.words) for word in ("-k", each)]
        if not unmatched:
            flags += ["--sample", options.sample] if options.sample is not None else []
            flags += ["--shard", choice.shard] if choice.shard else []
        version = plan.machinery.versions["executorch"]
        raise UsageError(
            f"no test of executorch {version} matches {quoted(*flags)}",
            fix=session(plan.suite.stage, "--list"),
        )
    return runs


@dataclass(frozen=True, slots=True)
class Measured:
    """The verdicts on the tests of a suite."""

    verdicts: Mapping[str, UpstreamVerdict]
    unknown: frozenset[str]
    """Tests of which the machine kept us from having one."""
    cached: Sequence[CachedWork]


def _recheck(
    stage: StageRun,
    runs: Sequence[ListedSuite],
    measured: list[Measured],
    part: Part,
    options: UpstreamOptions,
) -> list[Measured]:
    """Do a part of the cached verdicts of all suites again; returns the verdicts after it."""
    done = recheck([work for each in measured for work in each.cached], part)
    stage.metrics |= metrics(done, part)
    judges = {run.plan.suite.name: run.plan.judge for run in runs}
    stage.findings += recheck_findings(
        done, stage.stage, lambda each: judges[each.step].again(stage, each.name)
    )
    return [run_tests(run, options) for run in runs] if done.different else measured


def _close(
    stage: StageRun, run: ListedSuite, options: UpstreamOptions, measured: Measured
) -> tuple[Judge, Mapping[str, UpstreamVerdict]]:
    plan, judge = run.plan, run.plan.judge
    # What a suite without tests has lost stays recorded, and is an error.
    updates = bool(run.tests) and options.accept
    verdicts = measured.verdicts
    if updates:
        expected = [verdict for test, verdict in verdicts.items() if test not in measured.unknown]
        judge.note_changes(stage, expected, run.tests)
        judge = judge.updated(expected, run.tests, plan.machinery.measured_with())
    _report(stage, plan, judge, verdicts, run)
    return judge, verdicts


def _check(options: UpstreamOptions) -> None:
    selection, shard = options.selection, options.choice.shard
    if len(selection.socs) > 1:
        raise UsageError(
            f"--soc {','.join(selection.socs)}: one chip at a time", fix=quoted("--soc", selection.soc)
        )
    if options.sample:
        parse_shard(options.sample, "--sample")
    if shard:
        parse_shard(shard)
        if options.accept:
            raise UsageError(
                "--accept with --shard: shards have equal lengths, and --accept changes the recorded ones, so"
                " that tests would be in no shard",
                fix=f"--sample {shard}, whose parts stay the same",
            )


def _report(
    stage: StageRun,
    plan: UpstreamPlan,
    judge: Judge,
    verdicts: Mapping[str, UpstreamVerdict],
    run: ListedSuite,
) -> None:
    judge.findings(stage, verdicts.values())
    place, version = f"manifests/upstream/{plan.suite.name}", plan.machinery.versions["executorch"]
    gone = judge.gone(run.tests)
    if gone and not run.tests:
        # An update would not help: it keeps what is recorded.
        message = (
            f"{place} has {len(gone)} tests, and executorch {version} has none: it moved or renamed them"
        )
        command = judge.command(stage, "--list")
        fix = f"find them, and correct the suite in ci/lanes/upstream/suite.py; {command}"
        stage.add(f"{rules_of(stage)}-gone", Severity.ERROR, plan.suite.name, message, fix)
        gone = []
    for test in gone:
        stage.add(
            f"{rules_of(stage)}-gone",
            Severity.ERROR,
            test,
            f"{place} has it, and executorch {version} has no such test",
            judge.command(stage, "--sample", "--accept"),
        )
    if judge.record.tests and (unrecorded := len(verdicts.keys() - judge.record.tests.keys())):
        stage.add(
            f"{rules_of(stage)}-no-record",
            Severity.NOTE,
            plan.suite.name,
            f"{unrecorded} tests have no record on {judge.soc}: where they run and how exact they are is not"
            " compared",
            judge.command(stage, "--accept"),
        )
    if missing := len(run.chosen) - len(verdicts):
        stage.add(
            f"{rules_of(stage)}-stopped",
            Severity.NOTE,
            stage.stage,
            f"{missing} tests were not reached, because --fail-fast stopped at a surprise",
            "run without --fail-fast",
        )
    ran = [verdict for verdict in verdicts.values() if not verdict.cached]
    counts: dict[str, int | float] = {
        **judge.counts(verdicts.values()),
        "not_reached": missing,
        "selected": len(run.chosen),
        "test_seconds": round(sum(verdict.seconds for verdict in ran), 1),
        "test_cpu_seconds": round(sum(verdict.cpu_seconds for verdict in ran), 1),
    }
    for name, count in counts.items():
        before = stage.metrics.get(name, 0)
        stage.metrics[name] = count + before if isinstance(before, int | float) else count
    stage.metrics |= {"workers": plan.slots, "soc": judge.soc, **plan.machinery.as_metrics()}
    junit = judge.logs / "junit.xml"
    junit.parent.mkdir(parents=True, exist_ok=True)
    text = junit_text(verdicts.values(), judge, stage.stage, plan.suite.path)
    junit.write_text(text, encoding="utf-8")
    stage.artifacts.append(Artifact.of("junit", junit))


def _write_tables(
    stage: StageRun,
    runs: Sequence[ListedSuite],
    done: Sequence[tuple[Judge, Mapping[str, UpstreamVerdict]]],
    *,
    accept: bool,
) -> None:
    """Once, after all suites: the table has what each of them gave."""
    tabled = [(judge, verdicts.values()) for judge, verdicts in done if judge.ledger.suite in OPERATORS]
    if not tabled:
        return
    if accept:
        with locked():
            accept_table()
    measured = runs[0].plan.machinery.measured_with()
    stage.artifacts += [Artifact.of("table", path) for path in write_table(tabled, measured)]


def make_plan(
    suite: UpstreamSuite, selection: Selection, work: WorkOptions, environ: Mapping[str, str]
) -> UpstreamPlan:
    """Everything except the list of tests, which may need a worker."""
    suite.check(selection.soc)
    qnn_environment = resolve(selection, environ)
    qnn_environment.explain()
    runner = ready_runner(environ, selection.reports)
    slots = work.jobs or default_slots()
    environment = worker_environment(qnn_environment, environ, runner, slots)
    logs = Path(selection.reports, suite.folder).absolute()
    record = load_record(suite.name, selection.profile, selection.soc)
    usual = load_record(suite.name, DEFAULT_PROFILE, DEFAULT_SOC)
    return UpstreamPlan(
        suite=suite,
        machinery=machinery(qnn_environment, environment, runner),
        setup=setup_of(suite, environment, logs, work.timeout),
        judge=Judge(load_ledger(suite.name, selection.profile), selection.soc, logs, record),
        costs={**usual.tests, **record.tests},
        slots=slots,
    )


def choose(
    plan: UpstreamPlan, choice: Choice, flows: Sequence[str], sample: str | None, tests: Sequence[str]
) -> list[str]:
    """The tests that the flags name, sorted."""
    matches = matcher(choice.words, whole=True)
    starts = [f"[qnn_{flow}".removesuffix("_fp16") for flow in flows]
    part = sample_of(sample, tests, plan.judge.ledger, plan.costs)
    jobs = [plan.job(test) for test in part if matches(test) and (not starts or _of_flow(test, starts))]
    return sorted(job.name for job in shard(jobs, *parse_shard(choice.shard or "1/1")))


def _of_flow(test: str, flows: Sequence[str]) -> bool:
    return any(f"{flow}{end}" in test for flow in flows for end in ("-", "]"))


SAMPLE = 40
"""Of so many measured tests, `--sample` has one."""


UNMEASURED = ("bad_test", "no_kernel", *NOT_RUN)
"""Results of parts that ran nothing, or compared nothing."""


def sample_of(
    part: str | None, tests: Sequence[str], ledger: Ledger, recorded: Mapping[str, RecordedTest]
) -> Sequence[str]:
    """The tests of `--sample`: the ledger's own choice, or some that measured something when they were
    recorded. Of `--sample I/N`: every N-th of all tests; the N parts together are the whole.

    A hash chooses the same tests each time, and other tests that come or go do not change the choice."""
    if part is None:
        return tests
    if part:
        index, count = parse_shard(part, "--sample")
        return [test for test in tests if _hash(test) % count == index - 1]
    known = set(tests)
    if own := [test for test in ledger.sample if test in known]:
        return own
    measuring = [test for test in tests if (row := recorded.get(test)) is None or _measured(row)]
    return [test for test in measuring if _hash(test) % SAMPLE == 0] or measuring[:1]


def _measured(row: RecordedTest) -> bool:
    """A record without parts does not tell."""
    return not row.parts or any(part.result not in UNMEASURED for part in row.parts)


def _hash(test: str) -> int:
    return int(sha256(test.encode()).hexdigest(), 16)


def memo_of(plan: UpstreamPlan, selection: Selection, *, reuse: bool) -> Memo:
    on = plan.machinery
    roots = Roots({"toolkit": ROOT, **on.roots(), "python": sys.prefix, "store": selection.store})
    return Memo(selection.store, f"test_{plan.suite.name}", roots, environ=on.environment, reuse=reuse)


def list_tests(plan: UpstreamPlan, selection: Selection, workers: Workers) -> list[str]:
    """Every test of the suite, from memory or from a worker.

    The list is no verdict, so --no-cache does not apply."""
    memo = memo_of(plan, selection, reuse=True)
    key = {"suite": plan.suite.name, **plan.machinery.key(memo.roots)}
    answer = memo.find("the tests of the suite", key)
    if not isinstance(answer, CachedResult):
        tests, touched = workers.tests()
        answer = memo.remember(
            "the tests of the suite", key, {"tests": tests}, touched, own=(plan.judge.logs,)
        )
    return [str(name) for name in answer.result["tests"]]


REPEATS = Repeats(changing=("reason", "problems*", "parts.*.error"), figures={"parts.*_db": 0.01})
"""Messages have paths and figures of one run; cores are shared among as many workers as each run has."""


def run_tests(run: ListedSuite, options: UpstreamOptions) -> Measured:
    """The verdicts, cached or new.

    A surprise runs again each time, so that its log and files can be read; not with --resume."""
    plan, workers = run.plan, run.workers
    memo = memo_of(plan, options.selection, reuse=options.work.cache)
    judge, keep = plan.judge, options.work.keep
    # What a suite without tests has lost stays recorded.
    _announce(plan, has_record=(bool(run.tests) and options.accept) or bool(judge.record.tests))

    def is_surprise(test: str, result: Result) -> bool:
        return judge.is_surprise(verdict_of(test, result))

    key = plan.machinery.key(memo.roots)
    tasks = [
        TestTask(test, memo, {"test": test, **key}, plan.job(test), judge.logs, keep, judge.logs)
        for test in run.chosen
    ]

    def accept(test: str, result: Result) -> bool:
        return options.resume or not is_surprise(test, result)

    def line(test: str, result: Result) -> Line:
        return _line(verdict_of(test, result), judge)

    def how(tasks: Sequence[TestTask]) -> RunOptions:
        worth = 1 + int(sum(task.cost.seconds for task in tasks) / START_SECONDS)
        slots = min(plan.slots, worth)
        return RunOptions(f"{plan.suite.name} tests", lambda threads, count: workers.take(count), slots)

    def work(tasks: Sequence[TestTask]) -> dict[str, Result]:
        return do(
            tasks,
            how(tasks),
            accept=accept,
            line=line,
            stop_after=lambda test, result: options.fail_fast and is_surprise(test, result),
            remember_all=True,
        )

    results = work(tasks)
    # Once more: a kill from outside says nothing about a test.
    if killed := [task for task in tasks if _was_killed(results.get(task.name))]:
        results |= work(killed)
    verdicts = {test: verdict_of(test, result) for test, result in results.items()}
    unknown = frozenset(test for test, result in results.items() if blames_the_machine(result))
    again, name = how(tasks), plan.suite.name
    cached = [
        CachedWork(name, task, result, REPEATS, again, task.elsewhere, accept, line, judge.logs)
        for task in tasks
        if (result := results.get(task.name)) and result.cached
    ]
    return Measured(verdicts, unknown, cached)


def _was_killed(result: Result | None) -> bool:
    return bool(result and result.failure and result.failure.kind == "killed")


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


def _line(verdict: UpstreamVerdict, judge: Judge) -> Line:
    surprise = judge.is_surprise(verdict)
    note = "" if verdict.outcome == "passed" else verdict.reason
    word = "MACHINE" if surprise and verdict.fix else WORDS[verdict.outcome]
    return Line(word + ("!" if surprise else ""), note, surprise, verdict.seconds)


def _print_list(plan: UpstreamPlan, tests: Sequence[str]) -> None:
    for test in tests:
        cost = plan.costs.get(test)
        entry = plan.judge.ledger.entry(test, plan.judge.soc)
        length = f"{cost.seconds:7.1f} s" if cost else "        ?"
        print(f"{length}  {test}" + (f"  [{entry.outcome}]" if entry else ""))
    seconds = sum(plan.job(test).seconds for test in tests)
    print(f"{len(tests)} tests, about {units.seconds(seconds / plan.slots)} on {plan.slots} cores")


def _announce(plan: UpstreamPlan, *, has_record: bool) -> None:
    on = plan.machinery
    absent = f"; stand-ins for {', '.join(on.absent)}" if on.absent else ""
    sys.stderr.write(
        f"executorch {on.versions['executorch']}, QNN {on.build_id}, {plan.judge.soc}, "
        f"{plan.slots} workers{absent}\n"
    )
    if not has_record:
        judge = plan.judge
        sys.stderr.write(
            f"no record of {plan.suite.name} for {judge.soc}: accuracy is not compared, and failures that are"
            " known on other chips are errors; run with --accept first\n"
        )
    sys.stderr.flush()
