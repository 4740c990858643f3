"""The common end of the stages that run a suite."""

from __future__ import annotations

from dataclasses import replace

from provisioning.base.findings import Report, StageRun
from provisioning.base.rendering import terminal
from provisioning.base.settings import Selection


def finish(stage: StageRun, selection: Selection, *, lacking: bool = False) -> int:
    """Write and show the report; returns the exit code. For `lacking` see StageRun.close."""

    def show(report: Report) -> None:
        figures = {name: value for name, value in report.metrics.items() if name != "programs"}
        terminal.show(replace(report, metrics=figures, artifacts=()))

    return stage.close(selection.reports, show=show, lacking=lacking)
