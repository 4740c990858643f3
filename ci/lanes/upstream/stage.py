"""The stage: choose tests, take remembered verdicts, run the other tests, compare with the ledger."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from xml.etree import ElementTree

from ci.engine.workers.parent import tail
from ci.lanes.upstream.choice import memo_of, prepare
from ci.lanes.upstream.flags import UpstreamOptions
from ci.lanes.upstream.judge import Judge, rules_of
from ci.lanes.upstream.ledger import SuiteRecord, record_of_run
from ci.lanes.upstream.process import RunTest, UpstreamPlan, verdict_of
from ci.lanes.upstream.suite import UpstreamSuite
from ci.lanes.upstream.tried import TABLED
from ci.lanes.upstream.verdict import UpstreamVerdict
from ci.pipeline.shards import parse_shard
from ci.pipeline.stage import machine_failed
from ci.pipeline.steps import StepTask, run_tasks
from provisioning.base import units
from provisioning.base.commands import Fix, leave_out, quoted, session
from provisioning.base.errors import UsageError
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Severity
from provisioning.base.rendering import terminal
from provisioning.base.rendering.junit_xml import document, testcase
from provisioning.base.stage_run import StageRun

LOG_CHARACTERS = 8000
"""Of the log of an unexpected failure, in JUnit XML."""

Verdicts = Mapping[str, UpstreamVerdict]
"""On the tests of a suite, by test."""


def run_suites(suites: Sequence[UpstreamSuite], options: UpstreamOptions, environ: Mapping[str, str]) -> int:
    _check(suites, options)
    selection = options.selection
    stage = StageRun.as_typed(suites[0].stage, selection.profile, selection.target)
    with ExitStack() as started:
        if options.list_only:
            for plan in prepare(suites, options, environ, started):
                _print_list(plan)
            return 0
        with stage.reported(selection.reports, f"{rules_of(stage)}-not-measured"):
            plans = prepare(suites, options, environ, started)
            # Each suite is reported, and what it accepts is written, before the next one runs.
            measured = (run_tests(plan, options) for plan in plans)
            done = [_close(stage, plan, options, own) for plan, own in zip(plans, measured, strict=True)]
            _write_records(stage, plans, done)
    return stage.close(
        selection.reports,
        lacking=machine_failed(stage.findings),
        show=lambda report: terminal.show(
            replace(report, metrics={k: v for k, v in report.metrics.items() if isinstance(v, int | float)})
        ),
    )


def _close(
    stage: StageRun, plan: UpstreamPlan, options: UpstreamOptions, verdicts: Verdicts
) -> tuple[Judge, Verdicts]:
    judge = plan.judge
    # What a suite without tests has lost stays recorded, and is an error.
    if plan.tests and options.accept:
        expected = [verdict for verdict in verdicts.values() if not verdict.fix]
        judge.note_changes(stage, expected, plan.tests)
        judge = judge.updated(expected, plan.tests, plan.machinery.measured_with())
    _report(stage, plan, judge, verdicts)
    return judge, verdicts


def _check(suites: Sequence[UpstreamSuite], options: UpstreamOptions) -> None:
    selection, shard = options.selection, options.choice.shard
    tabled = [suite.name for suite in suites if suite.name in TABLED]
    if options.accept and tabled:
        others = [suite.name for suite in suites if suite.name not in TABLED]
        raise UsageError(
            f"--accept: {', '.join(tabled)} have no ledger: they are compared with the operator table",
            fix=session(suites[0].stage, *others, "--accept") if others else leave_out("--accept"),
        )
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
                fix=Fix("{}, whose parts stay the same", ("--sample", str(shard))),
            )


def _report(stage: StageRun, plan: UpstreamPlan, judge: Judge, verdicts: Verdicts) -> None:
    judge.findings(stage, verdicts.values())
    place, version = f"manifests/upstream/{plan.suite.name}", plan.machinery.versions["executorch"]
    rules, suite = rules_of(stage), plan.suite.name
    gone = judge.gone(plan.tests)
    if gone and not plan.tests:
        # An update would not help: it keeps what is recorded.
        message = (
            f"{place} has {len(gone)} tests, and executorch {version} has none: it moved or renamed them"
        )
        command = judge.command(stage, "--list")
        fix: str = Fix("find them, and correct the suite in ci/lanes/upstream/suite.py; {}", command)
        stage.add(f"{rules}-gone", Severity.ERROR, suite, message, fix)
        gone = []
    for test in gone:
        update = judge.command(stage, "--sample", "--accept")
        lacking = f"{place} has it, and executorch {version} has no such test"
        stage.add(f"{rules}-gone", Severity.ERROR, test, lacking, update)
    if judge.of_another_release:
        fix = "unset EXECUTORCH_ROOT to compare the release"
        message = (
            f"the tests are those of executorch {version}: their own verdicts count, and what is recorded of"
            " the profile's release (where they run, how exact they are) is not compared"
        )
        stage.add(f"{rules}-no-record", Severity.NOTE, suite, message, fix)
    elif judge.compared and (unrecorded := judge.unrecorded(verdicts)):
        where = "where they run and how exact they are is not compared"
        message = f"{unrecorded} tests have no record on {judge.soc}: {where}"
        stage.add(f"{rules}-no-record", Severity.NOTE, suite, message, judge.command(stage, "--accept"))
    if missing := len(plan.programs) - len(verdicts):
        message = f"{missing} tests were not reached, because --fail-fast stopped at a surprise"
        stage.add(f"{rules}-stopped", Severity.NOTE, stage.stage, message, "run without --fail-fast")
    ran = [verdict for verdict in verdicts.values() if not verdict.cached]
    counts: dict[str, int | float] = {
        **judge.counts(verdicts.values()),
        "not_reached": missing,
        "selected": len(plan.programs),
        "test_seconds": round(sum(verdict.seconds for verdict in ran), 1),
        "test_cpu_seconds": round(sum(verdict.cpu_seconds for verdict in ran), 1),
    }
    for name, count in counts.items():
        before = stage.metrics.get(name, 0)
        stage.metrics[name] = count + before if isinstance(before, int | float) else count
    stage.metrics |= {"workers": plan.slots, "soc": judge.soc, **plan.machinery.as_metrics()}
    stage.metrics["tests"] = str(plan.suite.place())
    junit = judge.logs / "junit.xml"
    junit.parent.mkdir(parents=True, exist_ok=True)
    text = junit_text(verdicts.values(), judge, stage.stage, plan.suite.path)
    junit.write_text(text, encoding="utf-8")
    stage.artifacts.append(Artifact.of("junit", junit))


def junit_text(verdicts: Iterable[UpstreamVerdict], judge: Judge, suite: str, module: str) -> str:
    """A test that the ledger names is a skipped case with its cause; a surprise is a failure with its log."""
    root = ElementTree.Element("testsuite", name=suite)
    for verdict in sorted(verdicts, key=lambda row: row.test):
        owner, _, name = verdict.test.rpartition(".")
        case = testcase(root, f"{module}.{owner}", name, verdict.seconds)
        entry = judge.ledger.entry(verdict.test, judge.soc)
        if judge.is_surprise(verdict):
            reason = "; ".join(text for text, _ in judge.changes(verdict)) or verdict.reason
            if entry and verdict.outcome == "passed":
                reason = f"passes, and the ledger has it as {entry.outcome}"
            failure = ElementTree.SubElement(case, "failure", message=reason, type=verdict.outcome)
            failure.text = "\n".join(f"{where} {error}".strip() for where, error in verdict.problems)
            log = tail(judge.logs / f"{verdict.test}.log", LOG_CHARACTERS)
            ElementTree.SubElement(case, "system-out").text = log
        elif entry or verdict.outcome != "passed":
            why = f"{entry.outcome}: {entry.cause}" if entry else f"{verdict.outcome}: {verdict.reason}"
            ElementTree.SubElement(case, "skipped", message=why)
        if verdict.cached:
            properties = ElementTree.SubElement(case, "properties")
            ElementTree.SubElement(properties, "property", name="cached", value="true")
    return document(root)


def _write_records(
    stage: StageRun, plans: Sequence[UpstreamPlan], done: Sequence[tuple[Judge, Verdicts]]
) -> None:
    """What each suite of the operator table gave, in a file for each: the table is made of these."""
    measured = plans[0].machinery.measured_with()
    for judge, verdicts in done:
        if judge.ledger.suite not in TABLED:
            continue
        known = [row for row in verdicts.values() if not row.fix and not judge.passes_by_chance(row)]
        path = record_of_run(judge.logs.parents[1], judge.ledger.suite, judge.soc)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, SuiteRecord().with_verdicts(known, measured).as_json())
        stage.artifacts.append(Artifact.of("record", path))


def run_tests(plan: UpstreamPlan, options: UpstreamOptions) -> Verdicts:
    # What a suite without tests has lost stays recorded.
    _announce(plan, has_record=(bool(plan.tests) and options.accept) or plan.judge.compared)
    step, environ = RunTest(plan, options.resume, options.fail_fast), plan.machinery.environment
    memo = memo_of(plan, reuse=options.work.cache)
    tasks = [StepTask(step, job, memo, step.key(job, memo, environ), plan.logs) for job in plan.programs]
    results = run_tasks(step, tasks)
    # Once more: a kill from outside says nothing about a test.
    failures = ((name, result.failure) for name, result in results.items())
    if killed := {name for name, failure in failures if failure and failure.kind == "killed"}:
        results |= run_tasks(step, [task for task in tasks if task.name in killed])
    return {test: verdict_of(test, result) for test, result in results.items()}


def _print_list(plan: UpstreamPlan) -> None:
    for job in plan.programs:
        entry = plan.judge.ledger.entry(job.name, plan.judge.soc)
        length = f"{job.seconds:7.1f} s" if job.name in plan.costs else "        ?"
        print(f"{length}  {job.name}" + (f"  [{entry.outcome}]" if entry else ""))
    seconds = sum(job.seconds for job in plan.programs)
    print(f"{len(plan.programs)} tests, about {units.seconds(seconds / plan.slots)} on {plan.slots} cores")


def _announce(plan: UpstreamPlan, *, has_record: bool) -> None:
    on = plan.machinery
    absent = f"; stand-ins for {', '.join(on.absent)}" if on.absent else ""
    sys.stderr.write(
        f"executorch {on.versions['executorch']}, QNN {on.build_id}, {plan.judge.soc}, "
        f"{plan.slots} workers{absent}\n"
    )
    judge = plan.judge
    if not has_record and not judge.of_another_release:
        sys.stderr.write(
            f"no record of {plan.suite.name} for {judge.soc}: accuracy is not compared, and failures that are"
            " known on other chips are errors; run with --accept first\n"
        )
