"""Programs compiled in parallel by workers, and cached by all that decides them."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ci.artifacts.against_sdk import sdk_arches
from ci.artifacts.compiler_log import CRASHES
from ci.artifacts.program import digest_without_time
from ci.cached_steps import NotCached
from ci.child import MEMORY, WARM
from ci.closed import closed
from ci.explain.rewriting import Need
from ci.jobs import Job, WorkOptions, memory_budget
from ci.lanes.executorch.records import ChipProgram, Compiled, Lacking, ModelRewrite, Quantized
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.models.own_packages import OwnPackages
from ci.outcome import Failure, Refused, Result, WorkerDied, error_follows, line_of
from ci.plain import as_json, read
from ci.progress import Line
from ci.recheck import Repeats
from ci.results import CachedResults, Key
from ci.suite.accuracy import in_words
from ci.suite.installed import host_libraries, ready_environment
from ci.suite.program_steps import ProgramStep, export_log, run_cached_step
from ci.suite.stage import (
    Plan,
    baselines_of,
)
from ci.work import ChildTask, Home
from provisioning.base.commands import Fix, session
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import Selection
from provisioning.components import QNN_SDK
from provisioning.manifest import load_socs, soc_named

LOG = "compile.log"


COMPILED, RAN = "lowering", "emulator"
"""The step whose files are programs, and the one whose figures are a program's."""


WORKER = "ci.lanes.executorch.worker"


EXPORT = "ci.lanes.executorch.export:export"


UNKNOWN_SECONDS, UNKNOWN_MEMORY = 8.0, 1200


LEAST_MEMORY = 4 << 30
BUILD_ID = "build_id"


@dataclass(frozen=True, slots=True)
class ExecutorchPlan(Plan):
    programs: tuple[ExecutorchProgram, ...]
    environment: Mapping[str, str]
    """Of the workers."""
    sdk: Path
    qnn: Mapping[str, str]
    """What every program depends on of QNN: its build, and the digests of its libraries for this machine."""
    refused: dict[str, Finding]
    """Programs that this SDK cannot compile at all."""
    left_out: tuple[ExecutorchProgram, ...] = ()
    """Those that their suite has for other versions of executorch."""
    errors_follow: bool = False
    """Whether the command shows each error itself, so that progress need not."""

    @property
    def build_id(self) -> str:
        return self.qnn[BUILD_ID]


