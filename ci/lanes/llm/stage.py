"""`test_llm`: every chosen program compiled, run and judged, unless it is remembered."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence

from ci.engine.installed import ready_environment
from ci.engine.jobs import Job
from ci.engine.work import Result
from ci.lanes.llm.findings import findings_of, model_findings, row
from ci.lanes.llm.suite import SUITES, Program
from ci.lanes.llm.work import Generate, GenerateByExecutorch, Plan, Train, require_installed
from ci.pipeline.options import StageOptions, Work
from ci.pipeline.stage import chosen, counts, finish, print_list
from ci.pipeline.steps import run_step
from provisioning.base.findings import Metric
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.base.stage_run import StageRun

PACKAGES = ("executorch", "onnx", "onnxruntime", "onnxruntime-qnn", "torch", "tokenizers", "transformers")


def run(options: StageOptions) -> int:
    selection = options.selection
    programs = chosen(
        SUITES, options.choice, selection, lambda every: {one.name: Job(one.name) for one in every}
    )
    if options.list_only:
        return print_list(programs)
    stage = StageRun.as_typed("test_llm", selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, "llm-not-run"):
        require_installed()
        models, results = compile_and_run(plan_of(programs, selection, options.work))
        judge(stage, programs, models, results)
    return finish(stage, selection)


def plan_of(programs: Sequence[Program], selection: Selection, work: Work) -> Plan:
    lowered = any(program.run.through == "executorch" for program in programs)
    qnn_environment = ready_environment(selection, os.environ) if lowered else None
    return Plan(tuple(programs), selection, work, selection.reports.absolute() / "llm", {}, qnn_environment)


def compile_and_run(plan: Plan) -> tuple[dict[str, Result], dict[str, Result]]:
    """By program, the results of training its float model, and of what it says."""
    models = run_step(Train(plan), plan.programs)
    results: dict[str, Result] = {}
    for through, step in {"genie": Generate, "executorch": GenerateByExecutorch}.items():
        trained = [
            each
            for each in plan.programs
            if each.run.through == through and (model := models[each.name]).folder and not model.failure
        ]
        results |= run_step(step(plan, models), trained)
    return models, {each.name: results[each.name] for each in plan.programs if each.name in results}


def judge(
    stage: StageRun, programs: Sequence[Program], models: Mapping[str, Result], results: Mapping[str, Result]
) -> None:
    of_case = {program.case_name: program for program in programs}
    trained = {name: models[program.name] for name, program in of_case.items()}
    for name, program in of_case.items():
        stage.findings += model_findings(name, program.case.perplexity, trained[name])
    rows: dict[str, Metric] = {}
    for program in programs:
        # Without a model there is nothing to run, and its failure is a finding already.
        if program.name in results:
            findings = list(findings_of(program, results[program.name]))
            stage.findings += findings
            rows[program.name] = row(program, results[program.name], findings)
    stage.metrics |= {
        **counts(rows, results.values(), trained.values()),
        "selected": len(programs),
        "not_run": len(programs) - len(rows),
        "perplexity": {
            name: round(result.facts["perplexity"], 2) for name, result in trained.items() if result.facts
        },
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
