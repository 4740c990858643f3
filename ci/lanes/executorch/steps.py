"""The steps of this lane: each compiles, quantizes, rewrites or runs programs in a worker process, and its
results are cached by everything that decides them.

`plan_of` makes the plan that all steps of a run share, `worker_step` a step of it. What a stage thinks of the
results is in `stage`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.artifacts.against_sdk import sdk_arches
from ci.explain.rewriting import ModelRewrite, Need
from ci.lanes.executorch import CHOSEN, PROGRAM
from ci.lanes.executorch.orders import (
    ChipProgram,
    ChipsOptions,
    ComparedFiles,
    EmulatorRun,
    ExportedRuns,
    ExportRequest,
    LoweringOptions,
    ModelRequest,
    NeededRewrites,
    Quantized,
    RunRequest,
    compiled_in,
    ran,
    ran_in,
)
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.models.own_packages import OwnPackages
from ci.suite.device_stage import check_device
from ci.suite.figures import add_samples, describe_figures
from ci.suite.options import NO_DEVICE, DeviceFlags, StageOptions
from ci.suite.programs import ProgramOrder
from ci.suite.ready_environment import host_libraries, ready_environment
from ci.suite.runner import Runner, ready_runner
from ci.suite.running import run_cached_step
from ci.suite.stage import Plan, export_log, packages_of
from ci.work import (
    NOTHING,
    ChildTask,
    File,
    Folder,
    Home,
    Job,
    Key,
    Line,
    NotCached,
    NotExported,
    Refused,
    Result,
    Step,
    WorkOptions,
    closed_environment,
    failed_line,
    line_of,
    read,
    sent_request,
)
from provisioning.base.commands import session
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import Selection
from provisioning.components import QNN_SDK
from provisioning.executorch import PROFILES_WHEEL, Executorch
from provisioning.executorch_chips import chip_instead, installed_chips
from provisioning.manifest import load_socs, soc_named
from provisioning.stage_variables import HOST_LIBRARIES

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LOWERING, EMULATION, ON_DEVICE = "test_lowering", "test_emulator", "test_device"
"""These are the names of the stages."""

COMPILED, RAN = "lowering", "emulator"
"""The files of the first step are programs, and the figures of the second are a program's."""

WORKER = "ci.lanes.executorch.worker"

EXPORT = f"{WORKER}:export"

UNKNOWN_SECONDS, UNKNOWN_MEMORY = 8.0, 1200

BUILD_ID = "build_id"

LPAI_LIBRARY = "libQnnLpai.so"
"""This library compiles for the LPAI on this machine."""

LIBRARY_MISSING = "lpai-library"


@dataclass(frozen=True, slots=True)
class ExecutorchPlan(Plan):
    programs: tuple[ExecutorchProgram, ...]
    environment: Mapping[str, str]
    """The workers run with these environment variables."""
    sdk: Path
    qnn: Mapping[str, str]
    """Every program depends on this of QNN: its build, and the digests of its libraries for this machine."""
    refused: dict[str, Finding]
    """This SDK cannot compile these programs at all, or the stage cannot run them."""
    executorch: Executorch = PROFILES_WHEEL
    runner: Runner | None = None
    """Runs programs; if it is None, nothing runs."""
    keeps_outputs: bool = False
    """Whether the outputs of right programs are kept beside the logs, too."""
    device: DeviceFlags = NO_DEVICE
    run_logs: Path | None = None
    """The logs of runs are in this folder, if they are not beside those of compiles."""

    @property
    def build_id(self) -> str:
        return self.qnn[BUILD_ID]


