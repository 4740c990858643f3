"""`test_onnx`: every chosen program compiled, run, reloaded and judged, unless it is remembered."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from ci.engine.work import How, Result, do
from ci.engine.workers.parent import Worker
from ci.lanes.onnx.compile import Plan, jobs_of, plan_of, require_installed, setup_of, tasks_of, versions
from ci.lanes.onnx.crosscheck import executorch_lane, markdown, pairs_of, verdicts
from ci.lanes.onnx.findings import (
    build_id_of,
    changed,
    context_of,
    cost,
    costs_of,
    findings_of,
    lane_of,
    outcome_of,
    row,
    was_compiled,
)
from ci.lanes.onnx.suite import SUITES
from ci.pipeline.accuracy import rounded
from ci.pipeline.baseline import COSTS, load_tolerances
from ci.pipeline.findings import known_faults, not_passed, verdict
from ci.pipeline.models.own_packages import OwnPackages, record
from ci.pipeline.options import StageOptions
from ci.pipeline.stage import (
    accepted,
    baselines_of,
    by_packages,
    chosen,
    counts,
    finish,
    print_list,
    update_baselines,
)
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Finding, Metric
from provisioning.base.settings import DEFAULT_TARGET
from provisioning.base.stage_run import RUN, StageRun


def run(options: StageOptions) -> int:
    selection, accept = options.selection, options.accept
    programs = chosen(
        SUITES, options.choice, selection, lambda each: jobs_of(each, baselines_of(each, selection.profile))
    )
    if options.list_only:
        return print_list(programs)
    stage = StageRun.as_typed("test_onnx", selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, "onnx-not-run"):
        require_installed()
        plan = plan_of(programs, selection, options.work)
        results = compile_programs(plan, new_baseline=accept.baseline)
        write = partial(update, plan, results)
        held = {each.name for each in plan.programs if not each.case.recorded}
        figures = {name: values for name, values in figures_of(results).items() if name in held}
        current = accepted(accept, SUITES, plan, figures, write, stage)
        plan = replace(plan, programs=current)
        judge(stage, plan, results)
        record(stage, plan.programs, selection)
    return finish(stage, selection)


def compile_programs(plan: Plan, *, new_baseline: bool) -> dict[str, Result]:
    """The result of each program by name.

    With `new_baseline`, a cached result that is worse than the baseline counts: it becomes the baseline."""
    results: dict[str, Result] = {}
    for own, programs in by_packages(plan.programs, plan.selection.store):
        mine = replace(plan, programs=tuple(programs))
        results |= _compile_with(own, mine, new_baseline=new_baseline)
    return results


def _compile_with(own: OwnPackages, plan: Plan, *, new_baseline: bool) -> dict[str, Result]:
    programs, work = {program.name: program for program in plan.programs}, plan.work
    margin_db = load_tolerances().sqnr_margin_db

    def accept(name: str, result: Result) -> bool:
        program = programs[name]
        findings = list(findings_of(program, result))
        if not new_baseline:
            findings += changed(program, result, plan.baseline(program), margin_db)
        return verdict(findings) == "pass"

    def worker(threads: int, count: int) -> Worker:
        return Worker(
            setup_of(plan.logs, threads=threads, timeout=work.timeout, forks=True, exports=True, own=own)
        )

    with tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as scratch:
        tasks = tasks_of(plan, Path(scratch), own)
        return do(tasks, How("programs", worker, work.jobs, work.why), accept=accept)


def judge(stage: StageRun, plan: Plan, results: Mapping[str, Result]) -> None:
    tolerances, selection = load_tolerances(), plan.selection
    lanes = {name: lane_of(result) for name, result in results.items() if was_compiled(result)}
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
        findings += changed(program, result, baseline, tolerances.sqnr_margin_db)
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
    stage.findings += not_passed(plan.programs, results)
    stage.metrics |= {
        **counts(rows, results.values()),
        "socs": len({program.soc for program in plan.programs}),
        "build_id": ", ".join(sorted({lane.build_id for lane in lanes.values()})) or "unknown",
        "versions": versions(),
        "cross_checked": len(pairs),
    }


def figures_of(results: Mapping[str, Result]) -> dict[str, dict[str, float]]:
    return {name: context_of(result)["near"] for name, result in results.items() if was_compiled(result)}


def update(plan: Plan, results: Mapping[str, Result]) -> None:
    """Replace the baseline's costs and accuracy by those of compiled programs, remembered ones included. What
    QNN refuses has its operators instead, and what fails how it did."""
    values: dict[str, dict[str, object]] = {
        name: {
            **costs_of(results[name]),
            "peak_mb": int(results[name].facts["peak"]) >> 20,
            "accuracy": rounded(figures),
            **outcome_of(results[name]),
            "build_id": build_id_of(results[name]),
        }
        for name, figures in figures_of(results).items()
    }
    for name, result in results.items():
        if result.facts and not was_compiled(result):
            values[name] = {
                **dict.fromkeys(COSTS),
                "accuracy": {},
                **outcome_of(result),
                "build_id": build_id_of(result),
            }
    update_baselines(SUITES, plan, values)
