"""A run's budget: what phones may take for it, held to the forecast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ci.lanes.onnx.suite import SUITES, OnnxProgram
from ci.pipeline.forecast import Forecasted, forecast, load_fit
from ci.pipeline.phones import load_forecasts
from provisioning.base.commands import Fix
from provisioning.base.findings import Finding, Severity


def forecast_of(program: OnnxProgram, facts: Mapping[str, Any]) -> Forecasted:
    return forecast(program.run.kind, facts.get("estimate"), load_fit(), load_forecasts())


def over_budget(program: OnnxProgram, facts: Mapping[str, Any]) -> Iterator[Finding]:
    """An error where even the least that is forecast is above the budget, a warning where the most is."""
    if not program.run.budget:
        return
    again, found = SUITES.repeat(program), forecast_of(program, facts)
    for phone, limit in program.run.budget.items():
        of_phone, most = found.of([phone]), float(limit.removesuffix(" ms"))
        if of_phone.withheld:
            message = f"its budget cannot be held: no forecast, {of_phone.withheld}"
            fix = found.fix or "measure it on a phone, and leave budget out"
            yield Finding("forecast-withheld", Severity.WARNING, program.name, message, fix)
        for row in of_phone.forecasts:
            if row.most_ms <= most:
                continue
            severity = Severity.ERROR if row.least_ms > most else Severity.WARNING
            message = f"expected at most {limit} on a {row.phone}, forecast {row.ms:.3g} ms"
            message += f" ({row.least_ms:.3g} to {row.most_ms:.3g})"
            fix = Fix("make it smaller, or if you intend it, change budget in its run; then {}", again)
            yield Finding("forecast-budget", severity, program.name, message, fix)
