"""The steps of this lane: each is a piece of work of a worker process, with what it is asked and how its
result is kept.

`plan_of` makes the plan that all steps of a run share, `onnx_step` a step of it, and `compile_programs` does
the work of a suite's programs. What a stage thinks of the results is in `stage`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.lanes.onnx.findings import (
    changes_of,
    findings_of,
    recorded_failure,
)
from ci.lanes.onnx.options import files_of
from ci.lanes.onnx.orders import (
    CompileOptions,
    ExportedModel,
    Preparing,
    ProgramFacts,
    facts_in,
)
from ci.lanes.onnx.suite import OnnxProgram, ProgramRequest, calibrating
from ci.lanes.onnx.task_files import OUTPUTS
from ci.models.own_packages import OwnPackages
from ci.one_model.model import OneModel
from ci.suite.accepted import load_tolerances
from ci.suite.figures import add_samples, describe_figures
from ci.suite.findings import verdict
from ci.suite.options import DeviceFlags
from ci.suite.ready_environment import require_packages
from ci.suite.running import run_cached_step, scores_of
from ci.suite.stage import Plan, export_log, packages_of
from ci.suite.task_metric import MetricFigures
from ci.work import (
    ChildTask,
    Failure,
    File,
    Home,
    Job,
    Line,
    Result,
    Step,
    WorkOptions,
    closed_environment,
    failed_line,
    line_of,
    read,
    sent_request,
)
from provisioning.base.commands import Fix, session
from provisioning.base.files import empty_folder
from provisioning.base.parser import Parser
from provisioning.base.settings import Selection
from provisioning.manifest import soc_named

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


WORKER = "ci.lanes.onnx.worker"
NEEDED = ("onnx", "onnxruntime", "onnxruntime_qnn")
WORKER_MEMORY = 1400 << 20
SECONDS_PREPARE, SECONDS_PROGRAM = 8.0, 3.0
"""A model and a program that were never measured are assumed to take this long, for the order of work and the
estimate."""


def environment(own: OwnPackages | None = None) -> dict[str, str]:
    """Return the environment of the workers, including what a model reads there."""
    variables = closed_environment(os.environ)
    # The provider brings its own QNN libraries, and no other SDK's may be found first.
    variables.pop("LD_LIBRARY_PATH", None)
    return {**variables, **(own.variables if own else {})}


def home_of(logs: Path, *, exports: bool = False, own: OwnPackages | None = None) -> Home:
    """Return what the processes start from. With `exports`, they import what exporting and quantizing need
    once, before the first fork."""
    return Home(
        environment(own),
        logs,
        f"{WORKER}:{'prepare_exporting' if exports else 'prepare'}",
        "onnxruntime and onnxruntime-qnn",
        session("test_onnx"),
        own.python if own else sys.executable,
    )


def require_installed() -> None:
    require_packages(NEEDED, Fix("{} makes .nox/onnx, whose bin/python has it", ("test_onnx",)))


@dataclass(frozen=True, slots=True)
class OnnxPlan(Plan):
    programs: tuple[OnnxProgram, ...]
    new_baseline: bool = False
    """Whether a cached result that is worse than the baseline counts, because it becomes the baseline."""
    device: DeviceFlags | None = None
    """Where the outputs of a device are; None if the stage asks no device."""
    model: OneModel | None = None
    """The programs are of this model of a command line; None for those of a suite."""


def plan_of(programs: Sequence[OnnxProgram], selection: Selection, work: WorkOptions) -> OnnxPlan:
    logs = selection.reports.absolute() / "onnx"
    return OnnxPlan(tuple(programs), selection, work, logs, packages_of(programs, selection.store))


def onnx_step(
    plan: OnnxPlan,
    kind: str,
    task: str,
    *,
    options: Callable[[OnnxProgram], DataclassInstance],
    preparing: Callable[[OnnxProgram], Preparing],
    **more: Any,
) -> Step[OnnxProgram]:
    """Return a step in which the worker calls its function `task` with each program and these options.
    Programs of one model share its export; those of one run share its quantized model."""

    def export(program: OnnxProgram) -> ChildTask:
        request, log = sent_request(request_of(program, preparing(program))), export_log(plan, program)
        return ChildTask(model_of(program), f"{WORKER}:export", request, plan.work.timeout, log)

    # Torch and its exporter, which take seconds to import, are for factories alone.
    exports = any(program.case.factory for program in plan.programs)
    return Step(
        plan=plan,
        kind=kind,
        title=more.pop("title", "programs"),
        function=f"{WORKER}:{task}",
        home=lambda own: home_of(plan.logs, exports=exports, own=own),
        request=lambda program: request_of(program, options(program)),
        export=export,
        export_key=lambda program, reply: read(ExportedModel, reply).rows,
        cost=partial(_cost, plan),
        **more,
    )


def _cost(plan: OnnxPlan, program: OnnxProgram) -> Job:
    size = sum(model_of(sibling) == model_of(program) for sibling in plan.programs)
    seconds = SECONDS_PREPARE / size + _seconds(program)
    return Job(program.name, seconds, WORKER_MEMORY)


def request_of(program: OnnxProgram, task_options: DataclassInstance) -> ProgramRequest:
    """Return the program's request for a task of the worker."""
    order, user_folder = program.order, Parser.user_folder()
    return ProgramRequest(
        **{field.name: getattr(order, field.name) for field in fields(order)},
        task_options=task_options,
        chip=soc_named(program.soc).model_dump(mode="json"),
        calibrating=calibrating(program.case, program.run),
        option_files=tuple(File(str(user_folder / path)) for path in files_of(program.run.options)),
        user_folder=str(user_folder),
    )


