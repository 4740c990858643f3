"""What the searches of ci/explain/ ask of the lane of PyTorch models: `audit`, `divergence`, `repair` and
`tune` call these functions through the lane's record (`Searches` in ci/explain/lane.py).

Each runs a cached step of its own in the worker that lowers models."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib.metadata import version
from typing import Any, TypeVar

from ci.explain.audit import (
    AuditRow,
    AuditRows,
    NoProgram,
)
from ci.explain.crash import CrashRequest, CrashResult
from ci.explain.divergence import DivergenceLimits, DivergenceResult, DivergentOperator, remains_of
from ci.explain.lane import only
from ci.explain.losses import Loss, ScoreRequest, Scores
from ci.explain.operator_script import OperatorScript, ScriptRequest
from ci.explain.replay import ReplayRequest, ReplayResult
from ci.explain.rewriting import ModelRewrite, Rewritten, needs_of
from ci.explain.upstream_report import ReportRequest
from ci.lanes.executorch import REWRITTEN, SAMPLES
from ci.lanes.executorch.orders import ChipProgram, DivergenceOptions, Quantized, compiled_in
from ci.lanes.executorch.product import stack_of
from ci.lanes.executorch.stage import chosen_programs
from ci.lanes.executorch.steps import (
    ExecutorchPlan,
    compile_programs,
    quantizing,
    rewriting,
    run_step,
    worker_step,
)
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.lanes.executorch.typed_program import plan_of_model, program_of, programs_of, require_done
from ci.one_model.model import OneModel
from ci.operators import Traits
from ci.operators.faults import faults_in, versions_of
from ci.suite.figures import describe_figures
from ci.suite.options import Choice
from ci.suite.precision import refuse_floats, scheme_named
from ci.suite.runner import Runner, ready_runner
from ci.work import File, Step
from provisioning import known_faults
from provisioning.base.errors import CheckFailed
from provisioning.base.settings import Selection
from provisioning.build_ids import version_in
from provisioning.known_faults import SuspectedFault

SCHEMES = ("fp16", "8a8w", "16a8w", "16a4w")
"""An audit compiles the model at each of these precisions."""
T = TypeVar("T")
QUANTIZERS = "quantized_decomposed."


def chosen_program(model: OneModel, choice: Choice) -> ExecutorchProgram:
    return program_of(model) if model.typed else only(programs_on_htp(choice, model.selection))


def programs_on_htp(choice: Choice, selection: Selection) -> list[ExecutorchProgram]:
    return [program for program in chosen_programs(choice, selection) if program.backend == "htp"]


def replay(model: OneModel, program: ExecutorchProgram, request: ReplayRequest) -> ReplayResult:
    return _search_compiler(
        model, program, "replay", "replayed", request, title="the compiler's steps", reply=ReplayResult
    )


def crash_of(model: OneModel, program: ExecutorchProgram, request: CrashRequest) -> CrashResult:
    return _search_compiler(
        model, program, "crash", "crash_found", request, title="where the compiler dies", reply=CrashResult
    )


SearchResult = TypeVar("SearchResult", ReplayResult, CrashResult)


def _search_compiler(
    model: OneModel,
    program: ExecutorchProgram,
    kind: str,
    task: str,
    request: ReplayRequest | CrashRequest,
    *,
    title: str,
    reply: type[SearchResult],
) -> SearchResult:
    """Search in what the compiler does with the program. A search that the time limit ended is not kept: the
    next time it is done anew."""
    plan = plan_of_model(model, kind, [program])
    step = worker_step(
        plan,
        kind,
        task,
        request,
        title=title,
        reply=reply,
        keeps=lambda program, result: not result.read(reply).late,
    )
    return answer_of(step, reply)


def divergence_of(model: OneModel, program: ExecutorchProgram, limits: DivergenceLimits) -> DivergenceResult:
    """Return what the search found, with what is known of the operator."""
    plan = plan_of_model(model, "divergence", [program])
    step = searching(plan, ready_runner(os.environ, model.selection.reports, plan.executorch), limits)
    result = answer_of(step, DivergenceResult)
    first, scheme, soc = result.first, program.run.precision, program.soc
    if first is None:
        return result
    met = faults_in(first.traits, scheme, soc, versions_of(plan.build_id), seen_db=first.sqnr_db)
    return replace(result, first=replace(first, known=tuple(SuspectedFault.of(row.fault) for row in met)))


def searching(plan: ExecutorchPlan, runner: Runner, limits: DivergenceLimits) -> Step[ExecutorchProgram]:
    """Return a step that searches for the operator that differs."""
    options = DivergenceOptions(
        **{field.name: getattr(limits, field.name) for field in fields(limits)},
        runner=runner.order,
        versions=versions_of(plan.build_id),
        faults=File(str(known_faults.MANIFEST)),
    )
    return worker_step(
        plan,
        "divergence",
        "diverged",
        options,
        title="the operator that differs",
        reply=DivergenceResult,
        remains_of=remains_of,
        # A search that ended before it was done goes on the next time.
        keeps=lambda program, result: not result.read(DivergenceResult).between,
    )


def script_of(
    model: OneModel, program: ExecutorchProgram, operator: DivergentOperator, least: float
) -> OperatorScript:
    plan = plan_of_model(model, "divergence", [program])
    needs = needs_of_script(plan.build_id)
    request = ScriptRequest.of(operator, program.name, least, needs)
    step = worker_step(plan, "script", "script", request, title="the script", reply=OperatorScript)
    return answer_of(step, OperatorScript)


def needs_of_script(build_id: str) -> str:
    """Say what a script needs, with the versions that are here."""
    packages = ", ".join(f"{name} {number}" for name, number in stack_of(build_id).items())
    return f"{packages}; QNN_SDK_ROOT and LD_LIBRARY_PATH, as `qnn-ci env` prints them"


def report_of(model: OneModel, program: ExecutorchProgram, request: ReportRequest) -> OperatorScript:
    plan = plan_of_model(model, "report", [program])
    request = replace(request, needs=needs_of_script(plan.build_id))
    step = worker_step(
        plan, "report", "fault_reported", request, title="the report for upstream", reply=OperatorScript
    )
    return answer_of(step, OperatorScript)


def scores_of(model: OneModel, program: ExecutorchProgram, request: ScoreRequest) -> Scores:
    plan = plan_of_model(model, "tune", [program])
    step = worker_step(
        plan,
        "scores",
        "scored",
        request,
        title="scores",
        reply=Scores,
        # Scores that are not whole are not kept.
        keeps=lambda program, result: not result.read(Scores).rest,
    )
    return answer_of(step, Scores)


def answer_of(step: Step[ExecutorchProgram], reply: type[T]) -> T:
    """Run the step and return the reply for the plan's first program. Raises an error that says why there is
    no answer."""
    plan: Any = step.plan
    return require_done(plan.programs[0], plan, run_step(step)).read(reply)


def rewritten(model: OneModel, rules: tuple[str, ...] | None = None) -> Rewritten:
    program = programs_of(model)[0]
    plan = plan_of_model(model, "repair", [program])
    versions = {"executorch": version("executorch"), "qnn": version_in(plan.build_id)}
    needs = needs_of(program.run.precision, "executorch", versions, rules)
    result = require_done(program, plan, run_step(rewriting(plan, needs)))
    assert result.folder is not None
    path, rewrite = result.folder / REWRITTEN, result.read(ModelRewrite)
    if not path.is_file():
        return Rewritten(rewrite.changes, None)
    return Rewritten(rewrite.changes, path, result.folder / SAMPLES, rewrite.compared)


def audit(model: OneModel, precisions: Sequence[str]) -> AuditRows:
    """Compile every partition at each precision."""
    usual = ("qdq",) if model.file.quantized else SCHEMES
    variants = (program_of(model.use_precision(name)) for name in precisions or usual)
    programs = {program.run.precision: program for program in variants}
    plan = plan_of_model(model, "audit", list(programs.values()))
    results = compile_programs(plan, crashes_on_cpu=True)
    rows: dict[str, AuditRow | NoProgram] = {}
    for scheme, program in programs.items():
        try:
            compiled = compiled_in(require_done(program, plan, results))
        except CheckFailed as error:
            rows[scheme] = NoProgram(error.message, error.fix)
            continue
        rows[scheme] = audit_row(compiled)
    return rows


def audit_row(compiled: ChipProgram) -> AuditRow:
    return AuditRow(
        delegated=dict(Counter(operators_of(compiled.nodes))),
        cpu=compiled.left,
        # Whatever is left has a kernel of the CPU.
        usable=all(row.kernel for row in compiled.left),
        delegates=compiled.delegates,
        ddr=compiled.ddr,
        kept_on_cpu=compiled.kept_on_cpu,
    )


def operators_of(nodes: Mapping[str, Traits]) -> list[str]:
    """Return the operators that run on HTP, once for each node."""
    names = (node.operator for node in nodes.values())
    return [name for name in names if not name.startswith(QUANTIZERS) and name != "getitem"]


def precision_named(name: str) -> str:
    return scheme_named(name)


def losses(model: OneModel, choice: Choice) -> tuple[str, Sequence[Loss]]:
    """Return in words what quantizing the whole model loses, and what each operator adds to it, the worst
    first."""
    program = chosen_program(model, choice)
    refuse_floats(program.run.quantizes, program.run.precision)
    plan = plan_of_model(model, "quantize", [program])
    facts = answer_of(quantizing(plan), Quantized)
    words = f"{program.name}: {describe_figures(facts.in_torch.figures)} against float, both in PyTorch"
    return words, facts.losses
