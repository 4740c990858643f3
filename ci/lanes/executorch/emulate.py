"""`test_emulator`: run every chosen program on the HTP emulator and compare it with PyTorch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ci.explain.cause import explained
from ci.jobs import Job
from ci.lanes.executorch import KEPT, PROGRAM
from ci.lanes.executorch.compile import COMPILED, ExecutorchPlan, compile_programs
from ci.lanes.executorch.judge import costs_of, failure_finding, kept_on_cpu, missing_kernels, program_file
from ci.lanes.executorch.records import (
    ChipProgram,
    ComparedFiles,
    EmulatorRun,
    MetricRequest,
    Quantized,
    Row,
    RunRequest,
    compiled_in,
    ran_in,
)
from ci.lanes.executorch.reload import judged as judged_again
from ci.lanes.executorch.reload import reloads
from ci.lanes.executorch.run_worker import OUTPUTS
from ci.lanes.executorch.stage import chosen_programs, note_left_out, plan_of_stage
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.models.own_packages import OwnPackages
from ci.operators.faults import Met, faults_in, versions_of
from ci.outcome import Failure, Result, WorkerDied
from ci.plain import as_json, read
from ci.progress import Line, failed
from ci.results import CachedResults, Key
from ci.runner import Runner, find_runner, ready_runner
from ci.suite.accuracy import against_nearest, in_words, missed, rounded, with_samples
from ci.suite.cached_steps import CachedStep, run_cached_step
from ci.suite.findings import (
    BEYOND_FIX,
    Causes,
    accepting,
    accuracy_fix,
    accuracy_message,
    below_usual_of,
    beyond_in_words,
    constant_outputs,
    operator_place,
    placeholder,
    shown_thresholds,
)
from ci.suite.options import StageOptions
from ci.suite.scoring import scores_of
from ci.suite.stage import MeasuredValues, Results, Verdict, accepted, finish, of_program, report, show_list
from ci.work import Home
from provisioning.base.commands import Fix, joined, session
from provisioning.base.files import hash_file
from provisioning.base.findings import Artifact, Edit, Finding, Metric, Place, Severity
from provisioning.base.settings import DEFAULT_TARGET
from provisioning.base.stage_run import StageRun
from provisioning.base.units import in_decibels

RAN = "emulator"
"""The step whose figures are a program's."""
RUN_WORKER = "ci.lanes.executorch.run_worker"
RUN_SECONDS, RUN_MEMORY = 2.0, 300 << 20


STAGE = "test_emulator"


def run(options: StageOptions, *, reload: bool, keep_programs: bool) -> int:
    """The exit code."""
    selection, accept = options.selection, options.accept
    if options.list_only:
        return show_list(chosen_programs(options.choice, selection))
    stage = StageRun.as_typed(STAGE, selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, "emulator-not-run"):
        plan = plan_of_stage(chosen_programs(options.choice, selection), options, "emulator")
        _refuse_other_backends(plan)
        runner = ready_runner(os.environ, selection.reports)
        compiled = compile_programs(plan)
        measured = measure(plan, runner, compiled)
        # What is loaded again, as it was compiled.
        runnable = {name: compiled[name] for name, result in measured.items() if ran(result)}
        again = reloads(plan, runnable) if reload else {}
        results = {COMPILED: compiled, "reload": again, RAN: measured}
        plan = accepted(accept, SUITES, plan, measured_of(plan, results), stage)
        verdicts = {
            program.name: Verdict(_findings_of(plan, program, of), _row_of(plan, program, of))
            for program in plan.programs
            for of in [of_program(program, results)]
        }
        report(stage, SUITES, plan, verdicts, results)
        stage.metrics |= {"build_id": plan.basis.build_id, "runner": find_runner(os.environ).described}
        note_left_out(stage, plan, "emulator-not-run")
        _show_outputs_of_failed(stage, measured)
        if keep_programs:
            _keep(stage, compiled, selection.reports / KEPT)
        if reload:
            stage.findings += judged_again(plan, runnable, again)
            stage.metrics["loaded again"] = len(again)
    return finish(stage, selection)


def _refuse_other_backends(plan: ExecutorchPlan) -> None:
    for program in plan.programs:
        if program.backend != "htp":
            message = f"the emulator has only the HTP, but this program is for the {program.backend}"
            fix = SUITES.repeat(program, "test_lowering")
            finding = Finding("emulator-backend", Severity.ERROR, program.name, message, fix)
            plan.refused.setdefault(program.name, finding)


def figures_of(result: Result | None) -> Mapping[str, float] | None:
    """None of what did not run, or gave nothing to compare."""
    return ran_in(result).figures if result is not None and ran(result) else None


