"""The stage: choose tests, look up cached verdicts, run the other tests, compare with what is accepted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from ci.cached_steps import run_step
from ci.lanes.upstream.choice import JudgedBy, prepare
from ci.lanes.upstream.flags import UpstreamOptions
from ci.lanes.upstream.judge import Judge, rules_of
from ci.lanes.upstream.process import UpstreamPlan, testing, verdict_of
from ci.lanes.upstream.suite import UpstreamSuite
from ci.lanes.upstream.verdict import UpstreamVerdict
from ci.suite.options import parse_shard
from ci.suite.stage import machine_failed
from provisioning.base import units
from provisioning.base.commands import Fix, quoted
from provisioning.base.errors import UsageError
from provisioning.base.findings import Severity
from provisioning.base.rendering import terminal
from provisioning.base.stage_run import StageRun

Verdicts = Mapping[str, UpstreamVerdict]
"""On the tests of a suite, by test."""


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
    with ExitStack() as started:
        if options.list_only:
            for plan in prepare(suites, options, environ, started, judged_by):
                _print_list(plan)
            return 0
        with stage.reported(selection.reports, f"{rules_of(stage)}-not-measured"):
            # Each suite is reported, and what it accepts is written, before the next one runs.
            for plan in prepare(suites, options, environ, started, judged_by):
                verdicts = run_tests(plan, options)
                judge = _close(stage, plan, options, verdicts)
                if keep:
                    keep(stage, plan, judge, verdicts)
    return stage.close(
        selection.reports,
        lacking=machine_failed(stage.findings),
        show=lambda report: terminal.show(
            replace(report, metrics={k: v for k, v in report.metrics.items() if isinstance(v, int | float)})
        ),
    )


def _close(stage: StageRun, plan: UpstreamPlan, options: UpstreamOptions, verdicts: Verdicts) -> Judge:
    judge = plan.judge
    # What a suite without tests has lost stays accepted, and is an error.
    if plan.tests and options.accept:
        expected = [verdict for verdict in verdicts.values() if not verdict.fix]
        judge = judge.updated(expected, plan.tests, plan.machinery.measured_with())
    _report(stage, plan, judge, verdicts)
    return judge


def _check(suites: Sequence[UpstreamSuite], options: UpstreamOptions) -> None:
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
                "--accept with --shard: shards have equal lengths, which --accept changes, so that some tests"
                " would be in no shard",
                fix=Fix("{}, whose parts stay the same", ("--sample", str(shard))),
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
    stage.metrics |= {"workers": plan.slots, "soc": judge.accepted.soc, **plan.machinery.as_metrics()}
    stage.metrics["tests"] = str(plan.suite.place())


def run_tests(plan: UpstreamPlan, options: UpstreamOptions) -> Verdicts:
    _announce(plan)
    step = testing(plan, resume=options.resume, fail_fast=options.fail_fast)
    results = run_step(step, plan.programs, template=plan.template)
    # Once more: a kill from outside says nothing about a test.
    failures = ((name, result.failure) for name, result in results.items())
    if killed := {name for name, failure in failures if failure and failure.kind == "killed"}:
        again = [job for job in plan.programs if job.name in killed]
        results |= run_step(step, again, template=plan.template)
    return {test: verdict_of(test, result) for test, result in results.items()}


def _print_list(plan: UpstreamPlan) -> None:
    for job in plan.programs:
        expected = plan.judge.expected(job.name)
        length = f"{job.seconds:7.1f} s" if plan.cost(job.name) else "        ?"
        print(f"{length}  {job.name}" + (f"  [{expected}]" if expected != "passed" else ""))
    seconds = sum(job.seconds for job in plan.programs)
    print(f"{len(plan.programs)} tests, about {units.seconds(seconds / plan.slots)} on {plan.slots} cores")


def _announce(plan: UpstreamPlan) -> None:
    on = plan.machinery
    absent = f"; stand-ins for {', '.join(on.absent)}" if on.absent else ""
    sys.stderr.write(
        f"executorch {on.versions['executorch']}, QNN {on.build_id}, {plan.judge.accepted.soc},"
        f" {plan.slots} workers{absent}\n"
    )
