"""`test_lowering`: compile every chosen program, audit it and compare it with its baseline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci.artifacts.against_sdk import sdk_arches
from ci.engine.closed import closed
from ci.engine.installed import ready_environment
from ci.engine.jobs import Job
from ci.engine.work import Result
from ci.lanes.executorch.backends import findings_before_compile, only_library_missing, refusal
from ci.lanes.executorch.compile import UNKNOWN_SECONDS, Plan, basis_of, compile_programs
from ci.lanes.executorch.judge import (
    artifact,
    cost,
    costs_of,
    delegation,
    failure_finding,
    kept_on_cpu,
    program_file,
)
from ci.lanes.executorch.suite import SUITES, Program
from ci.pipeline.baseline import Recorded, beside, load_tolerances
from ci.pipeline.findings import not_passed, notes
from ci.pipeline.models.own_packages import record
from ci.pipeline.options import Choice, StageOptions, Work
from ci.pipeline.stage import baselines_of, chosen, counts, finish, print_list, row_of, update_baselines
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.base.stage_run import StageRun
from provisioning.components import QNN_SDK
from provisioning.manifest import soc_named


def chosen_programs(choice: Choice, selection: Selection) -> list[Program]:
    def jobs(programs: Sequence[Program]) -> dict[str, Job]:
        return {job.name: job for job in jobs_of(programs, selection.profile)}

    return chosen(SUITES, choice, selection, jobs)


def jobs_of(programs: Sequence[Program], profile: str) -> list[Job]:
    """Each program with the time in its baseline for compiling and running it."""
    baselines = baselines_of(programs, profile)
    jobs = []
    for program in programs:
        recorded = baselines[program.suite].of(program.name) or Recorded()
        seconds = (recorded.cpu_seconds or UNKNOWN_SECONDS) + (recorded.run_seconds or 1.0)
        jobs.append(Job(program.name, seconds))
    return jobs


def plan_of(programs: Sequence[Program], selection: Selection, work: Work, name: str) -> Plan:
    """`name` is that of the folder of logs."""
    socs = tuple(dict.fromkeys(program.soc for program in programs))
    environment = ready_environment(replace(selection, soc=socs[0] if socs else selection.soc), os.environ)
    environment.explain()
    sdk = environment.root(QNN_SDK).path
    basis = basis_of(sdk, selection.store)
    return Plan(
        selection=selection,
        programs=tuple(programs),
        environment=closed(environment.merged(os.environ)),
        sdk=sdk,
        basis=basis,
        work=work,
        logs=Path(selection.reports).absolute() / name,
        baselines=baselines_of(programs, selection.profile),
        refused=dict(refusals(programs, sdk, basis.build_id)),
    )


def refusals(programs: Sequence[Program], sdk: Path, build_id: str) -> Iterator[tuple[str, Finding]]:
    """Refuse chips that are newer than every Hexagon library of the SDK."""
    arches = sdk_arches(sdk)
    for program in programs:
        arch = soc_named(program.soc).arch
        if finding := refusal(program, build_id):
            yield program.name, finding
        elif arches and arch > max(arches):
            yield (
                program.name,
                Finding(
                    "lowering-soc",
                    Severity.ERROR,
                    program.name,
                    f"{program.soc} has HTP v{arch}, and QNN {build_id} ends at v{max(arches)}",
                    "use a profile with a newer QNN (--profile), or another chip (--soc)",
                ),
            )


def run(options: StageOptions) -> int:
    selection = options.selection
    if options.list_only:
        return print_list(chosen_programs(options.choice, selection))
    stage = StageRun.as_typed("test_lowering", selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, "lowering-not-run"):
        programs = chosen_programs(options.choice, selection)
        plan = plan_of(programs, selection, options.work, "lowering")
        results = compile_programs(plan)
        if options.accept.baseline:
            update(plan, results)
        judge(stage, plan, results)
        record(stage, plan.programs, selection)
    return finish(stage, selection, lacking=only_library_missing(stage.findings))


def judge(stage: StageRun, plan: Plan, results: Mapping[str, Result]) -> None:
    tolerances = load_tolerances()
    rows: dict[str, Metric] = {}
    for program in plan.programs:
        result = results.get(program.name)
        baseline = plan.baseline(program)
        if result is None:
            findings = [plan.refused[program.name]]
        elif result.failure:
            findings = [failure_finding(program, result.failure, "test_lowering")]
        else:
            findings = [*findings_before_compile(program, result.facts)] if program.backend == "lpai" else []
        if result is not None and compiled(result):
            findings += [
                *delegation(program, result.facts),
                *kept_on_cpu(program, result.facts),
                *notes(program, result.facts, SUITES.repeat(program, "test_lowering")),
                *artifact(program, result, plan.basis.build_id),
                *cost(program, result, plan.basis.build_id, baseline, tolerances),
            ]
        stage.findings += findings
        agreed = baseline.of(program.name)
        rows[program.name] = row(program, result, findings, plan.basis.build_id, agreed)
    stage.findings += not_passed(plan.programs, results)
    stage.metrics |= {
        **counts(rows, results.values()),
        "build_id": plan.basis.build_id,
        "sdk": str(plan.sdk),
    }


def compiled(result: Result) -> bool:
    """Whether there is a program. A test for the LPAI may end with the quantized model."""
    return not result.failure and not result.facts.get("lacks")


def row(
    program: Program,
    result: Result | None,
    findings: Sequence[Finding],
    build_id: str,
    agreed: Recorded | None,
) -> dict[str, Metric]:
    """The program's row on the page."""
    shown = lane_row(program, findings, "test_lowering")
    if result is not None and program.backend == "lpai" and not result.failure:
        shown["figures"] = dict(result.facts["figures"])
    if result is None or not compiled(result):
        return shown
    facts = result.facts
    return shown | {
        "cached": result.cached,
        "not_cached_because": result.not_remembered,
        "program": str(program_file(result)),
        "seconds": facts["seconds"],
        "peak_bytes": facts["peak"],
        "delegates": facts["delegates"],
        "cpu_operators": len(facts["left"]),
        "partition": facts["partition"],
        "costs": dict(costs_of(result)),
        **beside(costs_of(result), build_id, agreed),
    }


def lane_row(program: Program, findings: Sequence[Finding], stage: str) -> dict[str, Metric]:
    """What the rows of both stages have."""
    return {
        **row_of(program, findings, SUITES.repeat(program, stage)),
        "backend": program.backend,
        "scheme": program.run.scheme,
    }


def update(plan: Plan, results: Mapping[str, Result]) -> None:
    """Replace the baseline's costs by those of compiled programs, remembered ones included."""
    values = {
        name: {
            **costs_of(result),
            "build_id": plan.basis.build_id,
            "peak_mb": int(result.facts["peak"]) >> 20,
        }
        for name, result in results.items()
        if compiled(result)
    }
    update_baselines(SUITES, plan, values)
