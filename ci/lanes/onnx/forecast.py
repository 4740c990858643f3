"""The step that asks QNN what a model will take, in a compile of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ci.artifacts.simulation import COSTS, TRACE, Simulation, read_simulation
from ci.engine.memo import Memo
from ci.engine.progress import Line, failed
from ci.engine.runs import Repeats
from ci.engine.work import Result
from ci.lanes.onnx.budgets import LANE
from ci.lanes.onnx.suite import OnnxProgram
from ci.lanes.onnx.user_program import OneModelStep, plan_of_model, prepared, program_of
from ci.pipeline.forecast import Forecasted, by_measurement, forecast, load_fit
from ci.pipeline.options import OneModel
from ci.pipeline.phones import load_forecasts
from ci.pipeline.steps import Ask, require_done, run_step
from provisioning.base.findings import Metric


@dataclass(frozen=True, kw_only=True)
class EstimateOnnx(OneModelStep):
    """The estimates for `chips` of the model in its precision. The program's own chip does not matter."""

    kind = "onnx-estimate"
    title = "estimates"
    keeps_files = False
    # 20 repeats of one compile gave one estimate.
    repeats = Repeats()

    chips: tuple[str, ...]

    def key(self, program: OnnxProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        return {**super().key(program, memo, environ), "chips": list(self.chips)}

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        common, _ = prepared(program, ask, ask.scratch / program.name, drawn=True, verify=False)
        return ask(do="estimate", **common, chips=list(self.chips))

    def line(self, program: OnnxProgram, result: Result) -> Line:
        if result.failure:
            return failed(result.failure.kind)
        estimates = result.facts["estimates"].values()
        return Line("passed", ", ".join(f"{estimate['us']} us" for estimate in estimates) or "no estimate")


@dataclass(frozen=True, kw_only=True)
class SimulateOnnx(OneModelStep):
    """QNN's simulation of the program's chip, as the files that its compiler writes."""

    kind = "onnx-simulate"
    title = "simulations"
    repeats = Repeats()

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        common, _ = prepared(program, ask, ask.scratch / program.name, drawn=True, verify=False)
        return ask(do="simulate", **common)

    def line(self, program: OnnxProgram, result: Result) -> Line:
        if result.failure:
            return failed(result.failure.kind)
        return Line("passed", f"{result.facts['us']:,.0f} us simulated")


def simulated_on(model: OneModel, chips: Sequence[str]) -> dict[str, Simulation]:
    """By chip; each is a compile of its own."""
    program = program_of(model)
    plan = plan_of_model(model, program)
    programs = tuple(replace(program, soc=chip) for chip in chips)
    results = run_step(SimulateOnnx(replace(plan, programs=programs)), programs)
    found = {}
    for program in programs:
        folder = require_done(results[program.name]).folder
        assert folder is not None
        found[program.soc] = read_simulation(folder / TRACE, folder / COSTS)
    return found


def simulated(model: OneModel, program: OnnxProgram) -> tuple[Simulation, str]:
    """Of the program's chip, with the QNN build that simulates it."""
    step = SimulateOnnx(plan_of_model(model, program))
    result = require_done(run_step(step, step.plan.programs[:1])[step.plan.programs[0].name])
    assert result.folder is not None
    return read_simulation(result.folder / TRACE, result.folder / COSTS), str(result.facts["build_id"])


def forecast_of_chip(program: OnnxProgram, estimate: Mapping[str, Any] | None) -> list[str]:
    """What `compile` says of the phones that have the program's chip."""
    table = load_forecasts()
    if estimate is None or not (phones := table.of_chip(program.soc)):
        return []
    found = forecast(LANE, program.run.kind, estimate, load_fit(LANE), table)
    return found.in_words([row for row in found.forecasts if row.phone in phones])


def forecasted(model: OneModel, measured: str | None) -> Forecasted:
    """Of an .onnx, on all phones that were fitted."""
    table, fit = load_forecasts(), load_fit(LANE)
    program = program_of(model)
    plan = plan_of_model(model, program)
    step = EstimateOnnx(replace(plan, programs=plan.programs[:1]), chips=table.chips)
    result = require_done(run_step(step, step.plan.programs)[step.plan.programs[0].name])
    found = forecast(LANE, program.run.kind, result.facts, fit, table)
    return by_measurement(measured, found, fit, table) if measured and fit else found
