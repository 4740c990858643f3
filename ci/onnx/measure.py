"""Every chosen program compiled, run and reloaded by workers, model by model; what is unchanged is kept."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.engine.installed import packages
from ci.engine.jobs import Job, default_slots, memory_budget, run_jobs
from ci.engine.memo import VerdictCache, digest_of_files, key_of
from ci.engine.progress import Line, failed, progress
from ci.engine.workers.parent import WorkerSlot
from ci.onnx.graph import external_files, load_graph
from ci.onnx.options import files_of
from ci.onnx.process import Crashed, OnnxWorker, Refused, setup_of
from ci.onnx.profile import slowest
from ci.onnx.samples import FACTORY
from ci.onnx.suite import Program
from ci.suites.baseline import Baseline
from ci.suites.imports import closure
from provisioning.base.diagnosis import explain
from provisioning.base.errors import ToolkitError
from provisioning.base.findings import Metric
from provisioning.base.settings import ROOT
from provisioning.manifest import soc_named

FORMAT = 1
"""Part of every key; a new value does everything again."""

PACKAGES = ("onnx", "onnxruntime", "onnxruntime-qnn", "onnxscript", "torch", "numpy")
JUDGED_LATER = {"thresholds", "tags", "socs", "label"}
TOOLKIT = (
    *(
        f"ci/onnx/{name}.py"
        for name in ("arrays", "context", "engine", "graph", "precision", "samples", "steps")
    ),
    *(f"ci/suites/{name}.py" for name in ("accuracy", "compiler_log", "factory", "imports")),
)
"""The files of ours that decide what a program becomes and how it is measured."""

WORKER_MEMORY = 1400 << 20
SECONDS_PREPARE, SECONDS_PROGRAM = 8.0, 3.0
"""What a model and a program of it take where nothing is known, for the order of work and the estimate."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a program: what the worker said, or a fault."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    rule: str = ""
    message: str = ""
    remedy: str = ""
    cached: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    programs: tuple[Program, ...]
    basis: Mapping[str, Metric]
    baselines: dict[Path, Baseline]
    logs: Path
    jobs: int | None
    timeout: float
    keep: bool

    @property
    def versions(self) -> Mapping[str, Metric]:
        found = self.basis.get("versions")
        return found if isinstance(found, dict) else {}

    def baseline(self, program: Program) -> Baseline:
        return self.baselines[program.suite]

    def key(self, program: Program) -> str:
        return key_of({**self.basis, **_inputs(program)})


def basis() -> dict[str, Metric]:
    """What every program depends on beside its own case; looked at without importing it."""
    return {
        "format": FORMAT,
        "versions": {"python": platform.python_version(), **packages(PACKAGES, "test_onnx")},
        "toolkit": digest_of_files(ROOT, [ROOT / name for name in TOOLKIT]),
    }


def measured(plan: Plan, cache: VerdictCache, fine: Callable[[Program, Result], bool]) -> dict[str, Result]:
    """Every program by name: from the cache, or done now, model by model on as many workers as fit.

    A kept one that is not fine is done anew, so that what it leaves is there to look at."""
    keys = {program.name: plan.key(program) for program in plan.programs}
    results = {
        name: Result(kept, cached=True) for name, key in keys.items() if (kept := cache.get(key)) is not None
    }
    results = {
        program.name: results[program.name]
        for program in plan.programs
        if program.name in results and fine(program, results[program.name])
    }
    waiting = [program for program in plan.programs if program.name not in results]
    sys.stderr.write(f"{len(plan.programs)} programs: {len(results)} unchanged, {len(waiting)} to compile\n")
    while waiting:
        made = _compiled(plan, waiting, lambda name, result: cache.put(keys[name], dict(result.facts)))
        results |= made
        # A crash takes the rest of its model with it, which then has another turn.
        waiting = [program for program in waiting if program.name not in made]
    cache.prune()
    return results


