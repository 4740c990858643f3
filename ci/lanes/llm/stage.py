"""`test_llm`: every chosen program compiled, run and judged, unless it is remembered."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Mapping, Sequence

from ci.engine.inputs import roots_of
from ci.engine.installed import ready_environment
from ci.engine.jobs import Job
from ci.engine.memo import Memo
from ci.engine.work import How, Result, do
from ci.engine.workers.parent import Worker
from ci.lanes.llm.findings import findings_of, model_findings, row
from ci.lanes.llm.suite import SUITES, Program
from ci.lanes.llm.work import (
    Common,
    basis_of,
    environment,
    executorch_environment,
    program_task,
    require_installed,
    setup_of,
    training,
)
from ci.pipeline.findings import verdict
from ci.pipeline.options import StageOptions, Work
from ci.pipeline.stage import chosen, counts, finish, print_list
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
        models, results = compile_and_run(programs, selection, options.work)
        judge(stage, programs, models, results)
    return finish(stage, selection)


def compile_and_run(
    programs: Sequence[Program], selection: Selection, work: Work
) -> tuple[dict[str, Result], dict[str, Result]]:
    """The results of training by case, and of the programs by name."""
    logs = selection.reports.absolute() / "llm"
    roots = roots_of(SUITES.shipped, selection.store)
    reuse = work.cache and not work.keep
    memo = Memo(selection.store, "llm", roots, environ=environment(), reuse=reuse)
    cases = {program.case_name: program.case for program in programs}
    # Genie needs nothing that is provisioned.
    lowered = any(program.run.through == "executorch" for program in programs)
    qnn_environment = ready_environment(selection, os.environ) if lowered else None

    def workers(kind: str, variables: Mapping[str, str] | None = None) -> Callable[[int, int], Worker]:
        return lambda threads, count: Worker(setup_of(kind, logs, work.timeout, variables))

    def accept(name: str, result: Result) -> bool:
        case = name.partition("/")[0]
        return not list(model_findings(case, cases[case].perplexity, result))

    common = Common(memo, logs, work.timeout, basis_of(roots, selection.store))
    trainings = {case: training(case, common) for case in cases}
    how = How("models", workers("train"), work.jobs, work.why, share=True)
    trained = do(list(trainings.values()), how, accept=accept)
    models = {case: trained[task.name] for case, task in trainings.items()}
    named = {program.name: program for program in programs}

    def passes(name: str, result: Result) -> bool:
        return verdict(list(findings_of(named[name], result))) == "pass"

    commons = {"genie": common}
    special: dict[str, Callable[[int, int], Worker]] = {}
    if qnn_environment:
        variables = executorch_environment(qnn_environment)
        other = Memo(selection.store, "llm-executorch", roots, environ=variables, reuse=reuse)
        commons["executorch"] = Common(
            other, logs, work.timeout, basis_of(roots, selection.store, qnn_environment)
        )
        lower = workers("lower", variables)
        special = {program.name: lower for program in programs if program.run.through == "executorch"}
    tasks = [
        program_task(
            program, commons[program.run.through], model.folder, model.facts["weights"], keep=work.keep
        )
        for program in programs
        if (model := models[program.case_name]).folder is not None and model.failure is None
    ]
    how = How("texts", workers("speak"), work.jobs, work.why, special=special)
    return models, do(tasks, how, accept=passes)


def judge(
    stage: StageRun, programs: Sequence[Program], models: Mapping[str, Result], results: Mapping[str, Result]
) -> None:
    cases = {program.case_name: program.case for program in programs}
    for name, case in cases.items():
        stage.findings += model_findings(name, case.perplexity, models[name])
    rows: dict[str, Metric] = {}
    for program in programs:
        # Without a model there is nothing to run, and its failure is a finding already.
        if program.name in results:
            findings = list(findings_of(program, results[program.name]))
            stage.findings += findings
            rows[program.name] = row(program, results[program.name], findings)
    stage.metrics |= {
        **counts(rows, results.values(), models.values()),
        "selected": len(programs),
        "not_run": len(programs) - len(rows),
        "perplexity": {
            name: round(result.facts["perplexity"], 2) for name, result in models.items() if result.facts
        },
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
