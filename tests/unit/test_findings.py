"""A stage's report is written however the stage ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Outcome, Report, Severity
from provisioning.base.stage_run import StageRun


@pytest.mark.parametrize(
    ("error", "outcome", "message", "remedy"),
    [
        (EnvironmentLacking("no QNN", remedy="provision"), Outcome.ERROR, "no QNN", "provision"),
        (CheckFailed("is bad", remedy="mend it"), Outcome.FAIL, "is bad", "mend it"),
        (KeyboardInterrupt(), Outcome.ERROR, "interrupted", "nox -s lint"),
        (KeyError("k"), Outcome.ERROR, "KeyError: 'k'", "report what it printed; repeat with: nox -s lint"),
    ],
)
def test_what_ends_a_stage_early_is_a_finding_of_its_report(
    tmp_path: Path, error: BaseException, outcome: Outcome, message: str, remedy: str
) -> None:
    stage = StageRun("lint", "wheels", "x86_64-linux", "nox -s lint")
    with pytest.raises(type(error)), stage.reported(tmp_path, "lint.stopped", ""):
        raise error
    report = Report.read(tmp_path / "lint.json")
    (finding,) = report.findings
    assert (report.outcome, finding.rule) == (outcome, "lint.stopped")
    assert (finding.subject, finding.message, finding.remedy) == ("lint", message, remedy)


@pytest.mark.parametrize(
    ("severity", "strict", "code"),
    [(Severity.ERROR, False, 1), (Severity.WARNING, False, 0), (Severity.WARNING, True, 1)],
)
def test_closing_writes_shows_and_gives_the_exit_code(
    severity: Severity, strict: bool, code: int, tmp_path: Path
) -> None:
    stage = StageRun("lint", "wheels", "", "nox -s lint")
    stage.add("rule", severity, "file", "is bad")
    shown: list[Report] = []
    assert stage.close(tmp_path, strict=strict, show=shown.append) == code
    assert shown == [Report.read(tmp_path / "lint.json")]
