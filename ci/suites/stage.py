"""What the stages that run a suite have in common: listing programs, and ending with a report."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ci.suites.history import add_history
from ci.suites.model import AnyProgram
from provisioning.base.findings import Report
from provisioning.base.rendering import terminal
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun


def print_list(programs: Iterable[AnyProgram[Any, Any]]) -> int:
    """Print names and tags; returns the exit code."""
    for program in programs:
        sys.stdout.write(f"{program.name}  [{', '.join(program.run.tags)}]\n")
    return 0


def finish(stage: StageRun, selection: Selection, *, lacking: bool = False) -> int:
    """Write and show the report; returns the exit code. For `lacking` see StageRun.close."""
    add_history(stage.metrics, stage.stage, selection.profile, selection.store)

    def show(report: Report) -> None:
        figures = {name: value for name, value in report.metrics.items() if name != "programs"}
        terminal.show(replace(report, metrics=figures, artifacts=()))

    return stage.close(selection.reports, show=show, lacking=lacking)
