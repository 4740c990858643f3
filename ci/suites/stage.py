"""How a stage that does a suite ends."""

from __future__ import annotations

from dataclasses import replace

from provisioning.base.findings import Outcome, StageRun
from provisioning.base.settings import Selection


def finish(stage: StageRun, selection: Selection) -> int:
    """Write and show the report; returns the exit code."""
    from provisioning.base.rendering import show

    report = stage.finish()
    report.write(selection.reports)
    figures = {name: value for name, value in report.metrics.items() if name != "programs"}
    show(replace(report, metrics=figures, artifacts=()))
    return 0 if report.outcome is Outcome.PASS else 1
