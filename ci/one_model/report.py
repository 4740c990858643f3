"""Write the reports of the commands for one model. A report keeps what the command did for other models
before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from ci.one_model.model import OneModel
from provisioning.base import answer
from provisioning.base.errors import ToolkitError, UsageError
from provisioning.base.files import mutex, replace_text
from provisioning.base.findings import Artifact, Edit, Finding, Metric, Place, Report, Severity
from provisioning.base.settings import DEFAULT_TARGET
from provisioning.base.stage_run import StageRun

MODELS = "models"
"""The metric of a report that has a row for each model."""


@dataclass
class ModelReport:
    """The report of one command about one model, beside the printed words."""

    name: str
    model: OneModel
    stage: StageRun

    def warn(self, messages: Iterable[str]) -> None:
        for message in messages:
            self.stage.add("model-warning", Severity.WARNING, self.name, message)

    def fail(
        self,
        message: str,
        fix: str = "",
        place: Place | None = None,
        edit: Edit | None = None,
    ) -> None:
        finding = Finding("model-failed", Severity.ERROR, self.name, message, fix, place, edit)
        self.stage.findings.append(finding)

    def wrote(self, paths: Iterable[Path]) -> None:
        self.stage.artifacts += [Artifact.of(path.suffix.lstrip("."), path) for path in paths]


def report_work(verb: str, model: OneModel, about: Iterable[str], work: Callable[[ModelReport], int]) -> int:
    """Do the work, put it into the verb's report with what it printed, and return its exit code.

    `about` names the request: the same request for the same model replaces its earlier row. A usage error is
    no work, and is not in the report."""
    # Imported late: the gate's start needs of this module a name alone.
    from ci.work import sharing_templates

    selection = model.selection
    name = " ".join(filter(None, [model.typed, *about]))
    report = ModelReport(name, model, StageRun(verb, selection.profile, DEFAULT_TARGET))
    tee = answer.Tee(sys.stdout)
    output = tee.copy
    try:
        with redirect_stdout(tee), sharing_templates():
            code = work(report)
    except UsageError:
        raise
    except ToolkitError as error:
        report.fail(error.message, error.fix)
        _write(report, output.getvalue())
        raise
    if code and not any(finding.severity is Severity.ERROR for finding in report.stage.findings):
        report.fail(f"{verb} ended with exit code {code}")
    _write(report, output.getvalue())
    return code


def _write(report: ModelReport, output: str) -> None:
    """Write the report. The command has done its work, so if a folder refuses the report, this prints a note
    and keeps the result."""
    reports = report.model.selection.reports
    try:
        reports.mkdir(parents=True, exist_ok=True)
        with mutex(reports / f".{report.stage.stage}.lock"):
            _merge_report(report, output, reports)
    except (ToolkitError, OSError) as error:
        sys.stderr.write(f"note: {reports / report.stage.stage}.json was not written: {error}\n")


def _merge_report(report: ModelReport, output: str, reports: Path) -> None:
    stage, name = report.stage, report.name
    # Before the merge: this verdict is of this model alone.
    now = stage.finish()
    row: dict[str, Metric] = {
        "verdict": now.outcome.value,
        "said": [*output.splitlines()],
        "command": stage.command,
        "when": stage.started,
        "seconds": now.seconds,
    }
    models: dict[str, Metric] = {name: row}
    with suppress(FileNotFoundError, ValueError):
        earlier = Report.read(reports / f"{stage.stage}.json")
        if isinstance(rows := earlier.metrics.get(MODELS), dict):
            models = {**{model: rows[model] for model in rows if model != name}, name: row}
        stage.findings += [finding for finding in earlier.findings if finding.subject != name]
        paths = {artifact.path for artifact in stage.artifacts}
        stage.artifacts += [
            artifact
            for artifact in earlier.artifacts
            if artifact.path not in paths and Path(artifact.path).is_file()
        ]
    stage.metrics[MODELS] = models
    # Not by `StageRun.write`: an answer (--json) has this command's own findings alone.
    replace_text(reports / f"{stage.stage}.json", stage.finish().to_json())