def plan_of(
    programs: Sequence[ExecutorchProgram], selection: Selection, work: WorkOptions, name: str
) -> ExecutorchPlan:
    """Return a plan; its logs are in the folder `name`."""
    socs = tuple(dict.fromkeys(program.soc for program in programs))
    environment = ready_environment(replace(selection, soc=socs[0] if socs else selection.soc), os.environ)
    environment.explain()
    sdk = environment.root(QNN_SDK).path
    qnn = host_libraries(sdk, selection.store)
    return ExecutorchPlan(
        selection=selection,
        programs=tuple(programs),
        environment=closed_environment(environment.merged(os.environ)),
        executorch=environment.executorch,
        sdk=sdk,
        qnn=qnn,
        work=work,
        logs=Path(selection.reports).absolute() / name,
        packages=packages_of(programs, selection.store),
        refused=dict(refusals(programs, sdk, qnn[BUILD_ID], installed_chips())),
    )


def plan_of_suite(
    programs: Sequence[ExecutorchProgram], options: StageOptions, stages: tuple[str, ...]
) -> ExecutorchPlan:
    """Return the plan for a pass that these stages of the lane judge."""
    if ON_DEVICE in stages:
        check_device(options.device)
    names = [stage.removeprefix("test_") for stage in stages]
    plan = plan_of(programs, options.selection, options.work, names[0])
    if not {EMULATION, ON_DEVICE} & {*stages}:
        return plan
    runner = ready_runner(os.environ, options.selection.reports, plan.executorch)
    return replace(
        plan,
        runner=runner,
        run_logs=plan.logs.with_name(names[-1]),
        keeps_outputs=ON_DEVICE in stages,
        device=options.device,
    )


def refusals(
    programs: Sequence[ExecutorchProgram], sdk: Path, build_id: str, known: Set[str]
) -> Iterator[tuple[str, Finding]]:
    """Refuse chips that are newer than every Hexagon library of the SDK, chips for which it has no LPAI
    compiler, and those that this executorch does not know; `known` is empty if that cannot be told."""
    newest = max(sdk_arches(sdk), default=math.inf)
    for program in programs:
        name, soc = program.name, soc_named(program.soc)
        if program.backend == "lpai" and soc.lpai is None:
            having = [name for name, soc in load_socs().items() if soc.lpai is not None]
            message = f"{program.soc} has no LPAI; {', '.join(having)} have one"
            fix = " or ".join(f"--soc {name}" for name in having)
            yield name, Finding("lpai-soc", Severity.ERROR, name, message, fix)
        elif soc.arch > newest:
            message = f"{program.soc} has HTP v{soc.arch}, and QNN {build_id} ends at v{newest}"
            fix = "use a profile with a newer QNN (--profile), or another chip (--soc)"
            yield name, Finding("lowering-soc", Severity.ERROR, name, message, fix)
        elif known and program.soc not in known:
            message = f"executorch {version('executorch')} does not know {program.soc}"
            yield (
                name,
                Finding("lowering-soc", Severity.ERROR, name, message, chip_instead(program.soc, known)),
            )


def other_profile(program: ExecutorchProgram) -> str:
    from provisioning.validation.libraries import profiles_with_lpai

    having = profiles_with_lpai(soc_named(program.soc).lpai)
    profiles = " or ".join(f"--profile {name}" for name in having)
    return f"{profiles}; or QNN_SDK_ROOT to an official SDK"


def worker_step(
    plan: ExecutorchPlan, kind: str, work: str, options: DataclassInstance = NOTHING, **more: Any
) -> Step[ExecutorchProgram]:
    """Return a step in which the worker exports each program's model, and then calls its function `work` with
    it."""

    def request(program: ExecutorchProgram) -> ModelRequest:
        return ModelRequest(**_fields_of(program.order), options=options, qnn=plan.qnn)

    return Step(
        plan=plan,
        kind=kind,
        title=more.pop("title", f"programs for QNN {plan.build_id}"),
        function=f"{WORKER}:{work}",
        home=partial(_home, plan),
        request=request,
        export=partial(_export, plan),
        export_key=_export_key,
        cost=_cost,
        **more,
    )


def _fields_of(order: ProgramOrder) -> dict[str, Any]:
    return {field.name: getattr(order, field.name) for field in fields(order)}


