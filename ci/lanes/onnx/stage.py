"""`test_onnx`: every chosen program compiled, run, reloaded and judged, unless it is cached."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ci.explain.cause import explained
from ci.jobs import Job
from ci.lanes.onnx.compile import OnnxPlan, compile_programs, jobs_of, plan_of, require_installed, versions
from ci.lanes.onnx.crosscheck import LaneFigures, executorch_lane, markdown, pairs_of, verdicts
from ci.lanes.onnx.findings import (
    build_id_of,
    changed,
    context_of,
    cost,
    costs_of,
    findings_of,
    identity_of,
    lane_of,
    outcome_of,
    row,
    was_compiled,
)
from ci.lanes.onnx.suite import SUITES, OnnxProgram
from ci.outcome import Result
from ci.suite.accuracy import rounded
from ci.suite.baseline import COSTS, load_tolerances
from ci.suite.findings import known_faults
from ci.suite.lane import Lane, Mine, Results
from ci.suite.options import StageOptions
from ci.suite.stage import baselines_of
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Finding, Metric
from provisioning.base.stage_run import RUN, StageRun

COMPILED = "onnx"


class OnnxLane(Lane[OnnxProgram, OnnxPlan]):
    stage, rules = "test_onnx", "onnx"
    suites = SUITES

    def require_installed(self) -> None:
        require_installed()

    def jobs(self, programs: Sequence[OnnxProgram], profile: str) -> Mapping[str, Job]:
        return jobs_of(programs, baselines_of(programs, profile))

    def plan(self, programs: Sequence[OnnxProgram], options: StageOptions) -> OnnxPlan:
        return plan_of(programs, options.selection, options.work)

    def do(self, plan: OnnxPlan, *, new_baseline: bool) -> Results:
        return {COMPILED: compile_programs(plan, new_baseline=new_baseline)}

    def findings(self, plan: OnnxPlan, program: OnnxProgram, mine: Mine) -> Iterator[Finding]:
        result, baseline, tolerances = mine[COMPILED], plan.baseline(program), load_tolerances()
        judged = result.facts and was_compiled(result)
        name = identity_of(context_of(result)) if judged else ""
        yield from explained(findings_of(program, result), plan.selection.store, name)
        yield from cost(program, result, baseline, tolerances)
        yield from changed(program, result, baseline, tolerances.sqnr_margin_db)
        yield from (check for check in cross_checks(plan) if check.subject == program.name)

    def row(self, plan: OnnxPlan, program: OnnxProgram, mine: Mine) -> Mapping[str, Metric]:
        others = {pair.name: pair.executorch for pair in plan.pairs}
        return row(program, mine[COMPILED], plan.baseline(program), others.get(program.name))

    def figures(self, program: OnnxProgram, mine: Mine) -> Mapping[str, float] | None:
        return None if program.case.recorded else accuracy_of(mine[COMPILED])

    def recorded(self, plan: OnnxPlan, program: OnnxProgram, mine: Mine) -> Mapping[str, object] | None:
        """Costs and accuracy. What QNN refuses has its operators instead, and what fails how it did."""
        result = mine[COMPILED]
        if not result.facts:
            return None
        common = {**outcome_of(result), "build_id": build_id_of(result)}
        if (figures := accuracy_of(result)) is None:
            return {**dict.fromkeys(COSTS), "accuracy": {}, **common}
        megabytes = int(result.facts["peak"]) >> 20
        return {**costs_of(result), "peak_mb": megabytes, "accuracy": rounded(figures), **common}

    def compared(self, plan: OnnxPlan, results: Results) -> OnnxPlan:
        """With ExecuTorch's programs of the same models."""
        selection = plan.selection
        others = executorch_lane(plan.programs, selection.reports, selection.profile, os.environ.get(RUN, ""))
        return replace(plan, pairs=tuple(pairs_of(plan.programs, lanes_of(results[COMPILED]), others)))

    def close(self, stage: StageRun, plan: OnnxPlan, results: Results) -> None:
        stage.findings += [check for check in cross_checks(plan) if check.subject == self.stage]
        build_ids = sorted({lane.build_id for lane in lanes_of(results[COMPILED]).values()})
        for build_id in build_ids:
            stage.findings += known_faults(stage.findings, build_id, "onnx")
        if plan.pairs:
            path = plan.logs / "cross_check.md"
            replace_text(path, markdown(plan.pairs, load_tolerances().cross_check_db))
            stage.artifacts.append(Artifact.of("cross-check", path))
        stage.metrics |= {
            "socs": len({program.soc for program in plan.programs}),
            "build_id": ", ".join(build_ids) or "unknown",
            "versions": versions(),
            "cross_checked": len(plan.pairs),
        }


def cross_checks(plan: OnnxPlan) -> Iterator[Finding]:
    if any(program.case.factory for program in plan.programs):
        yield from verdicts(plan.pairs, load_tolerances().cross_check_db, OnnxLane.stage)


def lanes_of(results: Mapping[str, Result]) -> dict[str, LaneFigures]:
    return {name: lane_of(result) for name, result in results.items() if was_compiled(result)}


def accuracy_of(result: Result) -> dict[str, float] | None:
    """None of what was not compiled."""
    return dict(context_of(result)["near"]) if was_compiled(result) else None
