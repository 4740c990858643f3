"""`test_llm`: every chosen program compiled, run and judged, unless it is cached."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

from ci.jobs import Job
from ci.lanes.llm.orders import EXECUTORCH, GENIE, Trained
from ci.lanes.llm.suite import SUITES, LlmProgram
from ci.lanes.llm.verdicts import findings_of, model_findings, report_row
from ci.lanes.llm.work import LlmPlan, reading, reading_by_executorch, require_installed, training
from ci.outcome import Result
from ci.plain import read
from ci.suite.options import Choice, StageOptions
from ci.suite.stage import Verdict, chosen, finish, report, run_cached_step, show_list
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.base.stage_run import StageRun

PACKAGES = ("executorch", "onnx", "onnxruntime", "onnxruntime-qnn", "torch", "tokenizers", "transformers")
STAGE, MODELS, VERDICTS = "test_llm", "models", "verdicts"


def run(options: StageOptions) -> int:
    """The exit code."""
    selection = options.selection
    if options.list_only:
        return show_list(_chosen_programs(options.choice, selection))
    stage = StageRun.as_typed(STAGE, selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, "llm-not-run"):
        require_installed()
        plan = LlmPlan.of(_chosen_programs(options.choice, selection), selection, options.work)
        first, *_ = plan.programs
        model = run_cached_step(training(plan), [first])[first.name]
        models = {program.name: model for program in plan.programs}
        measured = _measured(plan, models)
        # Of a program whose model was not trained, the finding about the model says it.
        verdicts = {
            program.name: Verdict(findings_of(program, result), report_row(program, result))
            for program in plan.programs
            if (result := measured.get(program.name))
        }
        report(stage, SUITES, plan, verdicts, {MODELS: models, VERDICTS: measured})
        of_case = {program.case_name: program for program in plan.programs}
        for name, program in of_case.items():
            stage.findings += model_findings(name, program.case.perplexity, models[program.name])
        trained = {
            name: read(Trained, models[program.name].facts)
            for name, program in of_case.items()
            if not models[program.name].failure
        }
        stage.metrics |= {
            "not_run": len(plan.programs) - len(measured),
            "perplexity": {name: round(model.perplexity, 2) for name, model in trained.items()},
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        }
    return finish(stage, selection)


def _chosen_programs(choice: Choice, selection: Selection) -> list[LlmProgram]:
    return chosen(SUITES, choice, selection, lambda every: {row.name: Job(row.name) for row in every})


def _measured(plan: LlmPlan, models: Mapping[str, Result]) -> dict[str, Result]:
    measured = dict[str, Result]()
    for through, step in {GENIE: reading, EXECUTORCH: reading_by_executorch}.items():
        trained = [
            program
            for program in plan.programs
            if program.run.through == through and (model := models[program.name]).folder and not model.failure
        ]
        if trained:
            measured |= run_cached_step(step(plan, models), trained)
    return measured
