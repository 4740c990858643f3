"""This stage chooses tests, looks up cached verdicts, runs the other tests, and compares them with what is
accepted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from ci.lanes.upstream.accepted import GONE, AcceptedTests, Judge, load_tests, rules_of
from ci.lanes.upstream.suite import (
    Part,
    SuiteKeyContext,
    TestNames,
    UpstreamSuite,
    UpstreamVerdict,
    machinery,
    worker_environment,
)
from ci.suite.options import Choice, StageOptions, matcher, parse_shard, shard
from ci.suite.ready_environment import use_executorch
from ci.suite.runner import ready_runner
from ci.suite.stage import machine_failed
from ci.work import (
    CachedResults,
    Failure,
    Home,
    Job,
    Line,
    Result,
    Step,
    WorkPlan,
    asking,
    default_slots,
    key_of,
    read,
    run_step,
    sharing_templates,
    surroundings,
    to_json,
)
from provisioning.base import rendering, units
from provisioning.base.commands import Fix, leave_out, quote_command, session
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.findings import Severity
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC
from provisioning.base.stage_run import StageRun
from provisioning.environment import resolve

UNKNOWN_COST = (5.0, 900)
"""A test that was never measured is assumed to take this many seconds and megabytes."""

RUNNER_MEMORY = 256 << 20
"""A test's job is assumed to need this many bytes beside the worker's own memory."""


@dataclass(frozen=True, slots=True)
class UpstreamPlan(WorkPlan):
    programs: tuple[Job, ...]
    """Each chosen test is a job with its cost."""

    suite: UpstreamSuite
    machinery: SuiteKeyContext
    home: Home
    """The workers that run the tests start from this process, which has collected the tests."""
    judge: Judge
    usual: AcceptedTests
    """Tests that were not measured on this chip are assumed to cost as on the default one."""
    slots: int
    tests: tuple[str, ...] = ()

    def job(self, test: str) -> Job:
        seconds, megabytes = self.cost(test) or UNKNOWN_COST
        return Job(test, seconds, (megabytes << 20) + RUNNER_MEMORY)

    def cost(self, test: str) -> tuple[float, int] | None:
        """Return the test's cost; None if it was never measured, on this chip or the default one."""
        return self.judge.accepted.of(test).cost or self.usual.of(test).cost


QUIET = ("passed", "bad_test", "absent", "not_run", "expected_failure")
"""These outcomes are printed in small letters."""


def testing(plan: UpstreamPlan, *, accept: bool = False) -> Step[Job]:
    """Return the step that runs tests. A surprise runs again each time, so that its log and files can be
    read, unless it is to be accepted."""

    def is_surprise(test: Job, result: Result) -> bool:
        return plan.judge.is_surprise(verdict_of(test.name, result))

    def line(test: Job, result: Result) -> Line:
        verdict, surprise = verdict_of(test.name, result), is_surprise(test, result)
        note = "" if verdict.outcome == "passed" else verdict.reason
        word = verdict.outcome.removesuffix("_failure").replace("_", " ")
        word = word if verdict.outcome in QUIET else word.upper()
        word = "MACHINE" if surprise and verdict.fix else word
        return Line(word + ("!" if surprise else ""), note, verdict.seconds)

    def crash_of(test: Job, failure: Failure, folder: Path) -> dict[str, object] | None:
        """Return the verdict of a test that crashed the process; like any result, a crash may be expected."""
        if not failure.is_own_crash:
            return None
        message = failure.ending
        return to_json(UpstreamVerdict(test.name, "crash", message, (("", message),), (Part("crash"),)))

    return Step(
        plan=plan,
        kind=plan.suite.name,
        title=f"{plan.suite.name} tests",
        function=f"{plan.suite.worker}:run_test",
        home=lambda own: plan.home,
        request=lambda test: plan.machinery.request(plan.suite, test.name),
        reply=UpstreamVerdict,
        cost=lambda test: test,
        keeps=lambda test, result: accept or not is_surprise(test, result),
        line=line,
        remains_of=crash_of,
    )


