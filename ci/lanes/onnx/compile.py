"""Programs compiled, run and reloaded by workers, and cached by all that decides them."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from ci.child import WARM
from ci.closed import closed
from ci.diagnose.explain import nearest
from ci.forecast.phones import load_forecasts
from ci.jobs import Job
from ci.lanes.onnx import FORMS
from ci.lanes.onnx.crosscheck import CrossChecked
from ci.lanes.onnx.findings import changed, context_of, findings_of, was_compiled
from ci.lanes.onnx.options import files_of
from ci.lanes.onnx.samples import OUTPUTS
from ci.lanes.onnx.suite import OnnxProgram, calibrating
from ci.models.own_packages import OwnPackages
from ci.outcome import Failure, Result, WorkerDied, line_of
from ci.progress import Line, failed
from ci.results import CachedResults, Key, digest_of
from ci.suite.accepted import Baseline, load_tolerances
from ci.suite.accuracy import in_words, with_samples
from ci.suite.cached_steps import CachedStep, run_cached_step
from ci.suite.findings import verdict
from ci.suite.installed import require_packages
from ci.suite.options import WorkOptions
from ci.suite.recheck import Repeats
from ci.suite.scoring import scores_of
from ci.suite.stage import Plan, baselines_of
from ci.work import ChildTask, Home
from provisioning.base.command_line import Parser
from provisioning.base.commands import Fix, session
from provisioning.base.files import empty_folder
from provisioning.base.findings import Metric
from provisioning.base.settings import Selection
from provisioning.manifest import soc_named

WORKER, PROGRAM = "ci.lanes.onnx.worker", "ci.lanes.onnx.program"
NEEDED = ("onnx", "onnxruntime", "onnxruntime_qnn")
PACKAGES = ("onnx", "onnxruntime", "onnxruntime-qnn", "onnxscript", "torch", "numpy")
WORKER_MEMORY = 1400 << 20
SECONDS_PREPARE, SECONDS_PROGRAM = 8.0, 3.0
"""The assumed cost of a model and of a program that were never measured, for the order of work and the
estimate.
"""

SLACK = 0.01
"""By how much a figure may be off when the same is compiled again."""


def environment(own: OwnPackages | None = None) -> dict[str, str]:
    """Of the workers, and of what a model reads there."""
    variables = closed(os.environ)
    # The provider brings its own QNN libraries, and no other SDK's may be found first.
    variables.pop("LD_LIBRARY_PATH", None)
    return {**variables, **(own.variables if own else {})}


def home_of(logs: Path, *, exports: bool = False, own: OwnPackages | None = None) -> Home:
    """With `exports`, import what exporting and quantizing need once, before the first fork."""
    return Home(
        {**environment(own), WARM: "1"},
        logs,
        f"{WORKER}:{'prepare_exporting' if exports else 'prepare'}",
        "onnxruntime and onnxruntime-qnn",
        session("test_onnx"),
        own.python if own else sys.executable,
    )


def require_installed() -> None:
    require_packages(NEEDED, Fix("{} makes .nox/onnx, whose bin/python has it", ("test_onnx",)))


def versions() -> dict[str, Metric]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


@dataclass(frozen=True, slots=True)
class OnnxPlan(Plan):
    programs: tuple[OnnxProgram, ...]
    pairs: tuple[CrossChecked, ...] = ()
    """Programs beside those that ExecuTorch made of the same models."""


def plan_of(programs: Sequence[OnnxProgram], selection: Selection, work: WorkOptions) -> OnnxPlan:
    logs = selection.reports.absolute() / "onnx"
    return OnnxPlan(tuple(programs), selection, work, logs, baselines_of(programs, selection.profile))


def order_of(program: OnnxProgram) -> dict[str, Any]:
    """Programs of equal runs share a quantized model."""
    run = digest_of(program.request["run"])
    return {**program.order, "cwd": cwd(), "quantized as": run[:16]}


@dataclass(frozen=True)
class OnnxStep(CachedStep):
    """Programs of one model share its export; those of one run its quantized model."""

    plan: OnnxPlan

    def home(self, own: OwnPackages) -> Home:
        # Torch and its exporter, which take seconds to import, are for factories alone.
        exports = any(program.case.factory for program in self.plan.programs)
        return home_of(self.plan.logs, exports=exports, own=own)

    def request(self, program: OnnxProgram) -> dict[str, Any]:
        return {**order_of(program), **self.options(program)}

    def options(self, program: OnnxProgram) -> dict[str, Any]:
        """What is asked beside the program."""
        return {}

    def preparing(self, program: OnnxProgram) -> dict[str, Any]:
        """How the model is prepared."""
        return {"drawn": True}

    def key(self, program: OnnxProgram, results: CachedResults) -> Key:
        """The run, and what its model's samples are judged by; the export gives model and samples."""
        case = program.request["case"]
        files: list[Metric] = [results.digest(path) for path in files_of(program.run.options)]
        options = {name: value for name, value in self.options(program).items() if name != "seconds"}
        return {
            "run": program.request["run"],
            "case": {name: case[name] for name in ("non_finite", "recorded")},
            "chip": soc_named(program.soc).model_dump(mode="json"),
            "calibrating": calibrating(program.case, program.run),
            "options": options,
            "files of options": files,
        }

    def export(self, program: OnnxProgram) -> ChildTask:
        name = self.groups[program.name]
        request = {**program.order, "cwd": cwd(), "preparing": self.preparing(program)}
        request["log"] = str((self.plan.logs / f"{name}.export.log").absolute())
        return ChildTask(name, f"{PROGRAM}:export", request, self.timeout, self.flag)

    def export_key(self, program: OnnxProgram, reply: Mapping[str, Any]) -> Key:
        rows: Key = reply["rows"]
        return rows

    @cached_property
    def groups(self) -> dict[str, str]:
        return model_names(self.plan.programs)

    def cost(self, program: OnnxProgram) -> Job:
        size = list(self.groups.values()).count(self.groups[program.name])
        seconds = SECONDS_PREPARE / size + _seconds(program, self.plan.baselines)
        return Job(program.name, seconds, WORKER_MEMORY)

    def ended(self, program: OnnxProgram, gone: WorkerDied, log: Path) -> Failure:
        return explained_end(gone, log)


