"""`test_onnx`: every chosen program compiled, run, reloaded and judged; what is unchanged is kept."""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ci.cache import VerdictCache, digest_of_files, key_of
from ci.installed import packages
from ci.lowering.compare import missed
from ci.lowering.imports import closure
from ci.lowering.suite import SHIPPED as LOWERING_SUITE
from ci.onnx.crosscheck import Lane, executorch_lane, key_of_program, markdown
from ci.onnx.process import Crashed, OnnxWorker, Refused, require_installed, setup_of
from ci.onnx.profile import slowest
from ci.onnx.suite import SHIPPED, Program, choose, programs_of
from ci.progress import Line, failed, progress
from ci.scheduler import Job, default_slots, memory_budget, run_jobs
from ci.suites.stage import finish
from ci.workers.parent import WorkerSlot
from provisioning.cli import command_line
from provisioning.diagnosis import explain
from provisioning.errors import UsageError
from provisioning.findings import Artifact, Finding, Metric, Severity, StageRun
from provisioning.manifest import soc_named
from provisioning.settings import DEFAULT_TARGET, ROOT, Selection, selection_of

FORMAT = 1
"""Part of every key; a new value does everything again."""

PACKAGES = ("onnx", "onnxruntime", "onnxruntime-qnn", "onnxscript", "torch", "numpy")
JUDGED_LATER = {"thresholds", "tags", "socs", "label"}
TOOLKIT = (
    *(
        f"ci/onnx/{name}.py"
        for name in ("arrays", "context", "engine", "graph", "precision", "samples", "steps")
    ),
    *(f"ci/lowering/{name}.py" for name in ("compare", "compiler_log", "factory")),
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
    logs: Path
    jobs: int | None
    timeout: float
    keep: bool

    @property
    def versions(self) -> Mapping[str, Metric]:
        found = self.basis.get("versions")
        return found if isinstance(found, dict) else {}

    def key(self, program: Program) -> str:
        return key_of({**self.basis, **_inputs(program)})


def run(args: argparse.Namespace) -> int:
    selection = selection_of(args)
    _check(args, selection)
    programs = choose(programs_of(args.suite or SHIPPED, selection.socs), tags=args.tag, words=args.words)
    if args.list:
        for program in programs:
            sys.stdout.write(f"{program.name}  [{', '.join(program.run.tags)}]\n")
        return 0
    command = command_line("nox -s test_onnx --", sys.argv[2:]).removesuffix(" --")
    stage = StageRun("test_onnx", selection.profile, DEFAULT_TARGET, command)
    with stage.reported(selection.reports, "onnx-not-run"):
        require_installed()
        plan = Plan(
            programs=tuple(programs),
            basis=basis(),
            logs=selection.reports.absolute() / "onnx",
            jobs=args.jobs,
            timeout=args.timeout,
            keep=args.keep,
        )
        cache = VerdictCache(selection.store, "onnx", enabled=not args.no_cache)
        results = measured(plan, cache)
        judge(stage, plan, results, selection)
    return finish(stage, selection)


def basis() -> dict[str, Metric]:
    """What every program depends on beside its own case; looked at without importing it."""
    return {
        "format": FORMAT,
        "versions": {"python": platform.python_version(), **packages(PACKAGES, "test_onnx")},
        "toolkit": digest_of_files(ROOT, [ROOT / name for name in TOOLKIT]),
    }


def measured(plan: Plan, cache: VerdictCache) -> dict[str, Result]:
    """Every program by name: from the cache, or done now, model by model on as many workers as fit."""
    keys = {program.name: plan.key(program) for program in plan.programs}
    results = {
        name: Result(kept, cached=True) for name, key in keys.items() if (kept := cache.get(key)) is not None
    }
    results = {
        program.name: results[program.name]
        for program in plan.programs
        if program.name in results and not _misses(program, results[program.name])
    }
    waiting: dict[str, list[Program]] = {}
    for program in plan.programs:
        if program.name not in results:
            waiting.setdefault(program.case_name, []).append(program)
    count = sum(map(len, waiting.values()))
    sys.stderr.write(f"{len(plan.programs)} programs: {len(results)} unchanged, {count} to compile\n")
    if not waiting:
        return results
    plan.logs.mkdir(parents=True, exist_ok=True)
    jobs = [
        Job(name, SECONDS_PREPARE + SECONDS_PROGRAM * len(programs), WORKER_MEMORY)
        for name, programs in waiting.items()
    ]
    slots = min(plan.jobs or default_slots(), len(jobs))
    threads = max(1, default_slots() // slots)
    setup = setup_of(plan.logs, threads=threads, timeout=plan.timeout)
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as scratch,
        progress("models", jobs, slots, line_of) as shown,
    ):

        def work(job: Job, worker: OnnxWorker) -> dict[str, Result]:
            made = do_case(plan, waiting[job.name], worker, Path(scratch) / job.name)
            # Kept as it comes, so that an interrupted run has not compiled for nothing.
            for name, result in made.items():
                if not result.rule:
                    cache.put(keys[name], dict(result.facts))
            return made

        done = run_jobs(
            jobs,
            lambda: WorkerSlot(lambda: OnnxWorker(setup), work),
            slots=slots,
            memory=memory_budget(),
            observer=shown,
        )
    for made in done.values():
        results |= made
    cache.prune()
    return results


def do_case(plan: Plan, programs: Sequence[Program], worker: OnnxWorker, scratch: Path) -> dict[str, Result]:
    """All programs of one model: it is exported once and quantized once for each run."""
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
            calibrate=str(programs[0].file(case.calibrate)) if case.calibrate else "",
            inferences=case.inferences,
            calibration=max(program.run.calibration for program in programs),
            into=str(folder),
        )
        for run in dict.fromkeys(program.run.name for program in programs):
            mine = [program for program in programs if program.run.name == run]
            results |= _do_run(plan, mine, worker, prepared, folder, scratch / run)
    except _Fault as fault:
        results |= fault.results
        unreached = replace(fault.result, message=f"not reached: {fault.result.message}")
        first = fault.result if not results else unreached
        results |= {program.name: first for program in programs if program.name not in results}
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
        if fault.fatal:
            raise
        return {program.name: fault.result for program in programs}
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
            message, remedy = f"{message}. {known[0]}", known[0].mend
        raise _Fault(
            Result(rule=f"onnx-{crashed.kind}", message=message, remedy=remedy), fatal=True
        ) from crashed