def verdict_of(test: str, result: Result) -> UpstreamVerdict:
    if failure := result.failure:
        # A kill from outside is what the system does when memory runs out.
        kind = failure.kind if failure.kind in GONE else "memory"
        # Memory says something about the test: the worker's own limit is the same everywhere.
        of_machine = failure.blame == "machine" and failure.kind != "memory"
        return UpstreamVerdict(
            test,
            kind,
            failure.message,
            (("", failure.message),),
            parts=(Part(kind),),
            fix=(failure.fix or "run it again") if of_machine else "",
        )
    assert isinstance(result.record, UpstreamVerdict)
    return replace(result.record, cached=result.cached)


@dataclass(frozen=True, slots=True)
class UpstreamOptions(StageOptions):
    sample: bool


JudgedBy = Callable[[AcceptedTests, Path], Judge]
"""Returns the judge of a suite on a chip; the path is where its logs are."""

START_LIMIT = 300.0
"""Listing the tests may take this many seconds."""


def prepare(
    suites: Sequence[UpstreamSuite],
    options: UpstreamOptions,
    environ: Mapping[str, str],
    judged_by: JudgedBy,
) -> list[UpstreamPlan]:
    """Find the suites with tests that the flags choose. All are listed before the first test runs, so that a
    mistyped expression does not cost hours. An expression need match in only one of several suites."""
    choice = options.choice
    plans = {suite.name: make_plan(suite, options, environ, judged_by) for suite in suites}
    slots = options.work.jobs or default_slots()
    with ThreadPoolExecutor(slots) as pool:
        listing = {name: pool.submit(list_tests, plan) for name, plan in plans.items()}
        tests_by_suite = {name: tests.result() for name, tests in listing.items()}
    runs: list[UpstreamPlan] = []
    unmatched = set(choice.words)
    for name, plan in plans.items():
        tests = tests_by_suite[name]
        unmatched -= {word for word in unmatched if any(map(matcher([word]), tests))}
        programs = choose(plan, choice, tests, sample=options.sample)
        # A suite that has lost all its tests is no suite without a match.
        if programs or not tests:
            runs.append(replace(plan, programs=tuple(programs), tests=tuple(tests)))
    if unmatched or not runs:
        flags = [word for name in sorted(unmatched or choice.words) for word in ("-k", name)]
        if not unmatched:
            flags += ["--shard", choice.shard] if choice.shard else []
        version = plan.machinery.versions["executorch"]
        raise UsageError(
            f"no test of executorch {version} matches {quote_command(*flags)}",
            fix=session(*plan.suite.command, "--list"),
        )
    return runs


def make_plan(
    suite: UpstreamSuite,
    options: UpstreamOptions,
    environ: Mapping[str, str],
    judged_by: JudgedBy,
) -> UpstreamPlan:
    """Make everything except the list of tests, which may need a worker."""
    selection, work = options.selection, options.work
    qnn_environment = resolve(selection, environ)
    executorch = use_executorch(qnn_environment)
    suite.check(selection.soc)
    qnn_environment.explain()
    runner = ready_runner(environ, selection.reports, executorch)
    slots = work.jobs or default_slots()
    environment = worker_environment(qnn_environment, environ, runner.path, slots)
    logs = Path(selection.reports, suite.folder).absolute()
    accepted = load_tests(suite.name, selection.profile, selection.soc)
    on = machinery(suite, qnn_environment, environment, runner, selection.store)
    judge = judged_by(accepted, logs)
    if on.is_of_another_release(accepted.origin):
        judge = replace(judge, of_another_release=True)
        if options.accept:
            raise UsageError(
                f"--accept: the tests are those of executorch {on.versions['executorch']}, and what is"
                f" accepted of {suite.name} is of {accepted.origin}",
                fix="unset EXECUTORCH_ROOT, or leave out --accept",
            )
    home = Home(
        environment,
        logs,
        f"{suite.worker}:prepare",
        "the tests",
        Fix("run it as `{}`, which installs what they need", suite.command),
        arguments=(suite.name, str(logs)),
    )
    return UpstreamPlan(
        programs=(),
        selection=selection,
        work=work,
        logs=logs,
        suite=suite,
        machinery=on,
        home=home,
        judge=judge,
        usual=load_tests(suite.name, DEFAULT_PROFILE, DEFAULT_SOC),
        slots=slots,
    )


