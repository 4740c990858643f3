"""`forecast` of an .onnx: QNN is asked what the model will take, in a compile of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ci.cached_steps import Step
from ci.forecast import Forecasted, QnnEstimates, by_measurement, forecast, load_fit, load_forecasts
from ci.lanes.onnx.compile import OnnxPlan
from ci.lanes.onnx.records import Chips, Preparing
from ci.lanes.onnx.suite import OnnxProgram
from ci.lanes.onnx.user_program import answered, command_step, plan_of_model, program_of
from ci.one_model.model import OneModel


def estimating(plan: OnnxPlan, chips: Sequence[str]) -> Step:
    """The estimates for `chips` of each model in its precision. The program's own chip does not matter."""
    return command_step(
        plan,
        "onnx-estimate",
        "estimated",
        asked=Chips(tuple(chips)),
        prepared=Preparing(drawn=True, compares=False),
        title="estimates",
    )


def forecast_of_chip(program: OnnxProgram, estimates: QnnEstimates | None) -> Forecasted | None:
    """Of the phones that have the program's chip."""
    table = load_forecasts()
    if estimates is None or not (phones := table.of_chip(program.soc)):
        return None
    return forecast(program.run.kind, estimates, load_fit(), table).of(phones)


def forecasted(model: OneModel, phones: Sequence[str], measured: str | None) -> Forecasted:
    """Of an .onnx, on these phones, or by what was measured on one."""
    table, fit = load_forecasts(), load_fit()
    program = program_of(model)
    plan, kind = plan_of_model(model, program), program.run.kind
    chips = table.chips(kind, phones if measured is None else table.phones)
    asked = answered(estimating(replace(plan, programs=plan.programs[:1]), chips), QnnEstimates)
    found = forecast(kind, asked.answer, fit, table)
    return found if measured is None else by_measurement(measured, kind, found, fit, table)
