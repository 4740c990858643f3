"""`test_onnx`: every chosen program compiled, run, reloaded and judged, unless it is remembered."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.engine.jobs import shard_named
from ci.engine.work import How, Result, cached_from, do
from ci.engine.workers.parent import Worker
from ci.onnx.compile import jobs_of, model_names, require_installed, setup_of, tasks_of, versions
from ci.onnx.crosscheck import executorch_lane, markdown, pairs_of, verdicts
from ci.onnx.findings import build_id_of, context_of, cost, costs_of, findings_of, lane_of, row
from ci.onnx.suite import Program, all_programs, choose, programs_of
from ci.suites.baseline import Baseline, agree, baseline_path, load_baseline, load_tolerances
from ci.suites.findings import known_faults, verdict
from ci.suites.flags import check_args
from ci.suites.own_packages import OwnPackages, installed, record
from ci.suites.stage import finish, print_list
from ci.suites.thresholds import update_suite
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Finding, Metric
from provisioning.base.settings import DEFAULT_TARGET, Selection, selection_of
from provisioning.base.stage_run import RUN, StageRun


@dataclass(frozen=True, slots=True)
class Plan:
    programs: tuple[Program, ...]
    baselines: dict[Path, Baseline]
    logs: Path

    def baseline(self, program: Program) -> Baseline:
        return self.baselines[program.suite]


def run(args: argparse.Namespace) -> int:
    selection = selection_of(args)
    check_args(args)
    programs = chosen(args, selection)
    if args.list:
        return print_list(programs)
    stage = StageRun.as_typed("test_onnx", selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, "onnx-not-run"):
        require_installed()
        logs = selection.reports.absolute() / "onnx"
        plan = Plan(tuple(programs), baselines_of(programs, selection), logs)
        results = compile_programs(args, plan, selection)
        figures = figures_of(results)
        if args.update_baseline or args.update_thresholds:
            agree(plan.baselines, plan.programs, figures, args.reason, stage.command)
        if args.update_baseline:
            update(plan, results)
        if args.update_thresholds:
            plan = with_thresholds(plan, figures)
        judge(stage, plan, results, selection)
        record(stage, plan.programs, selection)
    return finish(stage, selection)


def compile_programs(args: argparse.Namespace, plan: Plan, selection: Selection) -> dict[str, Result]:
    results: dict[str, Result] = {}
    for needs in dict.fromkeys(program.needs for program in plan.programs):
        mine = tuple(program for program in plan.programs if program.needs == needs)
        results |= _compile_with(
            installed(needs, selection.store), args, replace(plan, programs=mine), selection
        )
    return results


def _compile_with(
    own: OwnPackages, args: argparse.Namespace, plan: Plan, selection: Selection
) -> dict[str, Result]:
    programs = {program.name: program for program in plan.programs}

    def accept(name: str, result: Result) -> bool:
        return verdict(list(findings_of(programs[name], result))) == "pass"

    def worker(threads: int, count: int) -> Worker:
        return Worker(
            setup_of(plan.logs, threads=threads, timeout=args.timeout, forks=True, exports=True, own=own)
        )

    with tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as scratch:
        tasks = tasks_of(
            plan.programs,
            plan.baselines,
            store=selection.store,
            logs=plan.logs,
            scratch=Path(scratch),
            # Remembered programs have no model that --keep could keep.
            reuse=not (args.no_cache or args.keep),
            keep=args.keep,
            own=own,
        )
        return do(tasks, How("programs", worker, args.jobs, args.why), accept=accept)


def chosen(args: argparse.Namespace, selection: Selection) -> list[Program]:
    """The programs that the flags select. A shard has whole models, because they are exported once."""
    programs = choose(
        all_programs(
            [path.absolute() for path in args.suite or ()], selection.named_socs, profile=selection.profile
        ),
        tags=args.tag or (),
        words=args.words or (),
        cases=args.case or (),
    )
    if args.shard:
        jobs = shard_named(jobs_of(programs, baselines_of(programs, selection)), args.shard)
        mine, names = {job.name for job in jobs}, model_names(programs)
        programs = [program for program in programs if names[program.name] in mine]
    return programs


def baselines_of(programs: Sequence[Program], selection: Selection) -> dict[Path, Baseline]:
    return {
        suite: load_baseline(baseline_path(suite, selection.profile))
        for suite in dict.fromkeys(program.suite for program in programs)
    }


def judge(stage: StageRun, plan: Plan, results: Mapping[str, Result], selection: Selection) -> None:
    tolerances = load_tolerances()
    lanes = {name: lane_of(result) for name, result in results.items() if result.facts}
    pairs = pairs_of(
        plan.programs, lanes, executorch_lane(selection.reports, selection.profile, os.environ.get(RUN, ""))
    )
    others = {pair.name: pair.executorch for pair in pairs}
    compared: list[Finding] = []
    if any(program.case.factory for program in plan.programs):
        compared = list(verdicts(pairs, tolerances.cross_check_db, stage.stage))
    rows: dict[str, Metric] = {}
    for program in plan.programs:
        result, baseline = results[program.name], plan.baseline(program)
        findings = [*findings_of(program, result), *cost(program, result, baseline, tolerances)]
        findings += [finding for finding in compared if finding.subject == program.name]
        stage.findings += findings
        rows[program.name] = row(program, result, findings, baseline, others.get(program.name))
    stage.findings += [finding for finding in compared if finding.subject == stage.stage]
    for build_id in sorted({lane.build_id for lane in lanes.values()}):
        stage.findings += known_faults(stage.findings, build_id, "onnx")
    if pairs:
        path = plan.logs / "cross_check.md"
        replace_text(path, markdown(pairs, tolerances.cross_check_db))
        stage.artifacts.append(Artifact.of("cross-check", path))
    stage.metrics |= {
        "selected": len(plan.programs),
        "cached": sum(result.cached for result in results.values()),
        **cached_from(results.values()),
        "failed": sum(isinstance(each, dict) and each["verdict"] != "pass" for each in rows.values()),
        "socs": len({program.soc for program in plan.programs}),
        "build_id": ", ".join(sorted({lane.build_id for lane in lanes.values()})) or "unknown",
        "versions": versions(),
        "cross_checked": len(pairs),
        "programs": rows,
    }


def figures_of(results: Mapping[str, Result]) -> dict[str, dict[str, float]]:
    """Figures as a baseline stores them, so that thresholds are derived from those."""
    return {
        name: {figure: round(value, 6) for figure, value in context_of(result)["near"].items()}
        for name, result in results.items()
        if result.facts
    }


def with_thresholds(plan: Plan, figures: Mapping[str, Mapping[str, float]]) -> Plan:
    """Write the figures to the suites as thresholds; returns the plan with them."""
    changed: dict[str, Program] = {}
    for suite in plan.baselines:
        update_suite(suite, programs_of, figures, load_tolerances().sqnr_margin_db)
        again = programs_of(suite, profile=plan.programs[0].profile)
        changed |= {program.name: program for program in again}
    return replace(plan, programs=tuple(changed.get(program.name, program) for program in plan.programs))


def update(plan: Plan, results: Mapping[str, Result]) -> None:
    """Replace the baseline's costs and accuracy by those of compiled programs, remembered ones included."""
    figures = figures_of(results)
    for suite, baseline in list(plan.baselines.items()):
        compiled = [each.name for each in plan.programs if each.suite == suite and each.name in figures]
        values = {
            name: {
                **costs_of(results[name]),
                "peak_mb": int(results[name].facts["peak"]) >> 20,
                "accuracy": figures[name],
                "build_id": build_id_of(results[name]),
            }
            for name in compiled
        }
        known = [program.name for program in all_programs([suite])]
        plan.baselines[suite] = baseline.rewritten(values, known)
