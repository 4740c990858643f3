"""`test_lowering`: compile every chosen program, audit it and compare it with its baseline."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from ci.artifacts.against_sdk import sdk_arches
from ci.closed import closed
from ci.jobs import Job
from ci.lanes.executorch.backends import findings_before_compile, only_library_missing, refusal
from ci.lanes.executorch.compile import (
    COMPILED,
    UNKNOWN_SECONDS,
    ExecutorchPlan,
    compile_programs,
    key_context_of,
)
from ci.lanes.executorch.judge import (
    artifact,
    cost,
    costs_of,
    delegation,
    failure_finding,
    kept_on_cpu,
    program_file,
)
from ci.lanes.executorch.records import ChipProgram, Lacking
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.operators.faults import shown_by_inputs
from ci.outcome import Result
from ci.plain import as_json
from ci.suite.accepted import Recorded, beside, load_tolerances
from ci.suite.findings import factory_notes
from ci.suite.installed import ready_environment
from ci.suite.options import Choice, StageOptions, WorkOptions
from ci.suite.stage import (
    MeasuredValues,
    Verdict,
    accepted,
    baselines_of,
    chosen,
    finish,
    report,
    show_list,
)
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Finding, Metric, Place, Severity
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.base.stage_run import StageRun
from provisioning.components import QNN_SDK
from provisioning.manifest import soc_named

STAGE = "test_lowering"


def run(options: StageOptions) -> int:
    """The exit code."""
    selection, accept = options.selection, options.accept
    if options.list_only:
        return show_list(chosen_programs(options.choice, selection))
    stage = StageRun.as_typed(STAGE, selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, "lowering-not-run"):
        plan = plan_of_stage(chosen_programs(options.choice, selection), options, "lowering")
        results = compile_programs(plan)
        plan = accepted(accept, SUITES, plan, _measured_of(plan, results), stage)
        verdicts = {
            program.name: Verdict(_findings_of(plan, program, results), _row_of(plan, program, results))
            for program in plan.programs
        }
        report(stage, SUITES, plan, verdicts, {COMPILED: results})
        stage.metrics |= {"build_id": plan.basis.build_id, "sdk": str(plan.sdk)}
        note_left_out(stage, plan, "lowering-not-run")
    return finish(stage, selection, lacking=only_library_missing(stage.findings))


def chosen_programs(choice: Choice, selection: Selection) -> list[ExecutorchProgram]:
    return chosen(SUITES, choice, selection, lambda every: jobs_of(every, selection.profile))


def jobs_of(programs: Sequence[ExecutorchProgram], profile: str) -> dict[str, Job]:
    """By program, for shards."""
    baselines = baselines_of(programs, profile)
    jobs = {}
    for program in programs:
        recorded = baselines[program.suite].of(program.name) or Recorded()
        seconds = (recorded.cpu_seconds or UNKNOWN_SECONDS) + (recorded.run_seconds or 1.0)
        jobs[program.name] = Job(program.name, seconds)
    return jobs


def plan_of_stage(programs: Sequence[ExecutorchProgram], options: StageOptions, name: str) -> ExecutorchPlan:
    """Of the programs that this executorch can lower."""
    plan = plan_of(programs, options.selection, options.work, name)
    executorch = version("executorch")
    fitting = tuple(program for program in programs if program.lowers_with(executorch))
    if programs and not fitting:
        wanted = f"{programs[0].name} is for executorch {programs[0].run.executorch}"
        message = f"{wanted}, and so are all that were chosen for others than this {executorch}"
        raise EnvironmentLacking(message, fix="choose others, or take that executorch")
    left_out = tuple(program for program in programs if not program.lowers_with(executorch))
    return replace(plan, programs=fitting, left_out=left_out)


def plan_of(
    programs: Sequence[ExecutorchProgram], selection: Selection, work: WorkOptions, name: str
) -> ExecutorchPlan:
    """`name` is that of the folder of logs."""
    socs = tuple(dict.fromkeys(program.soc for program in programs))
    environment = ready_environment(replace(selection, soc=socs[0] if socs else selection.soc), os.environ)
    environment.explain()
    sdk = environment.root(QNN_SDK).path
    basis = key_context_of(sdk, selection.store)
    return ExecutorchPlan(
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


def refusals(
    programs: Sequence[ExecutorchProgram], sdk: Path, build_id: str
) -> Iterator[tuple[str, Finding]]:
    """Refuse chips that are newer than every Hexagon library of the SDK."""
    newest = max(sdk_arches(sdk), default=math.inf)
    for program in programs:
        name, arch = program.name, soc_named(program.soc).arch
        if finding := refusal(program, build_id):
            yield name, finding
        elif arch > newest:
            message = f"{program.soc} has HTP v{arch}, and QNN {build_id} ends at v{newest}"
            fix = "use a profile with a newer QNN (--profile), or another chip (--soc)"
            yield name, Finding("lowering-soc", Severity.ERROR, name, message, fix)


def _findings_of(
    plan: ExecutorchPlan, program: ExecutorchProgram, results: Mapping[str, Result]
) -> Iterator[Finding]:
    result, build_id = results.get(program.name), plan.basis.build_id
    if result is None:
        yield plan.refused[program.name]
        return
    if result.failure:
        yield failure_finding(program, result.failure, STAGE)
        return
    record = result.record
    if isinstance(record, Lacking | ChipProgram) and record.lpai:
        yield from findings_before_compile(program, record.lpai)
    if not isinstance(record, ChipProgram):
        return
    yield from delegation(program, record)
    yield from kept_on_cpu(program, record)
    yield from factory_notes(program, record.notes, SUITES.repeat(program, STAGE))
    shown = shown_by_inputs(record.nodes, record.least, program.run.precision, program.soc, build_id)
    for met in shown:
        yield Finding(
            "known-fault", Severity.WARNING, program.name, str(met), met.fault.fix, Place.read(met.line)
        )
    yield from artifact(program, result, build_id)
    yield from cost(program, result, build_id, plan.baseline(program), load_tolerances())


def _row_of(
    plan: ExecutorchPlan, program: ExecutorchProgram, results: Mapping[str, Result]
) -> Mapping[str, Metric]:
    shown: dict[str, Metric] = {"backend": program.backend, "scheme": program.run.precision}
    result = results.get(program.name)
    record = result.record if result is not None else None
    if isinstance(record, Lacking | ChipProgram) and record.lpai:
        shown["figures"] = dict(record.lpai.in_torch.figures)
    if result is None or not isinstance(record, ChipProgram):
        return shown
    return shown | {
        "cached": result.cached,
        "not_cached_because": result.not_remembered,
        "program": str(program_file(result)),
        "seconds": record.seconds,
        "export_seconds": result.export_seconds,
        "peak_bytes": record.peak,
        "delegates": record.delegates,
        "cpu_operators": len(record.left),
        "partition": [as_json(part) for part in record.partition],
        "costs": dict(costs_of(result)),
        **beside(costs_of(result), plan.basis.build_id, plan.baseline(program).of(program.name)),
    }


def _measured_of(plan: ExecutorchPlan, results: Mapping[str, Result]) -> MeasuredValues:
    build_id = plan.basis.build_id
    recorded = {
        name: {**costs_of(result), "build_id": build_id, "peak_mb": result.record.peak >> 20}
        for name, result in results.items()
        if isinstance(result.record, ChipProgram)
    }
    return MeasuredValues(recorded=recorded)


def note_left_out(stage: StageRun, plan: ExecutorchPlan, rule: str) -> None:
    for program in plan.left_out:
        wanted, here = program.run.executorch, version("executorch")
        message = f"not run: its suite has it for executorch {wanted}, and this is {here}"
        stage.add(rule, Severity.NOTE, program.name, message, "take that executorch to run it")