def lowering(plan: ExecutorchPlan, *, crashes_on_cpu: bool = False) -> Step[ExecutorchProgram]:
    """Return the step that compiles. With `crashes_on_cpu`, operators that crash the compiler stay on the
    CPU."""
    options = LoweringOptions(crashes_on_cpu=crashes_on_cpu)
    return worker_step(
        plan,
        COMPILED,
        "compiled",
        options,
        reply=ChipProgram,
        keeps=has_all_costs,
        keeps_files=True,
        common=partial(_lowering_for_chips, plan),
    )


def _lowering_for_chips(plan: ExecutorchPlan, program: ExecutorchProgram) -> ChildTask | None:
    """Return the task that lowers a run's model as far as it is the same for each chip; None if there is one
    chip, or what chips have in common is not known: functions of the user annotate, or the LPAI computes."""
    alike = [
        row
        for row in plan.programs
        if _model_of(row) == _model_of(program) and row.run.name == program.run.name
    ]
    if len(alike) < 2 or program.backend != "htp" or program.run.annotations:
        return None
    options = ChipsOptions(chips=tuple(row.soc for row in alike))
    request = ModelRequest(**_fields_of(alike[0].order), options=options, qnn=plan.qnn)
    name = f"{program.suite}:{program.case_name}/{program.run.name}"
    log = (plan.logs / program.case_name / f"{program.run.name}.common.log").absolute()
    return ChildTask(name, f"{WORKER}:compiled_for_chips", sent_request(request), plan.work.timeout, log)


def has_all_costs(program: ExecutorchProgram, result: Result) -> bool:
    """Whether the compiler for the HTP wrote its summary of each graph."""
    record = compiled_in(result)
    return program.backend != "htp" or record.graphs >= record.delegates


def quantizing(plan: ExecutorchPlan) -> Step[ExecutorchProgram]:
    """Return the step that gives the quantized model."""
    return worker_step(plan, "quantized", "quantized", reply=Quantized, keeps_files=True)


def rewriting(plan: ExecutorchPlan, needs: Sequence[Need]) -> Step[ExecutorchProgram]:
    """Return the step that gives the float model after these rewrites, each applied where it matches."""
    options = NeededRewrites(needs=tuple(needs))
    return worker_step(plan, "rewritten", "rewritten", options, reply=ModelRewrite, keeps_files=True)


def _home(plan: ExecutorchPlan, own: OwnPackages) -> Home:
    return home_of({**plan.environment, **own.variables}, plan.logs, own.python)


def _export(plan: ExecutorchPlan, program: ExecutorchProgram) -> ChildTask:
    """Return the task that exports the program's case once for all of its runs in the plan."""
    alike = [row for row in plan.programs if _model_of(row) == _model_of(program)]
    runs = {row.run.name: row.order.whole_run for row in alike}
    chips = {name: _chips_of(name, alike) for name in runs}
    order = ExportRequest(**_fields_of(program.order), runs=runs, chips=chips)
    name, log = f"{program.suite}:{program.case_name}", export_log(plan, program)
    return ChildTask(name, EXPORT, sent_request(order), plan.work.timeout, log)


def _chips_of(run: str, programs: Sequence[ExecutorchProgram]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(program.soc for program in programs if program.run.name == run))


def _export_key(program: ExecutorchProgram, reply: Mapping[str, object]) -> Key:
    exported = read(ExportedRuns, reply).runs[program.run.name]
    if exported.error:
        raise Refused(exported.error)
    if exported.not_cached:
        raise (NotCached if exported.exported else NotExported)(exported.not_cached)
    if annotated := exported.annotated.get(program.soc):
        if annotated.not_cached:
            raise NotCached(annotated.not_cached)
        return {**exported.rows, "annotated": dict(annotated.rows)}
    return exported.rows


def _cost(program: ExecutorchProgram) -> Job:
    recorded = program.recorded
    seconds = recorded.cpu_seconds if recorded and recorded.cpu_seconds else UNKNOWN_SECONDS
    megabytes = recorded.peak_mb if recorded and recorded.peak_mb else UNKNOWN_MEMORY
    return Job(program.name, seconds, megabytes << 20)


