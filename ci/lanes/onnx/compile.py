"""Programs compiled, run and reloaded by workers, and remembered by everything that they depend on."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.engine.closed import closed
from ci.engine.inputs import Roots, Touched, python_name, search_key
from ci.engine.installed import require_packages
from ci.engine.jobs import Job
from ci.engine.memo import Memo
from ci.engine.work import Done, Failure, empty_folder
from ci.engine.workers.child import THREADS
from ci.engine.workers.parent import Gone, Setup, Worker
from ci.lanes.onnx.options import files_of
from ci.lanes.onnx.suite import Program
from ci.pipeline.baseline import Baseline
from ci.pipeline.models.own_packages import OwnPackages
from ci.pipeline.options import Work
from ci.pipeline.stage import AnyPlan, baselines_of, memos_of
from provisioning.base.command_line import TIMEOUT, Parser
from provisioning.base.commands import session
from provisioning.base.diagnosis import explain
from provisioning.base.errors import CheckFailed, EnvironmentLacking, ToolkitError
from provisioning.base.findings import Metric
from provisioning.base.settings import Selection

NEEDED = ("onnx", "onnxruntime", "onnxruntime_qnn")
PACKAGES = ("onnx", "onnxruntime", "onnxruntime-qnn", "onnxscript", "torch", "numpy")
WORKER_MEMORY = 1400 << 20
SECONDS_PREPARE, SECONDS_PROGRAM = 8.0, 3.0
"""The assumed cost of a model and of a program that were never measured, for the order of work and the
estimate.
"""

KINDS = {"NotOnProvider": "cpu-node", "UsageError": "suite", "Unforeseen": "unforeseen"}
"""The names of findings for the worker's errors."""


FAILED = ("failed", "message")
"""What a reply has of a case whose failure is a result."""


