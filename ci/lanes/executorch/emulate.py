"""Programs on the emulator: run and compared with PyTorch by workers; cached."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ci.cached_steps import Step
from ci.jobs import Job, Line, failed
from ci.lanes.executorch import PROGRAM
from ci.lanes.executorch.compile import RAN, ExecutorchPlan
from ci.lanes.executorch.findings import findings_of
from ci.lanes.executorch.orders import (
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
from ci.outcome import Failure, Result
from ci.plain import as_json
from ci.results import CachedResults, Key
from ci.runner import Runner
from ci.suite.accuracy import MetricFigures, in_words, with_samples
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
        recorded = program.recorded
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
        cost=cost,
        # Its figures are judged each time, and its metric is computed of them: whatever they are, they stay.
        keeps_files=True,
        accepts=lambda program, result: ran(result),
        line=_line,
    )


def _line(program: ExecutorchProgram, result: Result) -> Line:
    if result.failure:
        return failed(f"{result.failure.kind}: {result.failure.message}")
    record = ran_in(result)
    if record.rule:
        return failed(f"{record.rule}: {record.message}")
    return Line("ran", with_samples(in_words(record.figures), record.each_db))


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


def measure(plan: ExecutorchPlan, runner: Runner, compiled: Mapping[str, Result]) -> dict[str, Result]:
    """With the figures of each one's metric. Inputs and outputs of what is wrong are copied to the logs."""
    runnable = [row for row in plan.programs if row.name in compiled and compiled[row.name].folder]
    results = run_cached_step(running(plan, runner, compiled), runnable)
    scores = _scores(plan, runnable, compiled, results)
    for program in runnable:
        result, lowered, evidence = results[program.name], compiled[program.name], plan.logs / program.name
        # That of an earlier run.
        shutil.rmtree(evidence, ignore_errors=True)
        score = scores.get(program.name)
        if isinstance(score, Failure):
            result = replace(result, failure=score)
        elif score:
            record = ran_in(result)
            result = replace(result, record=replace(record, figures={**record.figures, **score.figures}))
        wrong = findings_of(program, result, compiled_in(lowered))
        folder = result.folder if wrong else None
        if folder:
            shutil.copytree(folder, evidence)
            for path in _folder_of(compiled, program).glob("*.raw"):
                shutil.copyfile(path, evidence / path.name)
        results[program.name] = replace(result, folder=evidence if folder else None)
    return results


def _scores(
    plan: ExecutorchPlan,
    programs: Sequence[ExecutorchProgram],
    compiled: Mapping[str, Result],
    results: Mapping[str, Result],
) -> Mapping[str, MetricFigures | Failure]:
    """Of the programs that have a metric."""

    def request(program: ExecutorchProgram) -> Mapping[str, object]:
        record, folder = compiled_in(compiled[program.name]), str(_folder_of(compiled, program))
        return as_json(ComparedOutputs(folder, record.expected, record.reference))

    outputs = {
        program.name: folder / OUTPUTS
        for program in programs
        if program.case.metric and ran(results[program.name]) and (folder := results[program.name].folder)
    }
    judged = [program for program in programs if program.name in outputs]
    return scores_of(plan, judged, outputs, partial(home_of_runs, plan), f"{RUN_WORKER}:metric_of", request)