def _compiled(
    plan: Plan, programs: Sequence[Program], keep: Callable[[str, Result], None]
) -> dict[str, Result]:
    """What became of at least one program of each model; `keep` is given the good ones as they come."""
    plan.logs.mkdir(parents=True, exist_ok=True)
    models = models_of(programs)
    jobs = jobs_of(programs, plan.baselines)
    slots = min(plan.jobs or default_slots(), len(jobs))
    threads = max(1, default_slots() // slots)
    setup = setup_of(plan.logs, threads=threads, timeout=plan.timeout)
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as scratch,
        progress("models", jobs, slots, line_of) as shown,
    ):

        def work(job: Job, worker: OnnxWorker) -> dict[str, Result]:
            made = do_model(plan, models[job.name], worker, Path(scratch) / job.name.replace("/", "-"))
            # Kept now, so that an interrupted run has not compiled for nothing.
            for name, result in made.items():
                if not result.rule:
                    keep(name, result)
            return made

        done = run_jobs(
            jobs,
            lambda: WorkerSlot(lambda: OnnxWorker(setup), work),
            slots=slots,
            memory=memory_budget(),
            observer=shown,
        )
    return {name: result for made in done.values() for name, result in made.items()}


def models_of(programs: Sequence[Program]) -> dict[str, list[Program]]:
    """Programs by their model's name; cases of one name in two suites are told apart."""
    suites: dict[str, list[Path]] = {}
    found: dict[str, list[Program]] = {}
    for program in programs:
        known = suites.setdefault(program.case_name, [])
        if program.suite not in known:
            known.append(program.suite)
        number = known.index(program.suite)
        found.setdefault(program.case_name + (f"/{number + 1}" if number else ""), []).append(program)
    return found


def jobs_of(programs: Sequence[Program], baselines: Mapping[Path, Baseline]) -> list[Job]:
    """One job a model, with the seconds that its baseline has for its programs."""

    def seconds(program: Program) -> float:
        recorded = baselines[program.suite].of(program.name)
        return (recorded.cpu_seconds if recorded else None) or SECONDS_PROGRAM

    return [
        Job(name, SECONDS_PREPARE + sum(map(seconds, mine)), WORKER_MEMORY)
        for name, mine in models_of(programs).items()
    ]


def do_model(plan: Plan, programs: Sequence[Program], worker: OnnxWorker, scratch: Path) -> dict[str, Result]:
    """The programs of one model, which is exported once and quantized once for each run.

    All of them, unless one takes the worker down: then those up to it, and no others."""
    results: dict[str, Result] = {}
    case, name = programs[0].case, programs[0].case_name
    folder = scratch / "model"
    folder.mkdir(parents=True)
    try:
        prepared = _ordered(
            worker,
            "prepare",
            plan.logs / f"{name}.log",
            factory=case.factory or "",
            arguments=case.arguments,
            search_path=str(programs[0].search_path),
            model=str(programs[0].file(case.model)) if case.model else "",
            dimensions=case.dimensions,
            calibrate=case.calibrate,
            inferences=case.inferences,
            calibration=max(program.run.calibration for program in programs),
            into=str(folder),
        )
        for run in dict.fromkeys(program.run.name for program in programs):
            mine = [program for program in programs if program.run.name == run]
            results |= _do_run(plan, mine, worker, prepared, folder, scratch / run)
    except _Fault as fault:
        # Where it has no program, it is the model's own: nothing of it can be made.
        results |= fault.results or {program.name: fault.result for program in programs}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return results