class Refused(ToolkitError):
    """An error that the worker reports; `details` has the problems or the audit if there are any."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error["message"]), fix=str(error["fix"]))
        self.exit_code = int(error["exit_code"])
        self.details = dict(error)

    @property
    def kind(self) -> str:
        problems = self.details.get("problems") or [{}]
        rule = str(problems[0].get("rule", "")).removeprefix("onnx-")
        return rule or KINDS.get(str(self.details["kind"]), "refused")


def ordered(worker: Worker, what: str, log: Path, **parameters: Any) -> dict[str, Any]:
    """The reply to an order of steps.py. Raises Refused for an error that the worker reports, and Gone."""
    log.parent.mkdir(parents=True, exist_ok=True)
    request = {"do": what, "log": str(log.absolute()), "cwd": str(Parser.user_folder()), **parameters}
    reply = worker.ask(request)
    if "error" in reply:
        raise Refused(reply["error"])
    return reply


def ended(gone: Gone, what: str, log: Path) -> ToolkitError:
    """For the commands: how the process ended."""
    if trouble := gone.trouble(log):
        return EnvironmentLacking(f"{what}: {trouble.message}", fix=trouble.fix)
    late = "give it longer with --timeout" if gone.kind == "timeout" else ""
    return CheckFailed(f"{what}: {gone.sentence(log)}", fix=late or session("diagnose", log))


def environment(own: OwnPackages | None = None) -> dict[str, str]:
    """Of the workers, and of what a model reads there."""
    variables = closed(os.environ)
    # The provider brings its own QNN libraries, and no other SDK's may be found first.
    variables.pop("LD_LIBRARY_PATH", None)
    return {**variables, **(own.variables if own else {})}


def setup_of(
    logs: Path,
    *,
    threads: int = 0,
    timeout: float = TIMEOUT,
    forks: bool = False,
    exports: bool = False,
    own: OwnPackages | None = None,
) -> Setup:
    """With `exports`, import what exporting and quantizing need once, before the first fork."""
    variables = environment(own)
    if threads:
        variables[THREADS] = str(threads)
    return Setup(
        command=(
            "-m",
            "ci.lanes.onnx.worker",
            *(["--fork"] if forks else []),
            *(["--export"] if exports else []),
        ),
        environment=variables,
        logs=logs,
        timeout=timeout,
        imports="onnxruntime and onnxruntime-qnn",
        fix="nox -s test_onnx",
        forks=forks,
        python=own.python if own else sys.executable,
    )


def require_installed() -> None:
    require_packages(NEEDED, "nox -s test_onnx makes .nox/onnx, whose bin/python has it")


def versions() -> dict[str, Metric]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def key(program: Program, roots: Roots, environ: Mapping[str, str]) -> dict[str, Metric]:
    """What is known before any work. Code, model and files are discovered by the work itself."""
    named: list[Metric] = [roots.name(str(path.absolute())) for path in files_of(program.run.options)]
    request = program.request
    if model := request["case"]["model"]:
        request["case"]["model"] = roots.name(os.path.abspath(program.file(model)))  # noqa: PTH100
    return {
        **request,
        "python": python_name(),
        "suite": roots.name(str(program.search_path)),
        **search_key(roots, environ),
        "files of options": named,
        "working folder": roots.name(str(program.working_folder)),
    }


@dataclass(frozen=True)
class Compilation:
    """The work for one program. Programs of one model share its export; those of one run share its quantized
    model."""

    program: Program
    key: Mapping[str, Metric]
    memo: Memo
    cost: Job
    group: str
    logs: Path
    scratch: Path
    keep: bool = False
    """Whether to leave what was compiled with the logs."""

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def log(self) -> Path:
        return self.logs / f"{self.name}.log"

    @property
    def compiled(self) -> Path:
        """The folder of the contexts; it is kept only for somebody to look at."""
        return self.logs / self.name

    def work(self, worker: Worker, shared: dict[str, Any]) -> Done | Failure:
        run = self.program.run
        # Each run takes as many of them as it says, from the first on.
        most = max(each.calibration for each in self.program.case.runs)
        prepared = self._once(worker, shared, "prepare", "model", calibration=most)
        if isinstance(prepared, Failure):
            return prepared
        of_model = {"prepared": prepared["into"], "source": prepared["model"]}
        quantized = self._once(
            worker, shared, "quantize", f"run {run.name}", model=prepared["model"], **of_model
        )
        if isinstance(quantized, Failure):
            return quantized
        touched = prepared["touched"] | quantized["touched"]
        if "failed" in quantized:
            reply: dict[str, Any] | Failure = {name: quantized.get(name) for name in FAILED}
        else:
            of_run = {"quantized": quantized["into"], "model": quantized["model"]}
            reply = self._compiled(worker, shared, **of_model, **of_run)
        if isinstance(reply, Failure):
            return reply
        self.log.unlink(missing_ok=True)
        touched |= Touched.of(reply.pop("touched", {}))
        facts = {
            "build_id": prepared.get("build_id", ""),
            **reply,
            "made_up_inputs": not prepared["compared"],
            "notes": prepared["notes"],
            "calibrated_by": quantized.get("calibrated_by", 0),
            "in_float": quantized.get("in_float", False),
        }
        evidence = None if self.keep else self.compiled
        return Done(facts, touched, evidence=evidence, own=(self.scratch, self.logs))

    def ended(self, gone: Gone, shared: Mapping[str, Any]) -> Failure:
        message = gone.sentence(self.log)
        fix = "give it longer with --timeout" if gone.kind == "timeout" else ""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        if known := explain(text):
            message, fix = f"{message}. {known[0]}", fix or known[0].fix
        fix = fix or session("diagnose", self.log)
        return Failure(gone.kind, message, fix, self.log)

    def _compiled(self, worker: Worker, shared: Mapping[str, Any], **order: Any) -> dict[str, Any] | Failure:
        """The trace of what QNN refuses crashes the provider itself at times. Then it is done without, except
        where the trace is the result; `trace_crash` has how it ended."""
        try:
            return self._ordered(worker, "case", into=str(empty_folder(self.compiled)), **order)
        except Gone as gone:
            if not gone.by_itself or self.program.run.refused or gone.trouble(self.log):
                return self._crash(gone, shared)
            crash = self.ended(gone, shared).message
        try:
            into = str(empty_folder(self.compiled))
            reply = self._ordered(worker, "case", into=into, trace=False, **order)
        except Gone as gone:
            return self._crash(gone, shared)
        return reply if isinstance(reply, Failure) else {**reply, "trace_crash": crash}

    def _crash(
        self, gone: Gone, shared: Mapping[str, Any], *, is_result: bool = True
    ) -> dict[str, Any] | Failure:
        """How the process ended; as a result, if a crash is one for this case and this step."""
        if trouble := gone.trouble(self.log):
            return Failure.of(trouble, self.log)
        end = self.ended(gone, shared)
        if not (is_result and self.program.case.recorded and gone.by_itself):
            return end
        return {"failed": "crash", "message": end.message, "touched": dict(gone.touched or {})}

    def _once(
        self, worker: Worker, shared: dict[str, Any], what: str, folder: str, **more: Any
    ) -> dict[str, Any] | Failure:
        """A step that several programs share: its reply, or the error of the first program."""
        if folder not in shared:
            into = empty_folder(self.scratch / self.group / folder)
            try:
                reply = self._ordered(worker, what, into=str(into), **more)
            except Gone as gone:
                reply = self._crash(gone, shared, is_result=what == "quantize")
            if not isinstance(reply, Failure):
                reply |= {"into": str(into), "touched": Touched.of(reply["touched"])}
            shared[folder] = reply
        known: dict[str, Any] | Failure = shared[folder]
        return known

    def _ordered(self, worker: Worker, what: str, **more: Any) -> dict[str, Any] | Failure:
        order = {**self.program.order, **more}
        try:
            return ordered(worker, what, self.log, **order)
        except Refused as refused:
            return Failure(refused.kind, refused.message, refused.fix, self.log)


@dataclass(frozen=True, slots=True)
class Plan(AnyPlan[Program]):
    pass


def plan_of(programs: Sequence[Program], selection: Selection, work: Work) -> Plan:
    logs = selection.reports.absolute() / "onnx"
    return Plan(tuple(programs), selection, work, logs, baselines_of(programs, selection.profile))


def tasks_of(plan: Plan, scratch: Path, own: OwnPackages | None = None) -> list[Compilation]:
    programs, work, store = plan.programs, plan.work, plan.selection.store
    # Remembered programs have no model that --keep could keep.
    reuse = work.cache and not work.keep
    memos = memos_of(programs, "onnx", store, environment(own), reuse=reuse, own=own)
    groups = model_names(programs)
    sizes = Counter(groups.values())
    tasks = []
    for program in programs:
        group, memo = groups[program.name], memos[program.suite]
        seconds = SECONDS_PREPARE / sizes[group] + _seconds(program, plan.baselines)
        tasks.append(
            Compilation(
                program=program,
                key={**key(program, memo.roots, environment(own)), **(own.key() if own else {})},
                memo=memo,
                cost=Job(program.name, seconds, WORKER_MEMORY),
                group=group,
                logs=plan.logs,
                scratch=scratch,
                keep=work.keep,
            )
        )
    return tasks


def jobs_of(programs: Sequence[Program], baselines: Mapping[Path, Baseline]) -> dict[str, Job]:
    """By program the job of its model, for shards, because a model is exported once."""
    seconds: dict[str, float] = {}
    groups = model_names(programs)
    for program in programs:
        group = groups[program.name]
        seconds[group] = seconds.get(group, SECONDS_PREPARE) + _seconds(program, baselines)
    jobs = {name: Job(name, each, WORKER_MEMORY) for name, each in seconds.items()}
    return {name: jobs[group] for name, group in groups.items()}


def model_names(programs: Sequence[Program]) -> dict[str, str]:
    """The model of each program by name; cases of equal names in two suites get different ones."""
    suites: dict[str, list[Path]] = {}
    names = {}
    for program in programs:
        known = suites.setdefault(program.case_name, [])
        if program.suite not in known:
            known.append(program.suite)
        number = known.index(program.suite)
        # No case name contains a space.
        names[program.name] = program.case_name + (f" {number + 1}" if number else "")
    return names


def _seconds(program: Program, baselines: Mapping[Path, Baseline]) -> float:
    recorded = baselines[program.suite].of(program.name)
    return (recorded.cpu_seconds if recorded else None) or SECONDS_PROGRAM