def compile_programs(plan: ExecutorchPlan, *, crashes_on_cpu: bool = False) -> dict[str, Result]:
    """Compile the programs. Those for the LPAI are refused if its compiler is missing; they can still be
    quantized."""
    library = Path("lib", HOST_LIBRARIES, LPAI_LIBRARY)
    for program in plan.programs:
        compiles = program.backend != "lpai" or (plan.sdk / library).is_file()
        if not compiles and program.name not in plan.refused:
            message = f"{library} is in no wheel, and compiles for the LPAI; official SDKs have it"
            fix = other_profile(program)
            plan.refused[program.name] = Finding(LIBRARY_MISSING, Severity.ERROR, program.name, message, fix)
    return run_step(lowering(plan, crashes_on_cpu=crashes_on_cpu))


def run_step(step: Step[ExecutorchProgram]) -> dict[str, Result]:
    """Run the step for every program that is not refused, and return the results by name; each has a folder
    with its files."""
    plan = step.plan
    assert isinstance(plan, ExecutorchPlan)
    return run_cached_step(step, [program for program in plan.programs if program.name not in plan.refused])


def _model_of(program: ExecutorchProgram) -> tuple[Path, str, object]:
    return program.suite, program.case_name, program.needs


def home_of(environment: Mapping[str, str], logs: Path, python: str = sys.executable) -> Home:
    fix = f"run it as `{session('test_lowering')}`, which installs what it needs"
    return Home(environment, logs, f"{WORKER}:prepare", "executorch and torch", fix, python)


RUN_WORKER = "ci.lanes.executorch.run_worker"

RUN_SECONDS, RUN_MEMORY = 2.0, 300 << 20


def compared_files(program: ExecutorchProgram, compiled: Mapping[str, Result]) -> ComparedFiles:
    record = compiled_in(compiled[program.name])
    return ComparedFiles(record.inputs, record.expected, record.reference, program.case.non_finite)


def running(plan: ExecutorchPlan, runner: Runner, compiled: Mapping[str, Result]) -> Step[ExecutorchProgram]:
    def request(program: ExecutorchProgram) -> RunRequest:
        folder, record = folder_of(compiled, program), compiled_in(compiled[program.name])
        return RunRequest(
            Folder(str(folder), (".raw", CHOSEN)),
            compared_files(program, compiled),
            runner.order,
            # ExecuTorch stamps the time of lowering into a program: an equal one is not run again for that.
            File(str(folder / PROGRAM), known_by=record.without_time),
            plan.qnn,
        )

    def cost(program: ExecutorchProgram) -> Job:
        recorded = program.recorded
        return Job(program.name, (recorded.run_seconds if recorded else None) or RUN_SECONDS, RUN_MEMORY)

    return Step(
        plan=plan,
        kind=RAN,
        title="runs on the emulator",
        function=f"{RUN_WORKER}:run_program",
        home=partial(home_of_runs, plan),
        request=request,
        reply=EmulatorRun,
        cost=cost,
        # Its figures are judged each time, and its metric is computed of them: whatever they are, they stay.
        keeps_files=True,
        keeps=lambda program, result: ran(result),
        line=_line,
    )


def _line(program: ExecutorchProgram, result: Result) -> Line:
    if result.failure:
        return line_of(result)
    record = ran_in(result)
    if record.rule:
        return failed_line(f"{record.rule}: {record.message}")
    return Line("ran", add_samples(describe_figures(record.figures), record.each_db))


def folder_of(compiled: Mapping[str, Result], program: ExecutorchProgram) -> Path:
    folder = compiled[program.name].folder
    assert folder is not None
    return folder


def home_of_runs(plan: ExecutorchPlan, own: OwnPackages) -> Home:
    return Home(
        # numpy's threads would not survive a fork.
        {**plan.environment, **own.variables, "OPENBLAS_NUM_THREADS": "1"},
        plan.logs,
        f"{RUN_WORKER}:prepare",
        "numpy",
        session("test_emulator"),
        own.python,
    )