def compiling(plan: OnnxPlan) -> Step[OnnxProgram]:
    passes = partial(passes_suite, new_baseline=plan.new_baseline)
    return onnx_step(
        plan,
        "onnx",
        "compiled",
        options=lambda program: CompileOptions(),
        preparing=suite_samples,
        reply=ProgramFacts,
        keeps=passes,
        line=partial(_line, passes),
    )


def _line(passes: Callable[[OnnxProgram, Result], bool], program: OnnxProgram, result: Result) -> Line:
    # A case of the operator table that fails as it is recorded is no news.
    if recorded_failure(program, result):
        return Line("done")
    if result.failure:
        return line_of(result)
    context = facts_in(result).context
    words = add_samples(describe_figures(context.near.figures), context.each_db)
    return Line("done", words) if passes(program, result) else failed_line(words)


def suite_samples(program: OnnxProgram) -> Preparing:
    """Keep as many samples as the largest run needs; each run takes as many as it says, from the first on."""
    return Preparing(max(calibrating(program.case, run) for run in program.case.runs))


def passes_suite(program: OnnxProgram, result: Result, *, new_baseline: bool) -> bool:
    findings = list(findings_of(program, result))
    if not new_baseline:
        margin_db = load_tolerances().sqnr_margin_db
        findings += changes_of(program, result, margin_db)
    return verdict(findings) == "pass"


def compiling_for_metric(plan: OnnxPlan) -> Step[OnnxProgram]:
    """Return a step that compiles and keeps the outputs, because a metric is computed of them each time."""
    return _compiling_to_keep(plan, "onnx-outputs", CompileOptions(keeps_outputs=True))


def compiling_for_device(plan: OnnxPlan) -> Step[OnnxProgram]:
    """Return a step that compiles and keeps the program with all that a device is judged with."""
    return _compiling_to_keep(plan, "onnx-samples", CompileOptions(keeps_samples=True))


def _compiling_to_keep(plan: OnnxPlan, kind: str, options: CompileOptions) -> Step[OnnxProgram]:
    """Return a step that compiles and keeps the files that it writes."""
    return onnx_step(
        plan,
        kind,
        "compiled",
        options=lambda program: options,
        preparing=suite_samples,
        reply=ProgramFacts,
        line=partial(_line, lambda program, result: True),
        keeps_files=True,
    )


def add_metrics(
    plan: OnnxPlan, programs: Sequence[OnnxProgram], results: Mapping[str, Result]
) -> dict[str, Result]:
    """Return the results with the figures of each one's metric."""
    outputs = {
        name: result.folder
        for name, result in results.items()
        if result.folder and (result.folder / OUTPUTS).is_file()
    }
    scores = scores_of(
        plan,
        [row for row in programs if row.name in outputs],
        outputs,
        lambda own: home_of(plan.logs, own=own),
        f"{WORKER}:metric_of",
        lambda program: {},
    )
    return {**results, **{name: _add_figures(results[name], score) for name, score in scores.items()}}


def _add_figures(result: Result, score: MetricFigures | Failure) -> Result:
    if isinstance(score, Failure):
        return replace(result, failure=score)
    facts = facts_in(result)
    near = facts.context.near
    near = replace(near, figures={**near.figures, **score.figures})
    return replace(result, record=replace(facts, context=replace(facts.context, near=near)))


def compile_programs(plan: OnnxPlan) -> dict[str, Result]:
    with_metric = [program for program in plan.programs if program.case.metric]
    without = [program for program in plan.programs if not program.case.metric]
    # A user's metric is computed of the emulator's outputs alone.
    if plan.device:
        return run_cached_step(compiling_for_device(plan), plan.programs)
    results = run_cached_step(compiling(plan), without)
    compiled = run_cached_step(compiling_for_metric(plan), with_metric)
    results |= add_metrics(plan, with_metric, compiled)
    for program in with_metric:
        result, evidence = results[program.name], plan.logs / program.name
        if result.folder and (plan.work.keep or verdict([*findings_of(program, result)]) != "pass"):
            shutil.copytree(result.folder, empty_folder(evidence), dirs_exist_ok=True)
    return results


def jobs_of(programs: Sequence[OnnxProgram]) -> dict[str, Job]:
    """Return each program's job, which is its model's, to divide work into shards: a model is exported
    once."""
    seconds: dict[str, float] = {}
    for program in programs:
        total = seconds.get(program.case_name, SECONDS_PREPARE)
        seconds[program.case_name] = total + _seconds(program)
    jobs = {name: Job(name, second, WORKER_MEMORY) for name, second in seconds.items()}
    return {program.name: jobs[program.case_name] for program in programs}


def model_of(program: OnnxProgram) -> str:
    """Name the program's model; cases of equal names in two suites are two models."""
    return f"{program.suite}:{program.case_name}"


def _seconds(program: OnnxProgram) -> float:
    return (program.recorded.cpu_seconds if program.recorded else None) or SECONDS_PROGRAM
