"""The step that asks QNN what a model will take, in a compile of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ci.forecast.forecasts import Forecasted, by_measurement, forecast, load_fit
from ci.forecast.phones import load_forecasts
from ci.lanes.onnx.compile import PROGRAM
from ci.lanes.onnx.suite import OnnxProgram
from ci.lanes.onnx.user_program import OneModelStep, plan_of_model, program_of
from ci.suite.cached_steps import require_done, run_cached_step
from ci.suite.one_model import OneModel


@dataclass(frozen=True, kw_only=True)
class EstimateOnnx(OneModelStep):
    """The estimates for `chips` of the model in its precision. The program's own chip does not matter."""

    kind = "onnx-estimate"
    title = "estimates"
    keeps_files = False

    chips: tuple[str, ...]

    function = f"{PROGRAM}:estimated"

    def preparing(self, program: OnnxProgram) -> dict[str, Any]:
        return {"drawn": True, "verify": False}

    def options(self, program: OnnxProgram) -> dict[str, Any]:
        return {"chips to estimate": list(self.chips)}


def forecast_of_chip(program: OnnxProgram, estimate: Mapping[str, Any] | None) -> Forecasted | None:
    """Of the phones that have the program's chip."""
    table = load_forecasts()
    if estimate is None or not (phones := table.of_chip(program.soc)):
        return None
    return forecast(program.run.kind, estimate, load_fit(), table).of(phones)


def forecasted(model: OneModel, phones: Sequence[str], measured: str | None) -> Forecasted:
    """Of an .onnx, on these phones, or by what was measured on one."""
    table, fit = load_forecasts(), load_fit()
    program = program_of(model)
    plan, kind = plan_of_model(model, program), program.run.kind
    chips = table.chips(kind, phones if measured is None else table.phones)
    step = EstimateOnnx(replace(plan, programs=plan.programs[:1]), chips=chips)
    result = require_done(run_cached_step(step, step.plan.programs)[step.plan.programs[0].name])
    found = forecast(kind, result.facts, fit, table)
    return found if measured is None else by_measurement(measured, kind, found, fit, table)
