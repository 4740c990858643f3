"""`test_onnx`: every chosen program compiled, run, reloaded and judged; what is unchanged is kept."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci.engine.jobs import asked_shard
from ci.engine.memo import VerdictCache
from ci.executorch.suite import SHIPPED as LOWERING_SUITE
from ci.onnx.crosscheck import executorch_lane
from ci.onnx.judge import cost, costs_of, cross_check, findings_of, misses_of, pairs_of, row
from ci.onnx.measure import Plan, Result, basis, jobs_of, measured, models_of
from ci.onnx.process import require_installed
from ci.onnx.suite import Program, all_programs, choose, programs_of
from ci.suites.baseline import Baseline, agree, baseline_path, load_baseline, load_tolerances
from ci.suites.flags import check
from ci.suites.stage import finish
from ci.suites.thresholds import update_suite
from provisioning.base.commands import typed
from provisioning.base.errors import UsageError
from provisioning.base.findings import Metric, StageRun
from provisioning.base.settings import DEFAULT_TARGET, Selection, selection_of


def run(args: argparse.Namespace) -> int:
    selection = selection_of(args)
    check(args.suite or ())
    if selection.target != DEFAULT_TARGET:
        raise UsageError(
            f"--target {selection.target}: the emulator is for {DEFAULT_TARGET}", remedy="leave --target out"
        )
    programs = chosen(args, selection)
    if args.list:
        for program in programs:
            sys.stdout.write(f"{program.name}  [{', '.join(program.run.tags)}]\n")
        return 0
    command = typed("nox -s test_onnx --", sys.argv[2:])
    stage = StageRun("test_onnx", selection.profile, DEFAULT_TARGET, command)
    with stage.reported(selection.reports, "onnx-not-run"):
        require_installed()
        plan = plan_of(args, selection, programs)
        cache = VerdictCache(selection.store, "onnx", enabled=not args.no_cache)
        # One that is kept as a verdict alone has no model that --keep could leave.
        results = measured(plan, cache, lambda program, result: not (args.keep or misses_of(program, result)))
        figures = figures_of(results)
        if args.update_baseline or args.update_thresholds:
            agree(plan.baselines, plan.programs, figures, args.reason, command)
        if args.update_baseline:
            update(plan, results)
        if args.update_thresholds:
            plan = with_thresholds(plan, figures)
        judge(stage, plan, results, selection)
    return finish(stage, selection)


def chosen(args: argparse.Namespace, selection: Selection) -> list[Program]:
    """The programs that the flags leave. A shard has whole models, which are exported once."""
    programs = choose(
        all_programs(
            [path.absolute() for path in args.suite or ()], selection.named_socs, profile=selection.profile
        ),
        tags=args.tag or (),
        words=args.words or (),
        cases=args.case or (),
    )
    if args.shard:
        jobs = asked_shard(jobs_of(programs, baselines_of(programs, selection)), args.shard)
        models = models_of(programs)
        mine = {program.name for job in jobs for program in models[job.name]}
        programs = [program for program in programs if program.name in mine]
    return programs


def plan_of(args: argparse.Namespace, selection: Selection, programs: Sequence[Program]) -> Plan:
    return Plan(
        programs=tuple(programs),
        basis=basis(),
        baselines=baselines_of(programs, selection),
        logs=selection.reports.absolute() / "onnx",
        jobs=args.jobs,
        timeout=args.timeout,
        keep=args.keep,
    )


def baselines_of(programs: Sequence[Program], selection: Selection) -> dict[Path, Baseline]:
    return {
        suite: load_baseline(baseline_path(suite, selection.profile))
        for suite in dict.fromkeys(program.suite for program in programs)
    }


def judge(stage: StageRun, plan: Plan, results: Mapping[str, Result], selection: Selection) -> None:
    tolerances = load_tolerances()
    pairs = pairs_of(
        plan.programs, results, executorch_lane(selection.reports, LOWERING_SUITE, selection.profile)
    )
    others = {name: other for name, _, other in pairs}
    rows: dict[str, Metric] = {}
    for program in plan.programs:
        result, baseline = results[program.name], plan.baseline(program)
        findings = [*findings_of(program, result), *cost(program, result, baseline, tolerances)]
        stage.findings += findings
        rows[program.name] = row(program, result, findings, baseline, others.get(program.name))
    if any(program.case.factory for program in plan.programs):
        cross_check(stage, pairs, plan.logs)
    builds = {result.facts["beside"]["record"]["build_id"] for result in results.values() if result.facts}
    stage.metrics |= {
        "selected": len(plan.programs),
        "cached": sum(result.cached for result in results.values()),
        "failed": sum(isinstance(each, dict) and each["verdict"] != "pass" for each in rows.values()),
        "socs": len({program.soc for program in plan.programs}),
        "build_id": ", ".join(sorted(builds)) or "unknown",
        "versions": dict(plan.versions),
        "programs": rows,
    }


def figures_of(results: Mapping[str, Result]) -> dict[str, dict[str, float]]:
    """As a baseline has them, so that thresholds follow from what it says."""
    return {
        name: {figure: round(value, 6) for figure, value in result.facts["beside"]["near"].items()}
        for name, result in results.items()
        if result.facts
    }


def with_thresholds(plan: Plan, figures: Mapping[str, Mapping[str, float]]) -> Plan:
    """Write the figures to the suites as thresholds; returns the plan with programs judged by them."""
    changed: dict[str, Program] = {}
    for suite in plan.baselines:
        update_suite(suite, programs_of, figures, load_tolerances().sqnr_margin_db)
        again = programs_of(suite, profile=plan.programs[0].profile)
        changed |= {program.name: program for program in again}
    return replace(plan, programs=tuple(changed.get(program.name, program) for program in plan.programs))


def update(plan: Plan, results: Mapping[str, Result]) -> None:
    """Costs and accuracy of what was compiled, now or earlier, replace those of the baseline."""
    figures = figures_of(results)
    for suite, baseline in list(plan.baselines.items()):
        compiled = [each.name for each in plan.programs if each.suite == suite and each.name in figures]
        values = {
            name: {
                **costs_of(results[name]),
                "peak_mb": int(results[name].facts["peak"]) >> 20,
                "accuracy": figures[name],
                "build_id": results[name].facts["beside"]["record"]["build_id"],
            }
            for name in compiled
        }
        known = [program.name for program in all_programs([suite])]
        plan.baselines[suite] = baseline.rewritten(values, known)