def plan_of(
    programs: Sequence[ExecutorchProgram], selection: Selection, work: WorkOptions, name: str
) -> ExecutorchPlan:
    """`name` is that of the folder of logs."""
    socs = tuple(dict.fromkeys(program.soc for program in programs))
    environment = ready_environment(replace(selection, soc=socs[0] if socs else selection.soc), os.environ)
    environment.explain()
    sdk = environment.root(QNN_SDK).path
    qnn = host_libraries(sdk, selection.store)
    return ExecutorchPlan(
        selection=selection,
        programs=tuple(programs),
        environment=closed(environment.merged(os.environ)),
        sdk=sdk,
        qnn=qnn,
        work=work,
        logs=Path(selection.reports).absolute() / name,
        baselines=baselines_of(programs, selection.profile),
        refused=dict(refusals(programs, sdk, qnn[BUILD_ID])),
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


def refusal(program: ExecutorchProgram, build_id: str) -> Finding | None:
    """Why this QNN build cannot compile such a program, whatever the model is."""

    def refused(rule: str, message: str, fix: str) -> Finding:
        return Finding(rule, Severity.ERROR, program.name, message, fix)

    if program.backend == "gpu":
        return refused(
            "gpu-host",
            "QNN's GPU backend compiles only on a device: on this machine it refuses with 10008, `TuningMode"
            " must be enabled on x86_64-linux-clang`",
            'backend = "htp", or compile it on a device with an Adreno GPU',
        )
    if program.backend != "lpai":
        return None
    from provisioning import qnn_libraries
    from provisioning.elf import version_key

    soc = soc_named(program.soc)
    table = qnn_libraries.table().lpai
    if soc.lpai is None or str(soc.lpai) not in table:
        having = [name for name, soc in load_socs().items() if soc.lpai is not None]
        message = f"{program.soc} has no LPAI; {', '.join(having)} have one"
        return refused("lpai-soc", message, " or ".join(f"--soc {name}" for name in having))
    since = table[str(soc.lpai)].since
    version = build_id.removeprefix("v").split("_")[0]
    if version_key(".".join(version.split(".")[:2])) < version_key(since):
        message = f"the LPAI v{soc.lpai} of {program.soc} needs QNN {since} or later, and this is {build_id}"
        return refused("lpai-qnn", message, other_profile(program))
    return None


def other_profile(program: ExecutorchProgram) -> str:
    from provisioning.validation.libraries import profiles_with_lpai

    having = profiles_with_lpai(soc_named(program.soc).lpai)
    again = SUITES.repeat(program, "test_lowering").commands[0] if program.suite.is_file() else ()
    others = "".join(f" or --profile {name}" for name in having[1:])
    return Fix("{}{}; or QNN_SDK_ROOT to an official SDK", (*again, "--profile", having[0]), others)


@dataclass(frozen=True)
class Lower(ProgramStep):
    kind = COMPILED
    keeps_files = True
    log_in_folder = LOG
    # The log has times of day.
    repeats: ClassVar[Repeats | None] = Repeats(changing=(LOG, "without_time"), digest=digest_without_time)

    work: ClassVar[str] = "compiled"
    """The worker's function."""

    plan: ExecutorchPlan

    @property
    def title(self) -> str:
        return f"programs for QNN {self.plan.build_id}"

    @property
    def function(self) -> str:
        return f"{WORKER}:{self.work}"

    def home(self, own: OwnPackages) -> Home:
        plan = self.plan
        memory = plan.work.worker_memory or max(memory_budget() or 0, LEAST_MEMORY)
        variables = {**plan.environment, **own.variables, MEMORY: str(memory), WARM: "1"}
        return home_of(variables, plan.logs, own.python)

    def request(self, program: ExecutorchProgram) -> Mapping[str, Any]:
        return {**program.order, **self.options}

    @property
    def options(self) -> dict[str, Any]:
        """What its work gets, and depends on, beside the program."""
        return {"keep_going": self.plan.work.keep_going}

    def key(self, program: ExecutorchProgram, results: CachedResults) -> Key:
        """The run, without what says which inputs the model gets: the export gives them by their bytes."""
        run = {name: value for name, value in program.request["run"].items() if name != "calibration"}
        case = {name: program.request["case"][name] for name in ("backend", "non_finite")}
        return {
            "run": run,
            "case": case,
            "soc": program.soc,
            "options": self.options,
            "QNN": dict(self.plan.qnn),
        }

    def export(self, program: ExecutorchProgram) -> ChildTask:
        """Of all runs of the case that are wanted."""
        alike = [row for row in self.plan.programs if _model_of(row) == _model_of(program)]
        request = {**program.order, "runs": {row.run.name: row.request["run"] for row in alike}}
        name = f"{program.suite}:{program.case_name}"
        request["log"] = str(export_log(self.plan, program))
        return ChildTask(name, EXPORT, request, self.timeout, self.flag)

    def export_key(self, program: ExecutorchProgram, reply: Mapping[str, Any]) -> Key:
        of_run = reply["runs"][program.run.name]
        if "error" in of_run:
            raise Refused(of_run["error"])
        if "not cached" in of_run:
            raise NotCached(of_run["not cached"])
        rows: Key = of_run["rows"]
        return rows

    def cost(self, program: ExecutorchProgram) -> Job:
        recorded = self.plan.baseline(program).of(program.name)
        seconds = recorded.cpu_seconds if recorded and recorded.cpu_seconds else UNKNOWN_SECONDS
        megabytes = recorded.peak_mb if recorded and recorded.peak_mb else UNKNOWN_MEMORY
        return Job(program.name, seconds, megabytes << 20)

    def read(self, reply: Mapping[str, Any]) -> object:
        kind: Any = Compiled
        return read(kind, reply)

    def accepts(self, program: ExecutorchProgram, result: Result) -> bool:
        if not isinstance(compiled := result.record, ChipProgram):
            return True
        # A runtime may refuse a program for lack of memory, so such a result is looked at each time.
        return not compiled.loads and not (compiled.kept_on_cpu and not self.plan.work.keep_going)

    def line(self, program: ExecutorchProgram, result: Result) -> Line:
        if result.failure and self.plan.errors_follow:
            return error_follows(result.failure)
        if not isinstance(result.record, Lacking):
            return line_of(result)
        lpai = result.record.lpai
        return Line("quantized", f"{in_words(lpai.in_torch.figures)} in PyTorch; {lpai.lacks} is missing")

    def ended(self, program: ExecutorchProgram, gone: WorkerDied, log: Path) -> Failure:
        message, fix = gone.sentence(log), ""
        if named := _dies_of(log):
            message = f"{named}; with that on the CPU {message}"
            fix = "write it in another way, or keep more around it on the CPU (cpu_nodes)"
        return Failure(gone.kind, message, fix, log)


@dataclass(frozen=True)
class Quantize(Lower):
    """Ends with the quantized model."""

    kind, work, repeats = "quantized", "quantized", None

    @property
    def options(self) -> dict[str, Any]:
        return {}

    def read(self, reply: Mapping[str, Any]) -> object:
        return read(Quantized, reply)


@dataclass(frozen=True)
class Rewrite(Lower):
    """Ends with the float model, with these rewrites where they match."""

    kind, work, repeats = "rewritten", "rewritten", None

    needs: Sequence[Need]

    @property
    def options(self) -> dict[str, Any]:
        return {"needs": [as_json(need) for need in self.needs]}

    def read(self, reply: Mapping[str, Any]) -> object:
        return read(ModelRewrite, reply)


def _dies_of(log: Path) -> str:
    """The search's result before it ended in a crash."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return next((line for line in reversed(lines) if line.startswith(CRASHES)), "")


def compile_programs(plan: ExecutorchPlan) -> dict[str, Result]:
    return done(Lower(plan))


def done(step: Lower) -> dict[str, Result]:
    """Of every program that is not refused, by name; its files are in the result's folder."""
    plan = step.plan
    return run_cached_step(step, [program for program in plan.programs if program.name not in plan.refused])


def _model_of(program: ExecutorchProgram) -> tuple[Path, str, object]:
    return program.suite, program.case_name, program.needs


def home_of(environment: Mapping[str, str], logs: Path, python: str = sys.executable) -> Home:
    fix = f"run it as `{session('test_lowering')}`, which installs what it needs"
    return Home(environment, logs, f"{WORKER}:prepare", "executorch and torch", fix, python)