def _do_run(
    plan: Plan,
    programs: Sequence[Program],
    worker: OnnxWorker,
    prepared: Mapping[str, Any],
    folder: Path,
    scratch: Path,
) -> dict[str, Result]:
    run, name = programs[0].run, programs[0].case_name
    scratch.mkdir()
    common: dict[str, Any] = {"prepared": str(folder), "precision": run.precision}
    try:
        variant = _ordered(
            worker,
            "variant",
            plan.logs / f"{name}-{run.name}.log",
            model=prepared["model"],
            calibration=run.calibration,
            per_channel=run.per_channel,
            into=str(scratch),
            **common,
        )
    except _Fault as fault:
        fault.results = {program.name: fault.result for program in programs}
        if fault.fatal:
            raise
        return fault.results
    results: dict[str, Result] = {}
    for program in programs:
        log = plan.logs / f"{program.name.replace('/', '-')}.log"
        into = scratch / program.soc
        began = time.monotonic()
        try:
            facts = _ordered(
                worker,
                "case",
                log,
                model=variant["model"],
                source=prepared["source"],
                soc=program.soc,
                settings=run.settings(program.soc).as_dict(),
                profiling=run.profiling,
                non_finite=program.case.non_finite,
                into=str(into),
                **common,
            )
        except _Fault as fault:
            results[program.name] = fault.result
            if fault.fatal:
                fault.results = results
                raise
            continue
        if path := facts.pop("profile", ""):
            facts["slowest"] = [str(cost) for cost in slowest(Path(path))]
        if plan.keep:
            kept = plan.logs / program.name
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(into, kept)
        shutil.rmtree(into, ignore_errors=True)
        log.unlink(missing_ok=True)
        results[program.name] = Result(facts, seconds=time.monotonic() - began)
    return results


class _Fault(Exception):
    """An order that failed; `fatal` when the worker is gone with it."""

    def __init__(self, result: Result, *, fatal: bool) -> None:
        super().__init__(result.message)
        self.result, self.fatal = result, fatal
        self.results: dict[str, Result] = {}
        """What was known when it happened."""


def _ordered(worker: OnnxWorker, what: str, log: Path, **parameters: Any) -> dict[str, Any]:
    try:
        return worker.order(what, log, **parameters)
    except Refused as refused:
        problems = refused.details.get("problems") or [{}]
        rule = str(problems[0].get("rule") or RULES.get(refused.kind, "onnx-refused"))
        raise _Fault(
            Result(rule=rule, message=refused.message, remedy=refused.remedy), fatal=False
        ) from refused
    except Crashed as crashed:
        message, remedy = crashed.message, crashed.remedy
        known = explain(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
        if known:
            message, remedy = f"{message}. {known[0]}", known[0].fix
        raise _Fault(
            Result(rule=f"onnx-{crashed.kind}", message=message, remedy=remedy), fatal=True
        ) from crashed


RULES = {"NotOnProvider": "onnx-cpu-node", "UsageError": "onnx-suite", "Unforeseen": "onnx-unforeseen"}


def _inputs(program: Program) -> dict[str, Metric]:
    """Changing anything that could change the verdict changes this."""
    case = program.case
    files: dict[str, Metric] = {}
    roots = [program.search_path, ROOT]
    for dotted in filter(FACTORY.fullmatch, (case.factory or "", case.calibrate)):
        for path in closure(dotted.partition(":")[0], roots):
            root = next(root for root in roots if path.is_relative_to(root))
            files[path.relative_to(root).as_posix()] = digest_of_files(path.parent, [path])
    if case.model:
        files["model"] = _model_digest(program.file(case.model))
    if case.calibrate:
        folder = program.file(case.calibrate)
        files["calibrate"] = digest_of_files(folder, list(folder.rglob("*.np[yz]")))
    for path in files_of(program.run.options):
        files[f"option {path}"] = digest_of_files(path.parent, [path])
    return {
        "files": files,
        "case": case.model_dump(mode="json", exclude={"runs"}),
        "run": program.run.model_dump(mode="json", exclude=JUDGED_LATER),
        "soc": {program.soc: soc_named(program.soc).model_dump()},
    }


def _model_digest(model: Path) -> str:
    """With its external data, wherever below its folder that is."""
    folder = model.parent.resolve()
    try:
        whole = folder / model.name
        return digest_of_files(folder, [whole, *external_files(load_graph(whole), folder)])
    except (ToolkitError, OSError) as error:
        # The worker says it, of this model alone; and what was not made is not kept.
        return str(error)


def line_of(made: Mapping[str, Result]) -> Line:
    bad = [f"{name}: {each.message}" for name, each in made.items() if each.rule]
    return failed("; ".join(bad)) if bad else Line("passed")