def measured_of(plan: ExecutorchPlan, results: Results) -> MeasuredValues:
    """Costs and accuracy, all from one build."""
    measured = {name: result for name, result in results[RAN].items() if ran(result)}
    recorded = {
        name: {
            "build_id": plan.basis.build_id,
            **costs_of(results[COMPILED][name]),
            "accuracy": rounded(ran_in(result).figures),
            **({} if result.cached else {"run_seconds": round(ran_in(result).seconds, 1)}),
        }
        for name, result in measured.items()
    }
    return MeasuredValues({name: ran_in(result).figures for name, result in measured.items()}, recorded)


def _findings_of(
    plan: ExecutorchPlan, program: ExecutorchProgram, results: Mapping[str, Result]
) -> Iterator[Finding]:
    again, lowered = SUITES.repeat(program, STAGE), results.get(COMPILED)
    if lowered is None:
        yield plan.refused[program.name]
    elif lowered.failure:
        yield failure_finding(program, lowered.failure, STAGE)
    else:
        record = compiled_in(lowered)
        found = findings_of(program, results[RAN], record, plan.basis.build_id)
        yield from explained(found, plan.selection.store, record.without_time)
        yield from kept_on_cpu(program, record)
        if (figures := figures_of(results[RAN])) is not None:
            every = SUITES.repeat(program, STAGE, every_chip=True)
            yield from placeholder(program, figures, every.plus("--accept"))
            slices = ran_in(results[RAN]).slices
            yield from constant_outputs(program, figures, slices, again)
            causes = partial(causes_of, program, record, slices, figures, plan.basis.build_id)
            yield from below_usual_of(program, figures, causes, SUITES.repeat(program, "divergence"))


def _row_of(
    plan: ExecutorchPlan, program: ExecutorchProgram, results: Mapping[str, Result]
) -> Mapping[str, Metric]:
    figures = figures_of(results.get(RAN))
    shown: dict[str, Metric] = {
        "backend": program.backend,
        "scheme": program.run.precision,
        "thresholds": shown_thresholds(program, figures or {}),
        "expected_fault": program.run.emulator_fault,
    }
    if figures is None:
        return shown
    lowered, result, agreed = results[COMPILED], results[RAN], plan.baseline(program).of(program.name)
    record = ran_in(result)
    return shown | {
        "sha256": hash_file(program_file(lowered)),
        "costs": dict(costs_of(lowered)),
        "cached": result.cached,
        "not_cached_because": result.not_remembered,
        "figures": dict(figures),
        "slices": list(record.slices),
        "baseline": dict(agreed.accuracy) if agreed else {},
        **record.times,
    }


def _show_outputs_of_failed(stage: StageRun, measured: Mapping[str, Result]) -> None:
    wrong = {finding.subject for finding in stage.findings if finding.severity is Severity.ERROR}
    for name, result in measured.items():
        if result.folder and name in wrong:
            files = sorted(result.folder.rglob("*.raw"))
            stage.artifacts += [Artifact.of("failure", path) for path in files]


@dataclass(frozen=True)
class RunOnEmulator(CachedStep):
    kind = RAN
    own_packages = False
    title = "runs on the emulator"
    function = f"{RUN_WORKER}:measured"
    flag = "--run-timeout"

    plan: ExecutorchPlan
    runner: Runner
    compiled: Mapping[str, Result]

    @property
    def timeout(self) -> float:
        return self.plan.work.run_timeout

    def home(self, own: OwnPackages) -> Home:
        return home_of_runs(self.plan, own)

    def key(self, program: ExecutorchProgram, results: CachedResults) -> Key:
        compiled, record = self._compiled(program), compiled_in(self.compiled[program.name])
        files = {path.name: results.digest(path) for path in sorted(compiled.glob("*.raw"))}
        return {
            "QNN": dict(self.plan.basis.sdk),
            **as_json(self._asked(program)),
            # ExecuTorch stamps the time of lowering into a program: an equal one is not run again for that.
            "program": record.without_time,
            "files": files,
            "runner": {"whose": self.runner.dialect.whose, **self.runner.digests(results.digest)},
        }

    def cost(self, program: ExecutorchProgram) -> Job:
        recorded = self.plan.baseline(program).of(program.name)
        return Job(program.name, (recorded.run_seconds if recorded else None) or RUN_SECONDS, RUN_MEMORY)

    def request(self, program: ExecutorchProgram) -> Mapping[str, Any]:
        compiled = self._compiled(program)
        return as_json(
            RunRequest(self.runner.order, str(compiled / PROGRAM), str(compiled), self._asked(program))
        )

    def accepts(self, program: ExecutorchProgram, result: Result) -> bool:
        # What misses its thresholds is run again each time, so that its outputs can be looked at.
        return not findings_of(program, result, compiled_in(self.compiled[program.name]))

    def read(self, reply: Mapping[str, Any]) -> object:
        return read(EmulatorRun, reply)

    def line(self, program: ExecutorchProgram, result: Result) -> Line:
        if result.failure:
            return failed(f"{result.failure.kind}: {result.failure.message}")
        record = ran_in(result)
        if record.rule:
            text = f"{record.rule}: {record.message}"
            return failed(text) if result.folder else Line("ran", f"fails as the suite expects: {text}")
        return Line("ran", with_samples(in_words(record.figures), record.each_db))

    def ended(self, program: ExecutorchProgram, gone: WorkerDied, log: Path) -> Failure:
        fix = "give it longer with --run-timeout" if gone.kind == "timeout" else ""
        return Failure(gone.kind, gone.sentence(log), fix, log)

    def _asked(self, program: ExecutorchProgram) -> ComparedFiles:
        record = compiled_in(self.compiled[program.name])
        return ComparedFiles(record.inputs, record.expected, record.reference, program.case.non_finite)

    def _compiled(self, program: ExecutorchProgram) -> Path:
        folder = self.compiled[program.name].folder
        assert folder is not None
        return folder