def choose(plan: UpstreamPlan, choice: Choice, tests: Sequence[str], *, sample: bool) -> list[Job]:
    """Return the tests that the flags name, sorted."""
    matches = matcher(choice.words, whole_name=True)
    jobs = [plan.job(test) for test in (sample_of(tests) if sample else tests) if matches(test)]
    return sorted(shard(jobs, *parse_shard(choice.shard or "1/1")), key=lambda job: job.name)


SAMPLE = 40
"""`--sample` runs one test in this many."""


def sample_of(tests: Sequence[str]) -> Sequence[str]:
    """Return a few of the tests. A hash chooses the same ones each time, and tests that come or go do not
    change the choice."""
    hashes = ((test, int(sha256(test.encode()).hexdigest(), 16)) for test in tests)
    return [test for test, number in hashes if number % SAMPLE == 0] or tests[:1]


def list_tests(plan: UpstreamPlan) -> list[str]:
    """Return every test of the suite. The list is no verdict, so --no-cache does not apply."""
    home, store = plan.home, plan.selection.store
    results = CachedResults(store, "lists of tests")
    request = plan.machinery.request(plan.suite, "")
    key = {**surroundings(store, home.environment), **key_of(request, results.digest)}
    cached = results.find(key)
    if cached is None:
        log = plan.logs / "list.log"
        try:
            with asking(home, f"{plan.suite.worker}:list_tests", log, START_LIMIT) as ask:
                reply = ask()
        except CheckFailed as error:
            message = f"the tests could not be listed ({error.message})"
            raise EnvironmentLacking(message, fix=home.fix) from error
        cached = results.keep(plan.suite.name, key, reply)
    results.close()
    return [*read(TestNames, cached.facts).tests]


Verdicts = Mapping[str, UpstreamVerdict]
"""Maps each test of a suite to its verdict."""


Kept = Callable[[StageRun, UpstreamPlan, Judge, Verdicts], None]
"""Keeps what a suite gave beside the report."""


def run_suites(
    stage: StageRun,
    suites: Sequence[UpstreamSuite],
    options: UpstreamOptions,
    environ: Mapping[str, str],
    judged_by: JudgedBy = Judge,
    keep: Kept | None = None,
) -> int:
    _check(suites, options)
    selection = options.selection
    # A suite that is alone runs in forks of the process that lists it. Of several, each process would take
    # memory until its turn, which may be hours away.
    with sharing_templates() if len(suites) == 1 else nullcontext():
        if options.list_only:
            for plan in prepare(suites, options, environ, judged_by):
                _print_list(plan)
            return 0
        with stage.reported(selection.reports, f"{rules_of(stage)}-not-measured"):
            # Each suite is reported, and what it accepts is written, before the next one runs.
            for plan in prepare(suites, options, environ, judged_by):
                verdicts = run_tests(plan, options)
                judge = _close(stage, plan, options, verdicts)
                if keep:
                    keep(stage, plan, judge, verdicts)
    return stage.close(
        selection.reports,
        lacking=machine_failed(stage.findings),
        show=lambda report: rendering.show(
            replace(report, metrics={k: v for k, v in report.metrics.items() if isinstance(v, int | float)})
        ),
    )


def _close(stage: StageRun, plan: UpstreamPlan, options: UpstreamOptions, verdicts: Verdicts) -> Judge:
    judge = plan.judge
    # What a suite without tests has lost stays accepted, and is an error.
    if plan.tests and options.accept:
        results = [verdict for verdict in verdicts.values() if not verdict.fix]
        judge = judge.updated(results, plan.tests, plan.machinery.measured_with())
    _report(stage, plan, judge, verdicts)
    return judge


