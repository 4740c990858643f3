"""Programs compiled, run and reloaded by workers, and remembered by everything that they depend on."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ci.diagnose.explain import nearest
from ci.engine.closed import closed
from ci.engine.inputs import NO_USER_CODE, python_name, search_key
from ci.engine.jobs import Job
from ci.engine.memo import Memo
from ci.engine.progress import Line, failed
from ci.engine.recheck import Repeats
from ci.engine.watch import Touched
from ci.engine.work import Failure, Result, line_of
from ci.engine.workers.child import THREADS
from ci.engine.workers.parent import WorkerDied, WorkerSpec
from ci.lanes.onnx.crosscheck import CrossChecked
from ci.lanes.onnx.findings import changed, context_of, findings_of, was_compiled
from ci.lanes.onnx.options import files_of
from ci.lanes.onnx.samples import OUTPUTS
from ci.lanes.onnx.suite import OnnxProgram, calibrating
from ci.pipeline.accuracy import in_words
from ci.pipeline.baseline import Baseline, load_tolerances
from ci.pipeline.findings import verdict
from ci.pipeline.installed import require_packages
from ci.pipeline.models.own_packages import OwnPackages
from ci.pipeline.options import WorkOptions
from ci.pipeline.phones import load_forecasts
from ci.pipeline.scoring import scores_of
from ci.pipeline.stage import AnyPlan, baselines_of
from ci.pipeline.steps import Ask, Step, run_step
from ci.work import Home
from provisioning.base.command_line import TIMEOUT, Parser
from provisioning.base.commands import Fix, session
from provisioning.base.files import empty_folder
from provisioning.base.findings import Metric
from provisioning.base.settings import Selection

NEEDED = ("onnx", "onnxruntime", "onnxruntime_qnn")
PACKAGES = ("onnx", "onnxruntime", "onnxruntime-qnn", "onnxscript", "torch", "numpy")
WORKER_MEMORY = 1400 << 20
SECONDS_PREPARE, SECONDS_PROGRAM = 8.0, 3.0
"""The assumed cost of a model and of a program that were never measured, for the order of work and the
estimate.
"""

SLACK = 0.01
"""By how much a figure may be off when the same is compiled again."""

FORMS = ("beside", "embedded")
"""A context that lies beside its .onnx, and one inside; folders of a result."""

FAILED = ("failed", "message")
"""What a reply has of a case whose failure is a result."""


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
) -> WorkerSpec:
    """With `exports`, import what exporting and quantizing need once, before the first fork."""
    variables = environment(own)
    if threads:
        variables[THREADS] = str(threads)
    return WorkerSpec(
        command=("-m", "ci.lanes.onnx.worker", *["--fork"] * forks, *["--export"] * exports),
        environment=variables,
        logs=logs,
        timeout=timeout,
        imports="onnxruntime and onnxruntime-qnn",
        fix=session("test_onnx"),
        forks=forks,
        python=own.python if own else sys.executable,
    )


def require_installed() -> None:
    require_packages(NEEDED, Fix("{} makes .nox/onnx, whose bin/python has it", ("test_onnx",)))


def versions() -> dict[str, Metric]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


@dataclass(frozen=True, slots=True)
class OnnxPlan(AnyPlan[OnnxProgram]):
    pairs: tuple[CrossChecked, ...] = ()
    """Programs beside those that ExecuTorch made of the same models."""


def plan_of(programs: Sequence[OnnxProgram], selection: Selection, work: WorkOptions) -> OnnxPlan:
    logs = selection.reports.absolute() / "onnx"
    return OnnxPlan(tuple(programs), selection, work, logs, baselines_of(programs, selection.profile))


@dataclass(frozen=True)
class CompileOnnx(Step[OnnxProgram]):
    """Programs of one model share its export; those of one run its quantized model."""

    kind = "onnx"
    title = "programs"
    shows_cached = True
    # A context is never the same to the bit, and ONNX Runtime adds in another order with other threads.
    repeats = Repeats(
        changing=(
            "*.record.files.*",
            "*.record.model",
            "*.slices.*",
            "message",
            "trace_crash",
            "beside/*",
            "embedded/*",
        ),
        figures={"*.near.*": SLACK, "*.bytes": SLACK},
    )

    plan: OnnxPlan
    new_baseline: bool = False
    """Whether a cached result that is worse than the baseline counts: it becomes the baseline."""

    def environment(self, own: OwnPackages) -> Mapping[str, str]:
        return environment(own)

    def worker(self, own: OwnPackages, threads: int, count: int) -> WorkerSpec:
        # Torch and its exporter, which take seconds to import, are for factories alone.
        exports = any(program.case.factory for program in self.plan.programs)
        timeout = self.plan.work.timeout
        return setup_of(
            self.plan.logs, threads=threads, timeout=timeout, forks=True, exports=exports, own=own
        )

    def key(self, program: OnnxProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        """What is known before any work. Code, model and files are discovered by the work itself."""
        roots, request = memo.roots, program.request
        named: list[Metric] = [roots.name(str(path.absolute())) for path in files_of(program.run.options)]
        if model := request["case"]["model"]:
            request["case"]["model"] = roots.name(os.path.abspath(program.file(model)))  # noqa: PTH100
        return {
            **request,
            "python": python_name(),
            "suite": roots.name(str(program.search_path)),
            **search_key(roots, environ),
            "files of options": named,
            "working folder": roots.name(str(program.working_folder)),
            **({NO_USER_CODE: True} if program.case.is_data else {}),
        }

    @cached_property
    def groups(self) -> dict[str, str]:
        return model_names(self.plan.programs)

    def group(self, program: OnnxProgram) -> str:
        return self.groups[program.name]

    def cost(self, program: OnnxProgram) -> Job:
        size = list(self.groups.values()).count(self.groups[program.name])
        seconds = SECONDS_PREPARE / size + _seconds(program, self.plan.baselines)
        return Job(program.name, seconds, WORKER_MEMORY)

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        findings = list(findings_of(program, result))
        if not self.new_baseline:
            margin_db = load_tolerances().sqnr_margin_db
            findings += changed(program, result, self.plan.baseline(program), margin_db)
        return verdict(findings) == "pass"

    def line(self, program: OnnxProgram, result: Result) -> Line:
        if result.failure or not was_compiled(result):
            return line_of(result)
        words = in_words(context_of(result)["near"])
        return Line("passed", words) if self.accepts(program, result) else failed(words)

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        run, request, group = program.run, program.order, self.groups[program.name]
        # Each run takes as many of them as it says, from the first on.
        most = max(calibrating(program.case, run) for run in program.case.runs)
        request |= self.asked(program)
        prepared = ask.once(f"{group}/model", do="prepare", cwd=cwd(), **request, calibration=most)
        of_model = {"prepared": prepared["into"], "source": prepared["model"], "cwd": cwd()}
        quantized: Mapping[str, Any]
        try:
            quantized = ask.once(
                f"{group}/run {run.name}", do="quantize", **request, **of_model, model=prepared["model"]
            )
        except WorkerDied as gone:
            quantized = self._crash(program, ask, gone)
        if "failed" in quantized:
            reply: Mapping[str, Any] = {name: quantized.get(name) for name in FAILED}
        else:
            of_run = {"quantized": quantized["into"], "model": quantized["model"]}
            reply = self.contexts(program, ask, **of_model, **of_run)
            if program.run.forecast and "failed" not in reply:
                reply = {**reply, "estimate": self.estimate(program, ask, {**of_model, **of_run})}
        return {
            "build_id": prepared.get("build_id", ""),
            **reply,
            "used": {**prepared["used"], "calibrating": quantized.get("calibrated_by", 0)},
            "constant": prepared["constant"],
            "notes": prepared["notes"],
            "in_float": quantized.get("in_float", False),
        }

    def asked(self, program: OnnxProgram) -> Mapping[str, Any]:
        """What a request for its contexts has beside the program."""
        return {}

    def contexts(self, program: OnnxProgram, ask: Ask, **of_run: Any) -> Mapping[str, Any]:
        """The trace of what QNN refuses crashes the provider itself at times. Then it is done without, except
        where the trace is the result; `trace_crash` has how it ended."""
        request = {"do": "case", **program.order, **self.asked(program), **of_run}
        try:
            return ask(**request)
        except WorkerDied as gone:
            if not gone.is_own_crash or program.run.refused or gone.trouble(ask.log):
                return self._crash(program, ask, gone)
            crash = explained_end(gone, ask.log).message
        try:
            return {**ask(**request, trace=False, into=str(empty_folder(ask.into))), "trace_crash": crash}
        except WorkerDied as gone:
            return self._crash(program, ask, gone)

    def estimate(self, program: OnnxProgram, ask: Ask, of_run: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What QNN says that the model will take; None where the compiler crashes on estimating it."""
        into, table = empty_folder(ask.scratch / program.name / "estimate"), load_forecasts()
        phones = [*program.run.budget, *table.of_chip(program.soc)]
        chips = table.chips(program.run.kind, phones)
        try:
            return ask(do="estimate", **program.order, **of_run, into=str(into), chips=list(chips))
        except WorkerDied as gone:
            if not gone.is_own_crash or gone.trouble(ask.log):
                raise
            return None

    def _crash(self, program: OnnxProgram, ask: Ask, gone: WorkerDied) -> Mapping[str, Any]:
        """How the process ended, if a crash is a result for this case."""
        if not (program.case.recorded and gone.is_own_crash) or gone.trouble(ask.log):
            raise gone
        ask.touched |= Touched.of(gone.touched or {})
        return {"failed": "crash", "message": explained_end(gone, ask.log).message}

    def ended(self, program: OnnxProgram, gone: WorkerDied, log: Path) -> Failure:
        return explained_end(gone, log)


