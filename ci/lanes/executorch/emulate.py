"""Programs on the emulator: run and compared with PyTorch by workers; cached."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ci.cached_steps import Step
from ci.jobs import Job
from ci.lanes.executorch import PROGRAM
from ci.lanes.executorch.compile import RAN, ExecutorchPlan
from ci.lanes.executorch.findings import findings_of
from ci.lanes.executorch.records import (
    ComparedFiles,
    ComparedOutputs,
    EmulatorRun,
    RunRequest,
    compiled_in,
    ran,
    ran_in,
)
from ci.lanes.executorch.run_worker import OUTPUTS
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.models.own_packages import OwnPackages
from ci.outcome import Failure, Result, WorkerDied
from ci.plain import as_json
from ci.progress import Line, failed
from ci.results import CachedResults, Key
from ci.runner import Runner
from ci.suite.accuracy import in_words, with_samples
from ci.suite.stage import run_cached_step, scores_of
from ci.work import Home
from provisioning.base.commands import session

RUN_WORKER = "ci.lanes.executorch.run_worker"


RUN_SECONDS, RUN_MEMORY = 2.0, 300 << 20


def running(plan: ExecutorchPlan, runner: Runner, compiled: Mapping[str, Result]) -> Step:
    def asked(program: ExecutorchProgram) -> ComparedFiles:
        record = compiled_in(compiled[program.name])
        return ComparedFiles(record.inputs, record.expected, record.reference, program.case.non_finite)

    def key(program: ExecutorchProgram, results: CachedResults) -> Key:
        folder, record = _folder_of(compiled, program), compiled_in(compiled[program.name])
        files = {path.name: results.digest(path) for path in sorted(folder.glob("*.raw"))}
        return {
            "QNN": dict(plan.qnn),
            **as_json(asked(program)),
            # ExecuTorch stamps the time of lowering into a program: an equal one is not run again for that.
            "program": record.without_time,
            "files": files,
            "runner": {"whose": runner.dialect.whose, **runner.digests(results.digest)},
        }

    def request(program: ExecutorchProgram) -> Mapping[str, object]:
        folder = _folder_of(compiled, program)
        return as_json(RunRequest(runner.order, str(folder / PROGRAM), str(folder), asked(program)))

    def cost(program: ExecutorchProgram) -> Job:
        recorded = plan.baseline(program).of(program.name)
        return Job(program.name, (recorded.run_seconds if recorded else None) or RUN_SECONDS, RUN_MEMORY)

    return Step(
        plan=plan,
        kind=RAN,
        title="runs on the emulator",
        function=f"{RUN_WORKER}:measured",
        home=partial(home_of_runs, plan),
        request=request,
        key=key,
        reply=EmulatorRun,
        own_packages=False,
        timeout=plan.work.run_timeout,
        flag="--run-timeout",
        cost=cost,
        accepts=partial(_passes, compiled),
        line=_line,
        ended=_ended,
    )


def running_one(plan: ExecutorchPlan, runner: Runner, compiled: Mapping[str, Result]) -> Step:
    """A program of one model alone, which may be as far off as it is."""
    return replace(running(plan, runner, compiled), accepts=lambda program, result: ran(result))


def _passes(compiled: Mapping[str, Result], program: ExecutorchProgram, result: Result) -> bool:
    # What misses its thresholds is run again each time, so that its outputs can be looked at.
    return not findings_of(program, result, compiled_in(compiled[program.name]))


def _line(program: ExecutorchProgram, result: Result) -> Line:
    if result.failure:
        return failed(f"{result.failure.kind}: {result.failure.message}")
    record = ran_in(result)
    if record.rule:
        return failed(f"{record.rule}: {record.message}")
    return Line("ran", with_samples(in_words(record.figures), record.each_db))


def _ended(program: ExecutorchProgram, gone: WorkerDied, log: Path) -> Failure:
    fix = "give it longer with --run-timeout" if gone.kind == "timeout" else ""
    return Failure(gone.kind, gone.sentence(log), fix, log)


def _folder_of(compiled: Mapping[str, Result], program: ExecutorchProgram) -> Path:
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


def measure(
    plan: ExecutorchPlan,
    runner: Runner,
    compiled: Mapping[str, Result],
    step: Callable[[ExecutorchPlan, Runner, Mapping[str, Result]], Step] = running,
) -> dict[str, Result]:
    runnable = [row for row in plan.programs if row.name in compiled and compiled[row.name].folder]
    with_metric = [program for program in runnable if program.case.metric]
    results = run_cached_step(step(plan, runner, compiled), [row for row in runnable if not row.case.metric])
    results |= measured_with_metric(plan, runner, compiled, with_metric)
    for name, result in results.items():
        source = compiled[name].folder
        # An interrupted run leaves its folder behind.
        judged = result.failure and result.failure.blame != "machine"
        kept = result.folder or (plan.logs / name if judged else None)
        if source and kept and kept.is_dir():
            for path in source.glob("*.raw"):
                shutil.copyfile(path, kept / path.name)
    return results


def measured_with_metric(
    plan: ExecutorchPlan,
    runner: Runner,
    compiled: Mapping[str, Result],
    programs: Sequence[ExecutorchProgram],
) -> dict[str, Result]:
    """With the figures of each one's metric. Outputs of what is wrong are copied, to be looked at."""

    def accepts(program: ExecutorchProgram, result: Result) -> bool:
        return ran(result) or _passes(compiled, program, result)

    step = running(plan, runner, compiled)
    # The outputs are kept: the metric is computed of them each time.
    step = replace(step, kind="emulator-outputs", keeps_files=True, accepts=accepts)
    results = run_cached_step(step, programs)
    outputs = {
        name: result.folder / OUTPUTS for name, result in results.items() if ran(result) and result.folder
    }

    def request(program: ExecutorchProgram) -> Mapping[str, object]:
        record = compiled_in(compiled[program.name])
        folder = str(_folder_of(compiled, program))
        return as_json(ComparedOutputs(folder, record.expected, record.reference))

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
        if isinstance(score, Failure):
            result = replace(result, failure=score)
        elif score:
            record = ran_in(result)
            record = replace(record, figures={**record.figures, **score.figures})
            result = replace(result, record=record)
        wrong = findings_of(program, result, compiled_in(compiled[program.name]))
        if result.folder and (wrong or plan.work.keep):
            evidence = plan.logs / program.name
            shutil.copytree(result.folder, evidence, dirs_exist_ok=True)
        results[program.name] = replace(result, folder=evidence)
    return results
