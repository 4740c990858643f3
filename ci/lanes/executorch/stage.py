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
from ci.plain import as_json
from ci.suite.baseline import Recorded, beside, load_tolerances
from ci.suite.findings import factory_notes
from ci.suite.installed import ready_environment
from ci.suite.lane import Lane, Mine, Results
from ci.suite.options import StageOptions, WorkOptions
from ci.suite.stage import baselines_of
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Finding, Metric, Place, Severity
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.components import QNN_SDK
from provisioning.manifest import soc_named


def jobs_of(programs: Sequence[ExecutorchProgram], profile: str) -> list[Job]:
    baselines = baselines_of(programs, profile)
    jobs = []
    for program in programs:
        recorded = baselines[program.suite].of(program.name) or Recorded()
        seconds = (recorded.cpu_seconds or UNKNOWN_SECONDS) + (recorded.run_seconds or 1.0)
        jobs.append(Job(program.name, seconds))
    return jobs


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


class Lowering(Lane[ExecutorchProgram, ExecutorchPlan]):
    """`test_lowering`: every program compiled, audited and compared with its baseline."""

    stage, rules = "test_lowering", "lowering"
    suites = SUITES

    def jobs(self, programs: Sequence[ExecutorchProgram], profile: str) -> Mapping[str, Job]:
        return {job.name: job for job in jobs_of(programs, profile)}

    def plan(self, programs: Sequence[ExecutorchProgram], options: StageOptions) -> ExecutorchPlan:
        plan = plan_of(programs, options.selection, options.work, self.rules)
        executorch = version("executorch")
        fitting = tuple(program for program in programs if program.lowers_with(executorch))
        if programs and not fitting:
            wanted = f"{programs[0].name} is for executorch {programs[0].run.executorch}"
            message = f"{wanted}, and so are all that were chosen for others than this {executorch}"
            raise EnvironmentLacking(message, fix="choose others, or take that executorch")
        left_out = tuple(program for program in programs if not program.lowers_with(executorch))
        return replace(plan, programs=fitting, left_out=left_out)

    def do(self, plan: ExecutorchPlan, *, new_baseline: bool) -> Results:
        return {COMPILED: compile_programs(plan)}

    def findings(self, plan: ExecutorchPlan, program: ExecutorchProgram, mine: Mine) -> Iterator[Finding]:
        result, build_id = mine.get(COMPILED), plan.basis.build_id
        if result is None:
            yield plan.refused[program.name]
            return
        if result.failure:
            yield failure_finding(program, result.failure, self.stage)
            return
        record = result.record
        if isinstance(record, Lacking | ChipProgram) and record.lpai:
            yield from findings_before_compile(program, record.lpai)
        if not isinstance(record, ChipProgram):
            return
        yield from delegation(program, record)
        yield from kept_on_cpu(program, record)
        yield from factory_notes(program, record.notes, SUITES.repeat(program, self.stage))
        shown = shown_by_inputs(record.nodes, record.least, program.run.precision, program.soc, build_id)
        for met in shown:
            yield Finding(
                "known-fault", Severity.WARNING, program.name, str(met), met.fault.fix, Place.read(met.line)
            )
        yield from artifact(program, result, build_id)
        yield from cost(program, result, build_id, plan.baseline(program), load_tolerances())

    def row(self, plan: ExecutorchPlan, program: ExecutorchProgram, mine: Mine) -> Mapping[str, Metric]:
        shown: dict[str, Metric] = {"backend": program.backend, "scheme": program.run.precision}
        result = mine.get(COMPILED)
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

    def recorded(
        self, plan: ExecutorchPlan, program: ExecutorchProgram, mine: Mine
    ) -> Mapping[str, object] | None:
        result = mine.get(COMPILED)
        if result is None or not isinstance(result.record, ChipProgram):
            return None
        megabytes = result.record.peak >> 20
        return {**costs_of(result), "build_id": plan.basis.build_id, "peak_mb": megabytes}

    def close(self, stage: StageRun, plan: ExecutorchPlan, results: Results) -> None:
        stage.metrics |= {"build_id": plan.basis.build_id, "sdk": str(plan.sdk)}
        self.note_left_out(stage, plan)

    def note_left_out(self, stage: StageRun, plan: ExecutorchPlan) -> None:
        for program in plan.left_out:
            wanted, here = program.run.executorch, version("executorch")
            message = f"not run: its suite has it for executorch {wanted}, and this is {here}"
            fix = "take that executorch to run it"
            stage.add(f"{self.rules}-not-run", Severity.NOTE, program.name, message, fix)

    def lacking(self, findings: Sequence[Finding]) -> bool:
        return only_library_missing(findings)
