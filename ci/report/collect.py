"""Reading reports/: every file is accounted for, and a stage that should be there and is not says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from provisioning.base.findings import Finding, Outcome, Report, Severity
from provisioning.base.rendering.text import DID_NOT_RUN

GATE = "gate"
"""The gate's own report only repeats what the stages' say, so it is not shown beside them."""


def collect(directory: Path, expected: Sequence[str]) -> list[Report]:
    """Every stage's report: the expected first and in their order, then the others by name."""
    found: dict[str, Report] = {}
    strange: list[Finding] = []
    for path in sorted(directory.glob("*.json")):
        try:
            report = Report.read(path)
            if report.stage != path.stem:
                raise ValueError(f"{path}: holds the report of {report.stage}")
            found[report.stage] = report
        except (OSError, ValueError) as error:
            strange.append(_strange(path, error))
    found.pop(GATE, None)
    expected = list(dict.fromkeys(expected))
    missing = [stage for stage in expected if stage not in found]
    found |= {stage: did_not_run(stage, f"there is no report of {stage}") for stage in missing}
    reports = [found.pop(stage) for stage in expected]
    reports += found.values()
    if strange:
        reports.append(_stand_in("report", tuple(strange), f"nox -s report -- --reports {directory}"))
    return reports


def did_not_run(stage: str, reason: str, *, asked_for: bool = False) -> Report:
    """Stands in for the report of a stage that never ran; `asked_for` when the user skipped it."""
    severity = Severity.NOTE if asked_for else Severity.ERROR
    command = f"nox -s {stage}"
    return _stand_in(stage, (Finding(DID_NOT_RUN, severity, stage, reason, command),), command)


def _stand_in(stage: str, findings: tuple[Finding, ...], command: str) -> Report:
    return Report(
        stage=stage,
        profile="",
        target="",
        outcome=Outcome.ERROR,
        started="",
        seconds=0.0,
        findings=findings,
        artifacts=(),
        metrics={},
        command=command,
    )


def _strange(path: Path, error: Exception) -> Finding:
    return Finding(
        "report.unreadable",
        Severity.ERROR,
        path.name,
        str(error),
        f"run the stage again, or move {path} away if it is no report",
    )
