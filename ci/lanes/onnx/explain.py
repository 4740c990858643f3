"""What the searches of ci/explain/ ask of the lane of ONNX models: `audit`, `divergence`, `repair` and `tune`
call these functions through the lane's record (`Searches` in ci/explain/lane.py).

Nearly each runs one cached step in a worker process. QNN's provider shows no steps of its compiler, so the
functions about those give an empty result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

from ci.explain.audit import AuditRow, AuditRows, NoProgram
from ci.explain.crash import CrashRequest, CrashResult
from ci.explain.divergence import DivergenceLimits, DivergenceResult, DivergentOperator, remains_of
from ci.explain.lane import only
from ci.explain.losses import Loss, ScoreRequest, Scores
from ci.explain.operator_script import OperatorScript, ScriptRequest
from ci.explain.replay import ReplayRequest, ReplayResult
from ci.explain.rewriting import ModelRewrite, Rewritten
from ci.explain.upstream_report import ReportRequest
from ci.lanes.onnx.model_file import REWRITTEN, GraphProblem
from ci.lanes.onnx.orders import (
    Losses,
    Mixed,
    WantedRewrites,
)
from ci.lanes.onnx.product import (
    answer_in,
    answer_of,
    command_step,
    plan_of_model,
    precision_of,
    program_of,
)
from ci.lanes.onnx.stage import chosen_programs
from ci.lanes.onnx.steps import OnnxPlan, plan_of
from ci.lanes.onnx.suite import OnnxProgram
from ci.one_model.model import OneModel
from ci.suite import precision
from ci.suite.figures import describe_figures
from ci.suite.options import Choice
from ci.suite.precision import ONNX_PRECISIONS, refuse_floats
from ci.suite.running import run_cached_step
from ci.work import File, Step, read, require_done
from provisioning import known_faults
from provisioning.base.errors import CheckFailed
from provisioning.base.parser import Parser
from provisioning.known_faults import SuspectedFault, faults_of


def chosen_program(model: OneModel, choice: Choice) -> OnnxProgram:
    return program_of(model) if model.typed else only(chosen_programs(choice, model.selection))


def replay(model: OneModel, program: OnnxProgram, request: ReplayRequest) -> ReplayResult:
    """Return no steps, because QNN's provider shows none."""
    return ReplayResult(None, 0)


def crash_of(model: OneModel, program: OnnxProgram, request: CrashRequest) -> CrashResult:
    """Return nothing: the crash itself names the operator where it can be known."""
    return CrashResult()


def report_of(model: OneModel, program: OnnxProgram, request: ReportRequest) -> OperatorScript:
    """Return no script, because no step of QNN's provider is known to be at fault."""
    return OperatorScript("", "")


def divergence_of(model: OneModel, program: OnnxProgram, limits: DivergenceLimits) -> DivergenceResult:
    step = command_step(
        plan_of([program], model.selection, model.work),
        "onnx-divergence",
        "searched",
        request=limits,
        title="the operator that differs",
        is_done=lambda reply: not read(DivergenceResult, reply).between,
    )
    result = answer_of(replace(step, remains_of=remains_of), DivergenceResult).answer
    first = result.first
    if first is None:
        return result
    candidates = faults_of("onnxruntime-qnn", version("onnxruntime-qnn"))
    faults = tuple(SuspectedFault.of(fault) for fault in candidates if first.operator in fault.operators)
    return replace(result, first=replace(first, known=faults))


def script_of(
    model: OneModel, program: OnnxProgram, operator: DivergentOperator, least: float
) -> OperatorScript:
    needs = ", ".join(f"{name} {version(name)}" for name in ("onnxruntime", "onnxruntime-qnn"))
    request = ScriptRequest.of(operator, program.name, least, needs)
    plan = plan_of([program], model.selection, model.work)
    step = command_step(plan, "onnx-script", "script", request=request, title="the script")
    return answer_of(step, OperatorScript).answer


def scores_of(model: OneModel, program: OnnxProgram, request: ScoreRequest) -> Scores:
    step = command_step(
        plan_of_model(model, program),
        "onnx-scores",
        "scored",
        request=request,
        title="scores",
        is_done=lambda reply: not read(Scores, reply).rest,
    )
    return answer_of(step, Scores).answer


def rewritten(model: OneModel, rules: tuple[str, ...] | None = None) -> Rewritten:
    reply = answer_of(rewriting(plan_of_model(model, program_of(model)), rules), ModelRewrite)
    assert reply.folder
    path = reply.folder / REWRITTEN
    return Rewritten(reply.answer.changes, path if path.is_file() else None)


def rewriting(plan: OnnxPlan, rules: tuple[str, ...] | None) -> Step[OnnxProgram]:
    """Return the step that gives the model after the rewrites that this build needs, each applied where it
    matches."""
    tables = (File(str(known_faults.MANIFEST)), File(str(known_faults.FIXES)))
    wanted = WantedRewrites(rules, tables)
    return command_step(plan, "onnx-rewrite", "rewritten", request=wanted, keeps_files=True)


def audit(model: OneModel, precisions: Sequence[str]) -> AuditRows:
    """Compile, at each precision, what the provider accepts of the model, and return a row for each."""
    quantized = precision_of(Parser.user_folder() / model.typed, None) == "qdq"
    names = precisions or (("qdq",) if quantized else ONNX_PRECISIONS)
    return {name: _audit_at_precision(model.use_precision(name)) for name in dict.fromkeys(names)}


def _audit_at_precision(model: OneModel) -> AuditRow | NoProgram:
    program = program_of(model)
    plan = replace(plan_of_model(model, program), programs=(program,))
    result = run_cached_step(command_step(plan, "onnx-mixed", "mixed"), [program])[program.name]
    if failure := result.failure:
        if problems := failure.details.get("problems"):
            error = "; ".join(str(GraphProblem(**problem)) for problem in problems)
            return NoProgram(error, "; ".join(dict.fromkeys(problem["fix"] for problem in problems)))
        if failure.exit_code != CheckFailed.exit_code:
            require_done(result)
        return NoProgram(failure.message, failure.fix)
    reply = answer_in(result, Mixed)
    facts = reply.answer
    return AuditRow(
        delegated=facts.delegated,
        cpu=facts.cpu,
        # `compile` refuses a model of which a part would run on the CPU.
        usable=not facts.cpu,
        delegates=facts.delegates,
        ddr=facts.ddr,
    )


def precision_named(name: str) -> str:
    return precision.precision_named(name).name


def losses(model: OneModel, _: Choice) -> tuple[str, Sequence[Loss]]:
    """Return in words what quantizing the whole model loses, and what each operator adds to it, the worst
    first."""
    program = program_of(model)
    refuse_floats(program.run.quantizes, program.run.kind)
    plan = plan_of_model(model, program)
    reply = answer_of(command_step(plan, "onnx-losses", "losses"), Losses)
    words = (
        f"{program.name}: {describe_figures(reply.quantized_model.near.figures)} against float {reply.used}"
    )
    return f"{words}, both by ONNX Runtime on the CPU", reply.answer.losses