RULES = {"NotOnProvider": "onnx-cpu-node", "UsageError": "onnx-suite", "Unforeseen": "onnx-unforeseen"}


def judge(stage: StageRun, plan: Plan, results: Mapping[str, Result], selection: Selection) -> None:
    rows: dict[str, Metric] = {}
    for program in plan.programs:
        result = results[program.name]
        found = list(findings_of(program, result))
        stage.findings += found
        bad = any(finding.severity is Severity.ERROR for finding in found)
        rows[program.name] = _row(program, result, "fail" if bad else "pass")
    cross_check(stage, plan, results, selection)
    builds = {result.facts["beside"]["record"]["build_id"] for result in results.values() if result.facts}
    stage.metrics |= {
        "selected": len(plan.programs),
        "cached": sum(result.cached for result in results.values()),
        "failed": sum(isinstance(row, dict) and row["verdict"] != "pass" for row in rows.values()),
        "socs": len({program.soc for program in plan.programs}),
        "build_id": ", ".join(sorted(builds)) or "unknown",
        "versions": dict(plan.versions),
        "programs": rows,
    }


def findings_of(program: Program, result: Result) -> Iterator[Finding]:
    again = repeat(program)

    def wrong(rule: str, message: str, remedy: str = "") -> Finding:
        said = f"{remedy}; then {again}" if remedy else again
        return Finding(rule, Severity.ERROR, program.name, message, said)

    if result.rule:
        yield wrong(result.rule, result.message, result.remedy)
        return
    for form in ("beside", "embedded"):
        facts = result.facts[form]
        if not facts["reload_equal"]:
            yield wrong(
                "onnx-reload",
                f"the reloaded context ({form}) gives other outputs than the session that made it",
            )
        for node in facts["audit"]["unsupported"]:
            yield wrong("onnx-cpu-node", f"{node['node']} ({node['operator']}): {node['reason']}")
    if misses := _misses(program, result):
        yield wrong("onnx-accuracy", "; ".join(misses), "raise the precision or calibrate with more samples")
    if top := result.facts.get("slowest"):
        yield Finding(
            "onnx-profile",
            Severity.NOTE,
            program.name,
            f"slowest operators: {', '.join(top)}",
            "cycles are the emulator's model of the chip; measure on a device before you optimize",
        )