@dataclass(frozen=True)
class CompileForMetric(CompileOnnx):
    """Keeps the outputs, which a metric is computed of each time."""

    kind = "onnx-outputs"
    keeps_files = True

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        return True

    def asked(self, program: OnnxProgram) -> Mapping[str, Any]:
        return {"keeps_outputs": True}


def home_of_metrics(plan: OnnxPlan, own: OwnPackages) -> Home:
    spec = setup_of(plan.logs, timeout=plan.work.timeout, own=own)
    return Home(
        spec.environment, spec.logs, "ci.lanes.onnx.worker:start", spec.imports, spec.fix, spec.python
    )


def with_metrics(
    plan: OnnxPlan, programs: Sequence[OnnxProgram], results: Mapping[str, Result]
) -> dict[str, Result]:
    """The results with the figures of each one's metric."""
    outputs = {
        name: result.folder
        for name, result in results.items()
        if result.folder and (result.folder / OUTPUTS).is_file()
    }
    scores = scores_of(
        plan,
        [row for row in programs if row.name in outputs],
        outputs,
        partial(home_of_metrics, plan),
        "ci.lanes.onnx.worker:answer",
        lambda program: {},
    )
    found = dict(results)
    for name, score in scores.items():
        found[name] = replace(results[name], failure=score.failure)
        if not score.failure:
            facts = results[name].facts
            form = next(form for form in FORMS if form in facts)
            context = {**facts[form], "near": {**facts[form]["near"], **score.facts["figures"]}}
            found[name] = replace(results[name], facts={**facts, form: context})
    return found


