"""`test_llm`: every chosen program compiled, run and judged, unless it is cached."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Mapping, Sequence

from ci.lanes.llm.orders import EXECUTORCH, GENIE
from ci.lanes.llm.suite import SUITES, LlmProgram
from ci.lanes.llm.verdicts import findings_of, model_findings, report_row
from ci.lanes.llm.work import LlmPlan, ReadExecutorchPrograms, ReadPrograms, Train, require_installed
from ci.outcome import Result
from ci.suite.cached_steps import run_cached_step
from ci.suite.installed import ready_environment
from ci.suite.lane import Lane, Mine, Results
from ci.suite.options import StageOptions
from provisioning.base.findings import Finding, Metric
from provisioning.base.stage_run import StageRun

PACKAGES = ("executorch", "onnx", "onnxruntime", "onnxruntime-qnn", "torch", "tokenizers", "transformers")
MODELS, VERDICTS = "models", "verdicts"


class LanguageModels(Lane[LlmProgram, LlmPlan]):
    stage, rules = "test_llm", "llm"
    suites = SUITES

    def require_installed(self) -> None:
        require_installed()

    def plan(self, programs: Sequence[LlmProgram], options: StageOptions) -> LlmPlan:
        selection = options.selection
        lowered = any(program.run.through == EXECUTORCH for program in programs)
        qnn_environment = ready_environment(selection, os.environ) if lowered else None
        logs = selection.reports.absolute() / "llm"
        return LlmPlan(tuple(programs), selection, options.work, logs, {}, qnn_environment)

    def do(self, plan: LlmPlan, *, new_baseline: bool) -> Results:
        models, verdicts = run_cached_step(Train(plan), plan.programs), dict[str, Result]()
        for through, step in {GENIE: ReadPrograms, EXECUTORCH: ReadExecutorchPrograms}.items():
            trained = [
                program
                for program in plan.programs
                if program.run.through == through
                and (model := models[program.name]).folder
                and not model.failure
            ]
            if trained:
                verdicts |= run_cached_step(step(plan, models), trained)
        return {MODELS: models, VERDICTS: verdicts}

    def reached(self, mine: Mine) -> bool:
        return VERDICTS in mine

    def findings(self, plan: LlmPlan, program: LlmProgram, mine: Mine) -> Iterable[Finding]:
        return findings_of(program, mine[VERDICTS])

    def row(self, plan: LlmPlan, program: LlmProgram, mine: Mine) -> Mapping[str, Metric]:
        return report_row(program, mine[VERDICTS])

    def close(self, stage: StageRun, plan: LlmPlan, results: Results) -> None:
        of_case = {program.case_name: program for program in plan.programs}
        models = {name: results[MODELS][program.name] for name, program in of_case.items()}
        for name, program in of_case.items():
            stage.findings += model_findings(name, program.case.perplexity, models[name])
        stage.metrics |= {
            "not_run": len(plan.programs) - len(results[VERDICTS]),
            "perplexity": {
                name: round(result.facts["perplexity"], 2) for name, result in models.items() if result.facts
            },
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        }