def cross_check(
    stage: StageRun, plan: Plan, results: Mapping[str, Result], selection: Selection
) -> list[tuple[str, Lane, Lane]]:
    """Side by side with what the lowering suite's reports say of the same factory."""
    others = executorch_lane(selection.reports, LOWERING_SUITE)
    pairs: list[tuple[str, Lane, Lane]] = []
    for program in plan.programs:
        other, result = others.get(key_of_program(program)), results[program.name]
        if other is None or not result.facts:
            continue
        pairs.append((program.name, lane_of(result), other))
    for name, ours, other in pairs:
        stage.findings.append(
            Finding(
                "onnx-cross-check",
                Severity.NOTE,
                name,
                f"ONNX Runtime: {ours}. ExecuTorch: {other}",
                "nothing to do: two compilers' figures, side by side",
            )
        )
    if pairs:
        path = plan.logs / "cross_check.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(markdown(pairs), encoding="utf-8")
        stage.artifacts.append(Artifact.of("cross-check", path))
    elif any(program.case.factory for program in plan.programs):
        stage.add(
            "onnx-cross-check",
            Severity.NOTE,
            "test_onnx",
            f"no program is in the reports of ExecuTorch's lane in {selection.reports}: nothing was compared",
            "nox -s test_lowering test_emulator, then this again",
        )
    stage.metrics["cross_checked"] = len(pairs)
    return pairs


def lane_of(result: Result) -> Lane:
    facts = result.facts["beside"]
    ddr = facts["ddr"] or {}
    return Lane(
        cosine=facts["near"]["cosine"],
        sqnr_db=facts["near"]["sqnr_db"],
        size=facts["bytes"],
        ddr_read=ddr.get("read"),
        ddr_written=ddr.get("written"),
        build_id=facts["record"]["build_id"],
    )


def repeat(program: Program) -> str:
    suite = [] if program.suite == SHIPPED else ["--suite", str(program.suite)]
    return " ".join(["nox", "-s", "test_onnx", "--", *suite, "-k", program.name])


def _row(program: Program, result: Result, verdict: str) -> dict[str, Metric]:
    row: dict[str, Metric] = {
        "case": program.case_name,
        "run": program.run.name,
        "precision": program.run.precision,
        "soc": program.soc,
        "tags": list(program.run.tags),
        "verdict": verdict,
        "command": repeat(program),
        "thresholds": program.run.thresholds.model_dump(exclude_none=True),
    }
    if not result.facts:
        return row
    facts = result.facts["beside"]
    return row | {
        "cached": result.cached,
        "figures": dict(facts["near"]),
        "nodes": facts["audit"]["nodes"],
        "graphs": facts["audit"]["graphs"],
        "bytes": facts["bytes"],
        "ddr": facts["ddr"],
        "slowest": list(result.facts.get("slowest", [])),
    }


def _misses(program: Program, result: Result) -> list[str]:
    figures = result.facts["beside"]["near"]
    return [
        str(each).replace("float eager", "the float model on the CPU")
        for each in missed(program.run.thresholds, figures)
    ]


def _inputs(program: Program) -> dict[str, Metric]:
    """Changing anything that could change the verdict changes this."""
    case = program.case
    files: dict[str, Metric] = {}
    if case.factory:
        roots = [program.search_path, ROOT]
        for path in closure(case.factory.partition(":")[0], roots):
            root = next(root for root in roots if path.is_relative_to(root))
            files[path.relative_to(root).as_posix()] = digest_of_files(path.parent, [path])
    if case.model:
        model = program.file(case.model)
        # Its external data is beside it, under names that only parsing tells: everything there counts.
        beside = [path for path in model.parent.iterdir() if path.is_file()] if model.parent.is_dir() else []
        files["model"] = digest_of_files(model.parent, beside)
    if case.calibrate:
        folder = program.file(case.calibrate)
        files["calibrate"] = digest_of_files(folder, list(folder.rglob("*.np[yz]")))
    return {
        "files": files,
        "case": case.model_dump(mode="json", exclude={"runs"}),
        "run": program.run.model_dump(mode="json", exclude=JUDGED_LATER),
        "soc": {program.soc: soc_named(program.soc).model_dump()},
    }


def _check(args: argparse.Namespace, selection: Selection) -> None:
    if selection.target != DEFAULT_TARGET:
        raise UsageError(
            f"--target {selection.target}: the emulator is for {DEFAULT_TARGET}", remedy="leave --target out"
        )
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs}: expected at least 1", remedy="leave --jobs out")
    if args.suite is not None and not args.suite.is_file():
        raise UsageError(f"--suite {args.suite}: there is no such file", remedy="name a TOML file")


def line_of(made: Mapping[str, Result]) -> Line:
    bad = [f"{name}: {each.message}" for name, each in made.items() if each.rule]
    return failed("; ".join(bad)) if bad else Line("passed")