def _check(suites: Sequence[UpstreamSuite], options: UpstreamOptions) -> None:
    selection, shard = options.selection, options.choice.shard
    if len(selection.socs) > 1:
        raise UsageError(
            f"--soc {','.join(selection.socs)}: one chip at a time", fix=quote_command("--soc", selection.soc)
        )
    if shard:
        parse_shard(shard)
        if options.accept:
            raise UsageError(
                "--accept with --shard: shards have equal lengths, which --accept changes, so that some tests"
                " would be in no shard",
                fix=leave_out("--shard", ": typed again, --accept goes on where it ended"),
            )


def _report(stage: StageRun, plan: UpstreamPlan, judge: Judge, verdicts: Verdicts) -> None:
    judge.findings(stage, verdicts.values())
    place, version = f"manifests/upstream/{plan.suite.name}", plan.machinery.versions["executorch"]
    rules, suite = rules_of(stage), plan.suite.name
    gone = judge.gone(plan.tests)
    if gone and not plan.tests:
        # An update would not help: what is accepted would stay.
        message = (
            f"{place} has {len(gone)} tests, and executorch {version} has none: it moved or renamed them"
        )
        command = judge.command(stage, "--list")
        fix: str = Fix("find them, and correct the suite in manifests/upstream/suites.toml; {}", command)
        stage.add(f"{rules}-gone", Severity.ERROR, suite, message, fix)
        gone = []
    for test in gone:
        update = judge.command(stage, "--sample", "--accept")
        lacking = f"{place} has it, and executorch {version} has no such test"
        stage.add(f"{rules}-gone", Severity.ERROR, test, lacking, update)
    if judge.of_another_release:
        fix = "unset EXECUTORCH_ROOT to compare the release"
        message = (
            f"the tests are those of executorch {version}: their own verdicts count, and why those of the"
            " profile's release fail is not compared"
        )
        stage.add(f"{rules}-no-record", Severity.NOTE, suite, message, fix)
    elif unmeasured := judge.unmeasured(verdicts):
        soc = judge.accepted.soc
        message = f"{unmeasured} tests were never measured on {soc}: failures of other chips are errors here"
        stage.add(f"{rules}-no-record", Severity.NOTE, suite, message, judge.command(stage, "--accept"))
    ran = [verdict for verdict in verdicts.values() if not verdict.cached]
    counts: dict[str, int | float] = {
        **judge.counts(verdicts.values()),
        "selected": len(plan.programs),
        "test_seconds": round(sum(verdict.seconds for verdict in ran), 1),
        "test_cpu_seconds": round(sum(verdict.cpu_seconds for verdict in ran), 1),
    }
    for name, count in counts.items():
        before = stage.metrics.get(name, 0)
        stage.metrics[name] = count + before if isinstance(before, int | float) else count
    stage.metrics |= {"workers": plan.slots, "soc": judge.accepted.soc, **plan.machinery.metric_values()}
    stage.metrics["tests"] = str(plan.suite.place())


def run_tests(plan: UpstreamPlan, options: UpstreamOptions) -> Verdicts:
    _announce(plan)
    step = testing(plan, accept=options.accept)
    results = run_step(step, plan.programs)
    # Once more: a kill from outside says nothing about a test.
    failures = ((name, result.failure) for name, result in results.items())
    if killed := {name for name, failure in failures if failure and failure.kind == "killed"}:
        again = [job for job in plan.programs if job.name in killed]
        results |= run_step(step, again)
    return {test: verdict_of(test, result) for test, result in results.items()}


def _print_list(plan: UpstreamPlan) -> None:
    for job in plan.programs:
        outcome = plan.judge.outcome_of(job.name)
        length = f"{job.seconds:7.1f} s" if plan.cost(job.name) else "        ?"
        print(f"{length}  {job.name}" + (f"  [{outcome}]" if outcome != "passed" else ""))
    seconds = sum(job.seconds for job in plan.programs)
    print(f"{len(plan.programs)} tests, about {units.seconds(seconds / plan.slots)} on {plan.slots} cores")


def _announce(plan: UpstreamPlan) -> None:
    on = plan.machinery
    absent = f"; stand-ins for {', '.join(on.absent)}" if on.absent else ""
    sys.stderr.write(
        f"executorch {on.versions['executorch']}, QNN {on.build_id}, {plan.judge.accepted.soc},"
        f" {plan.slots} workers{absent}\n"
    )