def ran(result: Result) -> bool:
    """Whether there are figures."""
    return not result.failure and not ran_in(result).rule


class RunOne(RunOnEmulator):
    """A program of one model alone, which may be as far off as it is."""

    def accepts(self, program: ExecutorchProgram, result: Result) -> bool:
        return ran(result)


class RunForMetric(RunOnEmulator):
    """Keeps the outputs, which a metric is computed of each time."""

    kind = "emulator-outputs"
    keeps_files = True

    def accepts(self, program: ExecutorchProgram, result: Result) -> bool:
        return ran(result) or not findings_of(program, result, compiled_in(self.compiled[program.name]))


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


def measure(
    plan: ExecutorchPlan,
    runner: Runner,
    compiled: Mapping[str, Result],
    step: Callable[..., RunOnEmulator] = RunOnEmulator,
) -> dict[str, Result]:
    runnable = [row for row in plan.programs if row.name in compiled and compiled[row.name].folder]
    with_metric = [program for program in runnable if program.case.metric]
    results = run_cached_step(step(plan, runner, compiled), [row for row in runnable if not row.case.metric])
    results |= measured_with_metric(RunForMetric(plan, runner, compiled), with_metric)
    for name, result in results.items():
        source = compiled[name].folder
        # An interrupted run leaves its folder behind.
        judged = result.failure and result.failure.blame != "machine"
        kept = result.folder or (plan.logs / name if judged else None)
        if source and kept and kept.is_dir():
            for path in source.glob("*.raw"):
                shutil.copyfile(path, kept / path.name)
    return results


def measured_with_metric(step: RunForMetric, programs: Sequence[ExecutorchProgram]) -> dict[str, Result]:
    """With the figures of each one's metric. Outputs of what is wrong are copied, to be looked at."""
    plan, results = step.plan, run_cached_step(step, programs)
    outputs = {
        name: result.folder / OUTPUTS for name, result in results.items() if ran(result) and result.folder
    }

    def request(program: ExecutorchProgram) -> Mapping[str, Any]:
        compiled = step.compiled[program.name]
        record = compiled_in(compiled)
        return as_json(MetricRequest(str(compiled.folder), record.expected, record.reference))

    scores = scores_of(
        plan,
        [row for row in programs if row.name in outputs],
        outputs,
        partial(home_of_runs, plan),
        "ci.lanes.executorch.run_worker:metric_of",
        request,
    )
    for program in programs:
        result, score, evidence = results[program.name], scores.get(program.name), None
        if score and score.failure:
            result = replace(result, failure=score.failure)
        elif score:
            record = ran_in(result)
            record = replace(record, figures={**record.figures, **score.facts["figures"]})
            result = replace(result, record=record)
        wrong = findings_of(program, result, compiled_in(step.compiled[program.name]))
        if result.folder and (wrong or plan.work.keep):
            evidence = step.folder(program)
            shutil.copytree(result.folder, evidence, dirs_exist_ok=True)
        results[program.name] = replace(result, folder=evidence)
    return results


