"""`test_onnx`: every chosen program compiled, run, reloaded and judged, unless it is cached."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ci.lanes.onnx.compile import OnnxPlan, compile_programs, jobs_of, plan_of, require_installed, versions
from ci.lanes.onnx.crosscheck import LaneFigures, executorch_lane, pairs_of, verdicts
from ci.lanes.onnx.findings import (
    build_id_of,
    changed,
    cost,
    costs_of,
    findings_of,
    identity_of,
    lane_of,
    outcome_of,
    row,
    was_compiled,
)
from ci.lanes.onnx.records import facts_in
from ci.lanes.onnx.suite import SUITES, OnnxProgram
from ci.outcome import Result
from ci.suite.accepted import COSTS, load_tolerances
from ci.suite.accuracy import rounded
from ci.suite.findings import known_faults
from ci.suite.options import Choice, StageOptions
from ci.suite.proved import explained
from ci.suite.stage import MeasuredValues, Verdict, accepted, baselines_of, chosen, finish, report, show_list
from provisioning.base.findings import Finding
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.base.stage_run import RUN, StageRun

STAGE, COMPILED = "test_onnx", "onnx"


def run(options: StageOptions) -> int:
    """The exit code."""
    selection, accept = options.selection, options.accept
    if options.list_only:
        return show_list(chosen_programs(options.choice, selection))
    stage = StageRun.as_typed(STAGE, selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, "onnx-not-run"):
        require_installed()
        plan = plan_of(chosen_programs(options.choice, selection), selection, options.work)
        results = compile_programs(plan, new_baseline=accept.values)
        plan = accepted(accept, SUITES, plan, measured_of(plan, results), stage)
        others = executorch_lane(plan.programs, selection.reports, selection.profile, os.environ.get(RUN, ""))
        plan = replace(plan, pairs=tuple(pairs_of(plan.programs, lanes_of(results), others)))
        verdicts = {
            program.name: verdict_of(plan, program, results[program.name]) for program in plan.programs
        }
        report(stage, SUITES, plan, verdicts, {COMPILED: results})
        _note_of_all(stage, plan, results)
    return finish(stage, selection)


def chosen_programs(choice: Choice, selection: Selection) -> list[OnnxProgram]:
    profile = selection.profile
    return chosen(SUITES, choice, selection, lambda every: jobs_of(every, baselines_of(every, profile)))


def measured_of(plan: OnnxPlan, results: Mapping[str, Result]) -> MeasuredValues:
    """Costs and accuracy. What QNN refuses has its operators instead, and what fails how it did."""
    figures, recorded = dict[str, Mapping[str, float]](), dict[str, Mapping[str, object]]()
    for program in plan.programs:
        name, result = program.name, results[program.name]
        accuracy = accuracy_of(result)
        if accuracy is not None and not program.case.recorded:
            figures[name] = accuracy
        if result.record:
            costs: Mapping[str, object] = {**dict.fromkeys(COSTS), "accuracy": {}}
            if accuracy is not None:
                megabytes = facts_in(result).contexts_made.peak >> 20
                costs = {**costs_of(result), "peak_mb": megabytes, "accuracy": rounded(accuracy)}
            recorded[name] = {**costs, **outcome_of(result), "build_id": build_id_of(result)}
    return MeasuredValues(figures, recorded)


def verdict_of(plan: OnnxPlan, program: OnnxProgram, result: Result) -> Verdict:
    others = {pair.name: pair.executorch for pair in plan.pairs}
    shown = row(program, result, plan.baseline(program), others.get(program.name))
    return Verdict(_findings_of(plan, program, result), shown)


def _findings_of(plan: OnnxPlan, program: OnnxProgram, result: Result) -> Iterator[Finding]:
    baseline, tolerances = plan.baseline(program), load_tolerances()
    name = identity_of(facts_in(result).compiled) if was_compiled(result) else ""
    yield from explained(findings_of(program, result), plan.selection.store, name)
    yield from cost(program, result, baseline, tolerances)
    yield from changed(program, result, baseline, tolerances.sqnr_margin_db)
    yield from (check for check in cross_checks(plan) if check.subject == program.name)


def _note_of_all(stage: StageRun, plan: OnnxPlan, results: Mapping[str, Result]) -> None:
    """What is to be said of all programs together."""
    stage.findings += [check for check in cross_checks(plan) if check.subject == STAGE]
    build_ids = sorted({lane.build_id for lane in lanes_of(results).values()})
    for build_id in build_ids:
        stage.findings += known_faults(stage.findings, build_id, "onnx")
    stage.metrics |= {
        "socs": len({program.soc for program in plan.programs}),
        "build_id": ", ".join(build_ids) or "unknown",
        "versions": versions(),
        "cross_checked": len(plan.pairs),
    }


def cross_checks(plan: OnnxPlan) -> Iterator[Finding]:
    if any(program.case.factory for program in plan.programs):
        yield from verdicts(plan.pairs, load_tolerances().cross_check_db, STAGE)


def lanes_of(results: Mapping[str, Result]) -> dict[str, LaneFigures]:
    return {name: lane_of(result) for name, result in results.items() if was_compiled(result)}


def accuracy_of(result: Result) -> dict[str, float] | None:
    """None of what was not compiled."""
    return dict(facts_in(result).compiled.near.figures) if was_compiled(result) else None
