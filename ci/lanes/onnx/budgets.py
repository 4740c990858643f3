"""A run's budget: what phones may take for it, held to the forecast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ci.lanes.onnx.suite import SUITES, OnnxProgram
from ci.pipeline.forecast import Forecasted, forecast, load_fit
from ci.pipeline.phones import load_forecasts
from provisioning.base.findings import Finding, Severity

LANE = "onnx"


def forecast_of(program: OnnxProgram, facts: Mapping[str, Any]) -> Forecasted:
    """Of a program whose run asks for one."""
    if not (estimate := facts.get("estimate")):
        return Forecasted(withheld="the compiler gave no estimate")
    return forecast(LANE, program.run.kind, estimate, load_fit(LANE), load_forecasts())


def over_budget(program: OnnxProgram, facts: Mapping[str, Any]) -> Iterator[Finding]:
    """An error where even the least that is forecast is above the budget, a warning where the most is."""
    again = SUITES.repeat(program)
    if not program.run.budget:
        return
    found = forecast_of(program, facts)
    if found.withheld:
        message = f"its budget cannot be held: no forecast, {found.withheld}"
        fix = found.fix or "measure it on a phone, and leave budget out"
        yield Finding("forecast-withheld", Severity.WARNING, program.name, message, fix)
        return
    for row in found.forecasts:
        limit = program.run.budget.get(row.phone)
        if limit is None or row.most_ms <= (most := float(limit.removesuffix(" ms"))):
            continue
        severity = Severity.ERROR if row.least_ms > most else Severity.WARNING
        message = f"expected at most {limit} on a {row.phone}, forecast {row.ms:.3g} ms"
        message += f" ({row.least_ms:.3g} to {row.most_ms:.3g})"
        fix = f"make it smaller, or if it is meant, change budget in its run; then {again}"
        yield Finding("forecast-budget", severity, program.name, message, fix)