def explained_end(gone: WorkerDied, log: Path) -> Failure:
    """How a worker ended, with what is known of its last words."""
    message = gone.sentence(log)
    fix = "give it longer with --timeout" if gone.kind == "timeout" else ""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    if known := nearest(text):
        message, fix = f"{message}. {known}", fix or known.fix
    return Failure(gone.kind, message, fix or session("diagnose", log), log)


def cwd() -> str:
    """Where relative paths in options begin."""
    return str(Parser.user_folder())


def compile_programs(plan: OnnxPlan, *, new_baseline: bool = False) -> dict[str, Result]:
    with_metric = [program for program in plan.programs if program.case.metric]
    results = run_step(CompileOnnx(plan, new_baseline), [row for row in plan.programs if not row.case.metric])
    compiled = run_step(CompileForMetric(plan, new_baseline), with_metric)
    results |= with_metrics(plan, with_metric, compiled)
    for program in with_metric:
        result, evidence = results[program.name], plan.logs / program.name
        if result.folder and (plan.work.keep or verdict([*findings_of(program, result)]) != "pass"):
            shutil.copytree(result.folder, empty_folder(evidence), dirs_exist_ok=True)
    return results


def jobs_of(programs: Sequence[OnnxProgram], baselines: Mapping[Path, Baseline]) -> dict[str, Job]:
    """By program the job of its model, for shards, because a model is exported once."""
    seconds: dict[str, float] = {}
    groups = model_names(programs)
    for program in programs:
        group = groups[program.name]
        seconds[group] = seconds.get(group, SECONDS_PREPARE) + _seconds(program, baselines)
    jobs = {name: Job(name, second, WORKER_MEMORY) for name, second in seconds.items()}
    return {name: jobs[group] for name, group in groups.items()}


def model_names(programs: Sequence[OnnxProgram]) -> dict[str, str]:
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


def _seconds(program: OnnxProgram, baselines: Mapping[Path, Baseline]) -> float:
    recorded = baselines[program.suite].of(program.name)
    return (recorded.cpu_seconds if recorded else None) or SECONDS_PROGRAM
