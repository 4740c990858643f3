"""What the stages `test_lowering` and `test_emulator` think of PyTorch programs: findings, figures and a row
of each.

The functions here are parts of the lane's record (`lane.py`); the work itself is in `steps`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ci.lanes.executorch.findings import (
    costs_of,
    findings_about_compiled_program,
    findings_about_run,
    findings_of,
    program_file,
)
from ci.lanes.executorch.orders import ChipProgram, ComparedOutputs, compiled_in, figures_of, ran, ran_in
from ci.lanes.executorch.run_worker import OUTPUTS
from ci.lanes.executorch.second_look import look_again
from ci.lanes.executorch.steps import (
    COMPILED,
    RAN,
    RUN_WORKER,
    UNKNOWN_SECONDS,
    ExecutorchPlan,
    compared_files,
    compile_programs,
    folder_of,
    home_of_runs,
    running,
)
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.suite.accepted import Recorded, accepted_costs
from ci.suite.figures import round_figures
from ci.suite.findings import (
    shown_thresholds,
)
from ci.suite.lane import Remarks
from ci.suite.options import Choice
from ci.suite.runner import Runner
from ci.suite.running import run_cached_step, scores_of
from ci.suite.stage import MeasuredValues, Results, Verdict, choose
from ci.suite.task_metric import MetricFigures
from ci.work import Failure, Folder, Job, Result, sent_request, to_json
from provisioning.base.files import hash_file
from provisioning.base.findings import Finding, Metric
from provisioning.base.settings import Selection


def compiled_results(plan: ExecutorchPlan, results: Results) -> Mapping[str, Result]:
    return compile_programs(plan)


def run_results(plan: ExecutorchPlan, results: Results) -> Mapping[str, Result]:
    """Run the programs that were compiled: the SDK then has what computes them on this machine."""
    compiled = results[COMPILED]
    runnable = {
        program.name: compiled[program.name]
        for program in plan.programs
        if program.name in compiled and compiled[program.name].folder
    }
    plan = replace(plan, logs=plan.run_logs or plan.logs)
    return measure(plan, plan.runner, runnable) if plan.runner else {}


def verdict_of_lowering(
    plan: ExecutorchPlan, program: ExecutorchProgram, results: Mapping[str, Result]
) -> Verdict:
    result = results.get(COMPILED)
    return Verdict(
        findings_about_compiled_program(plan, program, result), _row_of_compiled(plan, program, result)
    )


def verdict_of_emulation(
    plan: ExecutorchPlan, program: ExecutorchProgram, results: Mapping[str, Result]
) -> Verdict:
    return Verdict(findings_about_run(plan, program, results), _row_of_run(plan, program, results))


def remarks_of_lowering(plan: ExecutorchPlan, results: Results, findings: Sequence[Finding]) -> Remarks:
    return Remarks(metrics={"build_id": plan.build_id, "sdk": str(plan.sdk)})


def remarks_of_emulation(plan: ExecutorchPlan, results: Results, findings: Sequence[Finding]) -> Remarks:
    described = plan.runner.described if plan.runner else ""
    return Remarks(metrics={"build_id": plan.build_id, "runner": described})


def chosen_programs(choice: Choice, selection: Selection) -> list[ExecutorchProgram]:
    return choose(SUITES, choice, selection, jobs_of)


def jobs_of(programs: Sequence[ExecutorchProgram]) -> dict[str, Job]:
    """Return each program's job, with its estimated seconds, to divide work into shards."""
    jobs = {}
    for program in programs:
        recorded = program.recorded or Recorded()
        seconds = (recorded.cpu_seconds or UNKNOWN_SECONDS) + (recorded.run_seconds or 1.0)
        jobs[program.name] = Job(program.name, seconds)
    return jobs


def _row_of_compiled(
    plan: ExecutorchPlan, program: ExecutorchProgram, result: Result | None
) -> Mapping[str, Metric]:
    row: dict[str, Metric] = {"backend": program.backend, "scheme": program.run.precision}
    record = result.record if result is not None else None
    if result is None or not isinstance(record, ChipProgram):
        return row
    if record.in_torch:
        row["figures"] = dict(record.in_torch.figures)
    return row | {
        "cached": result.cached,
        "program": str(program_file(result)),
        "seconds": record.seconds,
        "peak_bytes": record.peak,
        "delegates": record.delegates,
        "cpu_operators": len(record.left),
        "partition": [to_json(part) for part in record.partition],
        "costs": dict(costs_of(result)),
        **accepted_costs(costs_of(result), plan.build_id, program.recorded),
    }


