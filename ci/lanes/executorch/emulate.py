"""`test_emulator`: run every chosen program on the HTP emulator and compare it with PyTorch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ci.engine.inputs import Touched, search_key
from ci.engine.installed import ready_runner
from ci.engine.jobs import Job
from ci.engine.memo import Memo
from ci.engine.progress import Line, failed
from ci.engine.work import Done, Failure, How, Result, do, empty_folder
from ci.engine.workers.parent import Worker
from ci.lanes.executorch import KEPT, PROGRAM
from ci.lanes.executorch.compile import LOG, Plan, ProgramTask, compile_programs, started
from ci.lanes.executorch.judge import costs_of, failure_finding, kept_on_cpu, missing_kernels, program_file
from ci.lanes.executorch.reload import judged, reloads
from ci.lanes.executorch.stage import chosen_programs, lane_row, plan_of
from ci.lanes.executorch.suite import SUITES, Program
from ci.operators.table import inexact
from ci.pipeline.accuracy import missed, rounded
from ci.pipeline.baseline import Recorded
from ci.pipeline.findings import (
    accuracy_message,
    chip_differs,
    known_faults,
    not_passed,
    notes,
    placeholder,
    shown_thresholds,
    verdict,
)
from ci.pipeline.models.own_packages import record
from ci.pipeline.options import StageOptions
from ci.pipeline.stage import accepted, counts, finish, memos_of, print_list, update_baselines
from provisioning.base.files import hash_file
from provisioning.base.findings import Artifact, Finding, Metric, Severity
from provisioning.base.settings import DEFAULT_TARGET
from provisioning.base.stage_run import StageRun

RUN_SECONDS, RUN_MEMORY = 2.0, 300 << 20


@dataclass(frozen=True)
class Run(ProgramTask):
    """One program on the emulator."""

    compiled: Result
    runner: Path
    folder: Path
    """Everything of this run, to look at if the result is refused."""
    request: Mapping[str, Metric]
    """What the worker gets beside the program and the runner. It is in the key."""

    def work(self, worker: Worker, shared: dict[str, Any]) -> Done | Failure:
        assert self.compiled.folder is not None
        reply = worker.ask(
            {
                "runner": str(self.runner),
                "program": str(self.compiled.folder / PROGRAM),
                "compiled": str(self.compiled.folder),
                "folder": str(empty_folder(self.folder)),
                **self.request,
            }
        )
        touched = Touched.of(reply.pop("touched"))
        return Done(reply, touched, evidence=self.folder, own=(self.compiled.folder,))

    @property
    def log(self) -> Path:
        return self.folder / "run.log"


def run(options: StageOptions, *, reload: bool, keep_programs: bool) -> int:
    selection = options.selection
    if options.list_only:
        return print_list(chosen_programs(options.choice, selection))
    stage = StageRun.as_typed("test_emulator", selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, "emulator-not-run"):
        runner = ready_runner(os.environ, selection.reports)
        programs = chosen_programs(options.choice, selection)
        plan = plan_of(programs, selection, options.work, "emulator")
        _refuse_others(plan)
        compiled = compile_programs(plan)
        measured = measure(plan, runner, compiled)
        figures = {name: each.facts["figures"] for name, each in measured.items() if ran(each)}
        write = partial(update, plan, compiled, measured)
        current = accepted(options.accept, SUITES, plan, figures, write, stage)
        plan = replace(plan, programs=current)
        judge(stage, plan, compiled, measured)
        if keep_programs:
            _keep(stage, compiled, selection.reports / KEPT)
        record(stage, plan.programs, selection)
        if reload:
            runnable = {name: compiled[name] for name in figures}
            again = reloads(plan, runnable)
            stage.findings += judged(plan, runnable, again)
            stage.metrics["loaded again"] = len(again)
    return finish(stage, selection)


def _refuse_others(plan: Plan) -> None:
    for program in plan.programs:
        if program.backend != "htp":
            plan.refused.setdefault(
                program.name,
                Finding(
                    "emulator-backend",
                    Severity.ERROR,
                    program.name,
                    f"the emulator has the HTP alone, and this program is for the {program.backend}",
                    SUITES.repeat(program, "test_lowering"),
                ),
            )


def ran(result: Result) -> bool:
    """Whether there are figures."""
    return not result.failure and not result.facts["rule"]


def measure(plan: Plan, runner: Path, compiled: Mapping[str, Result]) -> dict[str, Result]:
    """Every compiled program's result by name.

    A program that misses its thresholds is run again each time, so that its outputs can be looked at."""
    environment, work = plan.environment, plan.work
    programs = {program.name: program for program in plan.programs}
    memos = memos_of(plan.programs, "emulator", plan.selection.store, environment, reuse=work.cache)
    tasks = []
    for name, each in compiled.items():
        if each.folder is None:
            continue
        memo, program = memos[programs[name].suite], programs[name]
        recorded = plan.baseline(program).of(name)
        cost = Job(name, (recorded.run_seconds if recorded else None) or RUN_SECONDS, RUN_MEMORY)
        basis: dict[str, Metric] = {"QNN": dict(plan.basis.sdk), **search_key(memo.roots, environment)}
        tasks.append(run_task(program, each, memo, cost, runner, basis, plan.logs / name))

    def worker(threads: int, count: int) -> Worker:
        command, session = ("-m", "ci.lanes.executorch.run_worker"), "nox -s test_emulator"
        logs = plan.logs
        return started(command, environment, threads, logs, work.run_timeout, session, "numpy")

    def accept(name: str, result: Result) -> bool:
        return not findings_of(programs[name], result, compiled[name].facts)

    results = do(
        tasks,
        How("runs on the emulator", worker, work.jobs, work.why),
        accept=accept,
        line=line_of,
    )
    for name, result in results.items():
        source = compiled[name].folder
        # An interrupted run leaves its folder behind.
        judged = result.failure and result.failure.blame != "machine"
        kept = result.folder or (plan.logs / name if judged else None)
        if source and kept and kept.is_dir():
            for path in source.glob("*.raw"):
                shutil.copyfile(path, kept / path.name)
    return results


def run_task(
    program: Program,
    compiled: Result,
    memo: Memo,
    cost: Job,
    runner: Path,
    basis: Mapping[str, Metric],
    folder: Path,
) -> Run:
    """`basis` is what every run depends on beside its program."""
    assert compiled.folder is not None
    request: dict[str, Metric] = {
        **{name: compiled.facts[name] for name in ("inputs", "expected", "reference")},
        "non_finite": program.case.non_finite,
    }
    key: dict[str, Metric] = {
        **basis,
        **request,
        "program": dict(memo.files_of(compiled.folder, without=LOG)),
        "runner": memo.roots.name(str(runner)),
    }
    return Run(program, key, memo, cost, compiled, runner, folder, request)


def line_of(name: str, result: Result) -> Line:
    if result.failure:
        return failed(f"{result.failure.kind}: {result.failure.message}")
    facts = result.facts
    if facts["rule"]:
        text = f"{facts['rule']}: {facts['message']}"
        return failed(text) if result.folder else Line("ran", f"fails as the suite expects: {text}")
    return Line("ran", f"SQNR {facts['figures']['sqnr_db']:.1f} dB")


def judge(
    stage: StageRun, plan: Plan, compiled: Mapping[str, Result], measured: Mapping[str, Result]
) -> None:
    rows: dict[str, Metric] = {}
    for program in plan.programs:
        again = SUITES.repeat(program, "test_emulator")
        lowered, result = compiled.get(program.name), measured.get(program.name)
        findings: list[Finding]
        if lowered is None:
            findings = [plan.refused[program.name]]
        elif lowered.failure:
            findings = [failure_finding(program, lowered.failure, "test_emulator")]
        else:
            assert result is not None
            findings = findings_of(program, result, lowered.facts)
            findings += kept_on_cpu(program, lowered.facts)
            findings += notes(program, lowered.facts, again)
            every = SUITES.repeat(program, "test_emulator", every_chip=True)
            findings += placeholder(program, f"{every} --update-thresholds")
        stage.findings += findings
        if result is not None and result.folder and verdict(findings) == "fail":
            stage.artifacts += [Artifact.of("failure", path) for path in sorted(result.folder.rglob("*.raw"))]
        rows[program.name] = row(program, lowered, result, findings, plan.baseline(program).of(program.name))
    stage.findings += known_faults(stage.findings, plan.basis.build_id, "executorch")
    stage.findings += not_passed(plan.programs, compiled)
    stage.metrics |= {
        **counts(rows, measured.values(), compiled.values()),
        "build_id": plan.basis.build_id,
    }


def findings_of(program: Program, result: Result, compiled: Mapping[str, Any]) -> list[Finding]:
    """What is wrong with the run of a program with these compile facts."""
    again = SUITES.repeat(program, "test_emulator")
    where = f"; inputs, outputs and log are in {result.folder}" if result.folder else ""

    def wrong(rule: str, message: str, fix: str = again) -> Finding:
        return Finding(f"emulator-{rule}", Severity.ERROR, program.name, message + where, fix)

    if result.failure:
        failure = result.failure
        fix = f"{failure.fix}; then {again}" if failure.fix else again
        return [wrong(failure.rule, failure.message, fix)]
    facts = result.facts
    if fault := program.run.emulator_fault:
        if fault in facts["message"]:
            return []
        seen = facts["message"] or "it runs"
        return [wrong("fault", f"expected it not to run ({fault}), found: {seen}; correct the suite")]
    if facts["rule"] == "run" and (missing := list(missing_kernels(compiled))):
        return [wrong("run", f"{message} ({facts['message']})", fix or again) for message, fix in missing]
    if facts["rule"]:
        return [wrong(facts["rule"], facts["message"])]
    figures: Mapping[str, float] = facts["figures"]
    misses = missed(program.run.effective_thresholds, figures)
    if not misses:
        return []
    losses: Sequence[Mapping[str, Any]] = compiled.get("losses", ())
    lost = f"quantizing loses most in {lost_at(losses[0])}" if losses else ""
    names = (each["operator"] for each in compiled.get("nodes", {}).values())
    known = [
        f"{each.message} ({each.command})"
        for each in inexact(names, program.run.scheme, program.soc)
        if each.compiles
    ]
    lost = "; ".join([*([lost] if lost else []), *known])
    return [
        wrong(
            "accuracy",
            accuracy_message(misses, figures, lost),
            f"{SUITES.repeat(program, 'divergence')} names the first operator that differs; then {again}"
            if chip_differs(misses, figures)
            else again,
        )
    ]


def lost_at(loss: Mapping[str, Any]) -> str:
    where = loss["operator"] + (f" of {loss['module']}" if loss["module"] else "")
    where += f" at {loss['source']} `{loss['code']}`" if loss["source"] else ""
    return f"{where} ({loss['before_db']:g} dB before it, {loss['after_db']:g} dB after)"


def row(
    program: Program,
    lowered: Result | None,
    result: Result | None,
    findings: Sequence[Finding],
    agreed: Recorded | None,
) -> dict[str, Metric]:
    shown = lane_row(program, findings, "test_emulator") | {
        "thresholds": shown_thresholds(program),
        "expected_fault": program.run.emulator_fault,
    }
    if lowered is None or result is None or not ran(result):
        return shown
    return shown | {
        "sha256": hash_file(program_file(lowered)),
        "costs": dict(costs_of(lowered)),
        "cached": result.cached,
        "not_cached_because": result.not_remembered,
        "figures": dict(result.facts["figures"]),
        "baseline": dict(agreed.accuracy) if agreed else {},
        **result.facts["times"],
    }


def _keep(stage: StageRun, compiled: Mapping[str, Result], folder: Path) -> None:
    """Copy the programs that passed there, for whoever ships or attests them."""
    shutil.rmtree(folder, ignore_errors=True)
    rows: Any = stage.metrics["programs"]
    for name, shown in rows.items():
        if shown["verdict"] == "pass" and "sha256" in shown:
            file = folder / f"{name}.pte"
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(program_file(compiled[name]), file)
            stage.artifacts.append(Artifact.of("program", file))


def update(plan: Plan, compiled: Mapping[str, Result], measured: Mapping[str, Result]) -> None:
    """Update the costs and accuracy of the programs that ran, all from one build."""
    values: dict[str, dict[str, object]] = {}
    for name, result in measured.items():
        if ran(result):
            values[name] = {
                "build_id": plan.basis.build_id,
                **costs_of(compiled[name]),
                "accuracy": rounded(result.facts["figures"]),
            }
            if not result.cached:
                values[name]["run_seconds"] = round(result.facts["seconds"], 1)
    update_baselines(SUITES, plan, values)
