"""Programs run on the HTP emulator and compared with PyTorch by workers, and cached."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ci.jobs import Job
from ci.lanes.executorch import PROGRAM
from ci.lanes.executorch.compile import RAN, ExecutorchPlan
from ci.lanes.executorch.findings import findings_of
from ci.lanes.executorch.records import (
    ComparedFiles,
    EmulatorRun,
    MetricRequest,
    RunRequest,
    compiled_in,
    ran,
    ran_in,
)
from ci.lanes.executorch.run_worker import OUTPUTS
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.models.own_packages import OwnPackages
from ci.outcome import Failure, Result, WorkerDied
from ci.plain import as_json, read
from ci.progress import Line, failed
from ci.results import CachedResults, Key
from ci.runner import Runner
from ci.suite.accuracy import in_words, with_samples
from ci.suite.program_steps import ProgramStep, run_cached_step, scores_of
from ci.work import Home
from provisioning.base.commands import session

RUN_WORKER = "ci.lanes.executorch.run_worker"


RUN_SECONDS, RUN_MEMORY = 2.0, 300 << 20


@dataclass(frozen=True)
class RunOnEmulator(ProgramStep):
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
            "QNN": dict(self.plan.qnn),
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