def measured_of_lowering(plan: ExecutorchPlan, results: Results) -> MeasuredValues:
    build_id = plan.build_id
    recorded = {
        name: {**costs_of(result), "build_id": build_id, "peak_mb": result.record.peak >> 20}
        for name, result in results[COMPILED].items()
        if isinstance(result.record, ChipProgram)
    }
    return MeasuredValues(recorded=recorded)


def measured_of_emulation(plan: ExecutorchPlan, results: Results) -> MeasuredValues:
    """Return costs and accuracy, all measured of one build."""
    runs = {name: result for name, result in results[RAN].items() if ran(result)}
    recorded = {
        name: {
            "build_id": plan.build_id,
            **costs_of(results[COMPILED][name]),
            "accuracy": round_figures(ran_in(result).figures),
            **({} if result.cached else {"run_seconds": round(ran_in(result).seconds, 1)}),
        }
        for name, result in runs.items()
    }
    return MeasuredValues({name: ran_in(result).figures for name, result in runs.items()}, recorded)


def _row_of_run(
    plan: ExecutorchPlan, program: ExecutorchProgram, results: Mapping[str, Result]
) -> Mapping[str, Metric]:
    figures = figures_of(results.get(RAN))
    row: dict[str, Metric] = {
        "backend": program.backend,
        "scheme": program.run.precision,
        "thresholds": shown_thresholds(program, figures or {}),
    }
    if figures is None:
        return row
    compiled, result, agreed = results[COMPILED], results[RAN], program.recorded
    record = ran_in(result)
    return row | {
        "sha256": hash_file(program_file(compiled)),
        "costs": dict(costs_of(compiled)),
        "cached": result.cached,
        "figures": dict(figures),
        "slices": list(record.slices),
        "baseline": dict(agreed.accuracy) if agreed else {},
    }


def measure(plan: ExecutorchPlan, runner: Runner, compiled: Mapping[str, Result]) -> dict[str, Result]:
    """Run the compiled programs and add the figures of their metrics. Inputs and outputs of wrong ones are
    copied to the logs."""
    runnable = [row for row in plan.programs if row.name in compiled and compiled[row.name].folder]
    results = run_cached_step(running(plan, runner, compiled), runnable)
    results |= look_again(replace(plan, programs=tuple(runnable)), runner, compiled, results)
    scores = _scores(plan, runnable, compiled, results)
    for program in runnable:
        result, build, evidence = results[program.name], compiled[program.name], plan.logs / program.name
        # That of an earlier run.
        shutil.rmtree(evidence, ignore_errors=True)
        score = scores.get(program.name)
        if isinstance(score, Failure):
            result = replace(result, failure=score)
        elif score:
            record = ran_in(result)
            result = replace(result, record=replace(record, figures={**record.figures, **score.figures}))
        wrong = findings_of(program, result, compiled_in(build))
        folder = result.folder if wrong or plan.keeps_outputs else None
        if folder:
            shutil.copytree(folder, evidence)
            for path in folder_of(compiled, program).glob("*.raw"):
                shutil.copyfile(path, evidence / path.name)
        results[program.name] = replace(result, folder=evidence if folder else None)
    return results


def _scores(
    plan: ExecutorchPlan,
    programs: Sequence[ExecutorchProgram],
    compiled: Mapping[str, Result],
    results: Mapping[str, Result],
) -> Mapping[str, MetricFigures | Failure]:
    """Compute the figures of every program that has a metric and ran."""

    def request(program: ExecutorchProgram) -> Mapping[str, object]:
        folder = Folder(str(folder_of(compiled, program)))
        return sent_request(ComparedOutputs(folder, compared_files(program, compiled)))

    outputs = {
        program.name: folder / OUTPUTS
        for program in programs
        if program.case.metric and ran(results[program.name]) and (folder := results[program.name].folder)
    }
    judged = [program for program in programs if program.name in outputs]
    return scores_of(plan, judged, outputs, partial(home_of_runs, plan), f"{RUN_WORKER}:metric_of", request)
