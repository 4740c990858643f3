"""What the stages `test_onnx` and `test_onnx_device` think of compiled programs: findings, figures and a row
of each.

The functions here are parts of the lane's record (`lane.py`); the work itself is in `steps`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ci.lanes.onnx.findings import (
    build_id_of,
    changes_of,
    cost,
    costs_of,
    findings_of,
    outcome_of,
    recorded_failure,
    row,
)
from ci.lanes.onnx.orders import (
    facts_in,
)
from ci.lanes.onnx.steps import OnnxPlan, compile_programs, jobs_of, plan_of, require_installed
from ci.lanes.onnx.suite import SUITES, OnnxProgram
from ci.suite.accepted import COSTS, load_tolerances
from ci.suite.device_stage import check_device
from ci.suite.figures import round_figures
from ci.suite.findings import known_faults
from ci.suite.lane import Remarks
from ci.suite.options import Choice, StageOptions
from ci.suite.stage import (
    MeasuredValues,
    Results,
    Verdict,
    choose,
)
from ci.work import (
    Result,
)
from provisioning.base.findings import Finding
from provisioning.base.settings import Selection

if TYPE_CHECKING:
    pass


STAGE, ON_DEVICE, COMPILED = "test_onnx", "test_onnx_device", "onnx"


def chosen_programs(choice: Choice, selection: Selection) -> list[OnnxProgram]:
    return choose(SUITES, choice, selection, jobs_of)


def plan_of_suite(
    programs: Sequence[OnnxProgram], options: StageOptions, stages: tuple[str, ...]
) -> OnnxPlan:
    device = options.device if ON_DEVICE in stages else None
    if device:
        check_device(device)
    require_installed()
    plan = plan_of(programs, options.selection, options.work)
    return replace(plan, new_baseline=options.accept, device=device)


def compiled_results(plan: OnnxPlan, results: Results) -> Mapping[str, Result]:
    return compile_programs(plan)


def measured_of(plan: OnnxPlan, results: Results) -> MeasuredValues:
    """Return costs and accuracy, and how a recorded case failed."""
    figures, recorded = dict[str, Mapping[str, float]](), dict[str, Mapping[str, object]]()
    for program in plan.programs:
        name, result = program.name, results[COMPILED][program.name]
        if result.failure and not recorded_failure(program, result):
            continue
        costs: Mapping[str, object] = {**dict.fromkeys(COSTS), "accuracy": {}}
        if not result.failure:
            context = facts_in(result).context
            accuracy = dict(context.near.figures)
            costs = {**costs_of(result), "peak_mb": context.peak >> 20, "accuracy": round_figures(accuracy)}
            if not program.case.recorded:
                figures[name] = accuracy
        recorded[name] = {**costs, **outcome_of(program, result), "build_id": build_id_of(result)}
    return MeasuredValues(figures, recorded)


def verdict_of(plan: OnnxPlan, program: OnnxProgram, results: Mapping[str, Result]) -> Verdict:
    result = results[COMPILED]
    return Verdict(_findings_of(program, result), row(program, result))


def _findings_of(program: OnnxProgram, result: Result) -> Iterator[Finding]:
    tolerances = load_tolerances()
    yield from findings_of(program, result)
    yield from cost(program, result, tolerances)
    yield from changes_of(program, result, tolerances.sqnr_margin_db)


def remarks_of(plan: OnnxPlan, results: Results, findings: Sequence[Finding]) -> Remarks:
    compiled = results[COMPILED].values()
    build_ids = sorted({build_id_of(result) for result in compiled if not result.failure})
    known: list[Finding] = []
    for build_id in build_ids:
        known += known_faults(findings, build_id, "onnx")
    socs = {program.soc for program in plan.programs}
    return Remarks(known, {"socs": len(socs), "build_id": ", ".join(build_ids) or "unknown"})
