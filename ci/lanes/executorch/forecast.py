"""Asks QNN what a PyTorch model will take: a compile of its own for each chip with estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ci.artifacts.simulation import Simulation
from ci.engine.progress import Line, failed
from ci.engine.runs import Repeats
from ci.engine.work import Failure, Result
from ci.lanes.executorch.compile import ExecutorchPlan, Lower
from ci.lanes.executorch.judge import failure_in_words
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.lanes.executorch.timing import simulations
from ci.lanes.executorch.user_program import plan_of_model, program_of
from ci.pipeline.forecast import Forecasted, by_measurement, forecast, load_fit, not_fitted
from ci.pipeline.options import OneModel
from ci.pipeline.phones import load_forecasts
from ci.pipeline.steps import Ask, run_step
from provisioning.base.errors import ToolkitError

LANE = "executorch"


@dataclass(frozen=True)
class EstimateLowered(Lower):
    """The estimate for the program's chip. The program itself is thrown away."""

    kind = "estimate"
    keeps_files = False
    log_in_folder = ""
    repeats = Repeats()

    @property
    def title(self) -> str:
        return f"estimates of QNN {self.plan.basis.build_id}"

    def work(self, program: ExecutorchProgram, ask: Ask) -> Mapping[str, Any]:
        return ask(**program.order, estimate=True)

    def accepts(self, program: ExecutorchProgram, result: Result) -> bool:
        return True

    def line(self, program: ExecutorchProgram, result: Result) -> Line:
        if result.failure:
            return failed(result.failure.kind)
        estimate = result.facts["estimate"]
        return Line("passed", f"{estimate['us']:,} us" if estimate else "no estimate")


def estimates_of(
    plan: ExecutorchPlan, chips: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, Failure]]:
    """By program, as the ONNX lane has them: the estimates for these chips, why one has none, the operators;
    or why it does not compile."""
    of_chips = [replace(program, soc=chip) for program in plan.programs for chip in chips]
    results = run_step(EstimateLowered(replace(plan, programs=tuple(of_chips))), of_chips)
    found, failures = {}, {}
    for program in plan.programs:
        mine = {chip: results[replace(program, soc=chip).name] for chip in chips}
        if failed := [result.failure for result in mine.values() if result.failure]:
            failures[program.name] = failed[0]
        else:
            found[program.name] = _together({chip: result.facts for chip, result in mine.items()}, plan)
    return found, failures


def _together(facts: Mapping[str, Mapping[str, Any]], plan: ExecutorchPlan) -> dict[str, Any]:
    estimates, refused = {}, {}
    for chip, of_chip in facts.items():
        if left := of_chip["left"]:
            refused[chip] = f"{left} of its operators stay on the CPU"
        elif of_chip["estimate"]:
            estimates[chip] = of_chip["estimate"]
    operators = Counter(next(iter(facts.values()))["operators"])
    return {
        "build_id": plan.basis.build_id,
        "estimates": estimates,
        "refused": refused,
        "operators": dict(operators),
        "cpu_seconds": sum(of_chip["cpu_seconds"] for of_chip in facts.values()),
    }


def simulated_on(model: OneModel, chips: Sequence[str]) -> dict[str, Simulation]:
    programs = {chip: program_of(model, chip) for chip in chips}
    found = simulations(plan_of_model(model, "timing", [*programs.values()]))
    return {chip: found[program.name] for chip, program in programs.items()}


def forecasted(model: OneModel, measured: str | None) -> Forecasted:
    """Of a PyTorch model, on all phones that were fitted. What no fit is for is not compiled."""
    table, fit = load_forecasts(), load_fit(LANE)
    program = program_of(model, table.chips[0])
    plan = plan_of_model(model, "forecast", [program])
    if program.backend != "htp":
        return Forecasted(withheld=f"phones were measured on HTP, not on {program.backend}")
    if unfitted := not_fitted(LANE, plan.basis.build_id, program.run.kind, fit):
        return unfitted
    found, failures = estimates_of(plan, table.chips)
    if failure := failures.get(program.name):
        message, fix = failure_in_words(program, failure)
        raise ToolkitError(message, fix=fix, exit_code=failure.exit_code)
    forecasts = forecast(LANE, program.run.kind, found[program.name], fit, table)
    return by_measurement(measured, forecasts, fit, table) if measured and fit else forecasts
