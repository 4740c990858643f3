"""A stage's report is written however the stage ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Outcome, Report, Severity
from provisioning.base.settings import ROOT
from provisioning.base.stage_run import StageRun


@pytest.mark.parametrize(
    ("error", "outcome", "message", "fix"),
    [
        (EnvironmentLacking("no QNN", fix="provision"), Outcome.ERROR, "no QNN", "provision"),
        (CheckFailed("is bad", fix="mend it"), Outcome.FAIL, "is bad", "mend it"),
        (KeyboardInterrupt(), Outcome.ERROR, "interrupted", "nox -s lint"),
        (KeyError("k"), Outcome.ERROR, "KeyError: 'k'", "nox -s lint"),
    ],
)
def test_what_ends_a_stage_early_is_a_finding_of_its_report(
    tmp_path: Path, error: BaseException, outcome: Outcome, message: str, fix: str
) -> None:
    stage = StageRun("lint", "wheels", "x86_64-linux", "nox -s lint")
    with pytest.raises(type(error)), stage.reported(tmp_path, "lint.stopped", ""):
        raise error
    report = Report.read(tmp_path / "lint.json")
    (finding,) = report.findings
    assert (report.outcome, finding.rule) == (outcome, "lint.stopped")
    assert (finding.subject, finding.message) == ("lint", message) and fix in finding.fix


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


WRITES = """\
import resource, sys
from pathlib import Path
from provisioning.base.command_line import guarded
from provisioning.base.stage_run import StageRun

def work():
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
    StageRun("lint", "wheels", "x86_64-linux", "nox").finish().write(Path(sys.argv[1]))
    return 0

sys.exit(guarded(work, debug=False))
"""


def test_a_report_for_which_there_is_no_room_lacks_a_disk_and_is_no_usage_error(tmp_path: Path) -> None:
    """A limit on the length of files stands for a full disk."""
    run = subprocess.run(
        [sys.executable, "-c", WRITES, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 3 and str(tmp_path / "lint.json") in run.stderr, run.stderr
    assert "free some space at" in run.stderr and list(tmp_path.iterdir()) == []