def findings_of(
    program: ExecutorchProgram, result: Result, compiled: ChipProgram, build_id: str = ""
) -> list[Finding]:
    """With the id of QNN's build, also what is known of it."""
    again = SUITES.repeat(program, "test_emulator")
    where = f"; inputs, outputs and log are in {result.folder}" if result.folder else ""

    def wrong(
        rule: str, message: str, fix: str = again, place: Place | None = None, edit: Edit | None = None
    ) -> Finding:
        return Finding(f"emulator-{rule}", Severity.ERROR, program.name, message + where, fix, place, edit)

    if result.failure:
        failure = result.failure
        fix = Fix("{}; then {}", failure.fix, again) if failure.fix else again
        return [wrong(failure.rule, failure.message, fix)]
    record = ran_in(result)
    if fault := program.run.emulator_fault:
        if fault in record.message:
            return []
        seen = record.message or "it runs"
        return [wrong("fault", f"expected it not to run ({fault}), found: {seen}; correct the suite")]
    if record.rule == "run" and (missing := list(missing_kernels(compiled.left))):
        return [
            wrong("run", f"{message} ({record.message})", str(fix) or again, place, fix.edit)
            for message, fix, place in missing
        ]
    if record.rule:
        beyond = beyond_in_words(compiled.beyond)
        fix = Fix("{}; then {}", BEYOND_FIX, again) if beyond else again
        return [wrong(record.rule, "; ".join(filter(None, [record.message, beyond])), fix)]
    figures = record.figures
    misses = missed(program.thresholds, figures, program.run.kind)
    if not misses:
        return []
    commands = (SUITES.repeat(program, "divergence"), SUITES.repeat(program, "quantize").plus("--where"))
    every = SUITES.repeat(program, "test_emulator", every_chip=True)
    causes = causes_of(program, compiled, record.slices, figures, build_id)
    cure = accuracy_fix(misses, figures, *commands, causes=causes)
    fixes = [Fix("{}; then {}", cure, again), accepting(program, misses, every)]
    message = accuracy_message(misses, figures, causes, record.each_db)
    return [wrong("accuracy", message, joined(fixes), causes.place)]


def suspected_of(
    program: ExecutorchProgram, compiled: ChipProgram, figures: Mapping[str, float], build_id: str
) -> list[Met]:
    """The known faults that a node of the user's code meets, by the facts of its compile; of QNN's own only
    with the id of its build."""
    # Without a line it is of no code of the user's.
    nodes = {name: node for name, node in compiled.nodes.items() if node.line}
    seen_db = figures.get(f"{against_nearest(figures)}sqnr_db")
    versions = versions_of(build_id)
    scheme, soc = program.run.precision, program.soc
    return faults_in(nodes, scheme, soc, versions, least=compiled.least, seen_db=seen_db)


def causes_of(
    program: ExecutorchProgram,
    compiled: ChipProgram | Quantized,
    slices: Sequence[str],
    figures: Mapping[str, float],
    build_id: str = "",
) -> Causes:
    """By the facts of its compile; faults of a build of QNN only with its id."""
    losses = compiled.losses
    met: list[Met] = []
    beyond, chosen = tuple[Row, ...](), tuple[Row, ...]()
    if isinstance(compiled, ChipProgram):
        met = suspected_of(program, compiled, figures, build_id)
        beyond, chosen = compiled.beyond, compiled.choices
    lines = [*(fault.line for fault in met), *(str(loss["source"]) for loss in losses[:1])]
    return Causes(
        place=next(filter(None, map(Place.read, lines)), None),
        losses=f"quantizing loses most in {lost_at(losses[0])}" if losses else "",
        slices=slices,
        beyond=beyond_in_words(beyond),
        beyond_fix=BEYOND_FIX,
        chosen=" and ".join(dict.fromkeys(map(operator_place, chosen))),
        known=[*map(str, met)],
    )


def lost_at(loss: Mapping[str, Any]) -> str:
    where = loss["operator"] + (f" of {loss['module']}" if loss["module"] else "")
    where += f" at {loss['source']} `{loss['code']}`" if loss["source"] else ""
    return f"{where} ({in_decibels(loss['before_db'])} before it, {in_decibels(loss['after_db'])} after)"


def _keep(stage: StageRun, compiled: Mapping[str, Result], folder: Path) -> None:
    """Copy the programs that passed there, for whoever ships them."""
    shutil.rmtree(folder, ignore_errors=True)
    rows: Any = stage.metrics["programs"]
    for name, shown in rows.items():
        if shown["verdict"] == "pass" and "sha256" in shown:
            file = folder / f"{name}.pte"
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(program_file(compiled[name]), file)
            stage.artifacts.append(Artifact.of("program", file))