@dataclass(frozen=True)
class CompileOnnx(OnnxStep):
    kind = "onnx"
    title = "programs"
    function = f"{PROGRAM}:compiled"
    # A context is never the same to the bit, and ONNX Runtime adds in another order with other threads.
    repeats: ClassVar[Repeats | None] = Repeats(
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

    new_baseline: bool = False
    """Whether a cached result that is worse than the baseline counts: it becomes the baseline."""

    def preparing(self, program: OnnxProgram) -> dict[str, Any]:
        """Each run takes as many of the samples as it says, from the first on."""
        return {"calibration": max(calibrating(program.case, run) for run in program.case.runs)}

    def options(self, program: OnnxProgram) -> dict[str, Any]:
        return {"chips to estimate": self.chips_to_estimate(program) if program.run.forecast else []}

    @staticmethod
    def chips_to_estimate(program: OnnxProgram) -> list[str]:
        table = load_forecasts()
        phones = [*program.run.budget, *table.of_chip(program.soc)]
        return list(table.chips(program.run.kind, phones))

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        findings = list(findings_of(program, result))
        if not self.new_baseline:
            margin_db = load_tolerances().sqnr_margin_db
            findings += changed(program, result, self.plan.baseline(program), margin_db)
        return verdict(findings) == "pass"

    def line(self, program: OnnxProgram, result: Result) -> Line:
        if result.failure or not was_compiled(result):
            return line_of(result)
        context = context_of(result)
        words = with_samples(in_words(context["near"]), context["each_db"])
        return Line("passed", words) if self.accepts(program, result) else failed(words)


@dataclass(frozen=True)
class CompileForMetric(CompileOnnx):
    """Keeps the outputs, which a metric is computed of each time."""

    kind = "onnx-outputs"
    keeps_files = True

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        return True

    def options(self, program: OnnxProgram) -> dict[str, Any]:
        return {**super().options(program), "keeps_outputs": True}


def home_of_metrics(plan: OnnxPlan, own: OwnPackages) -> Home:
    return home_of(plan.logs, own=own)


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
        f"{WORKER}:answer",
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
    without = [program for program in plan.programs if not program.case.metric]
    results = run_cached_step(CompileOnnx(plan, new_baseline), without)
    compiled = run_cached_step(CompileForMetric(plan, new_baseline), with_metric)
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
