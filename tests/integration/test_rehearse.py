"""The pull request's own workflow, rehearsed with real sessions: green, and red when a stage fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.base.findings import Outcome
from tests.support import rehearsed
from tests.support.rehearsed import Rehearsed

pytestmark = [pytest.mark.heavy, pytest.mark.whole]

ROW = "validate"
"""The only row of the gate that is run here; `nox -s rehearse -- pr` runs them all."""


def rehearse(reports: Path, *flags: str) -> Rehearsed:
    return rehearsed.rehearse(reports, "pr", "--row", ROW, "--base", "none", *flags)


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """As a push to main, which fills the cache."""
    return rehearse(tmp_path_factory.mktemp("green"), "--event", "push")


@pytest.fixture(scope="module")
def red(green: Rehearsed, tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """As a pull request, in jobs whose QNN SDK is an empty shell."""
    sdk = tmp_path_factory.mktemp("sdk") / "hollow"
    (sdk / "include" / "QNN").mkdir(parents=True)
    (sdk / "include" / "QNN" / "QnnCommon.h").write_text("#define QNN_API_VERSION_MAJOR 2\n")
    return rehearse(tmp_path_factory.mktemp("red"), "--env", f"QNN_SDK_ROOT={sdk}")


def test_the_gate_is_green_from_plan_to_verdict(green: Rehearsed) -> None:
    jobs = ("plan", ROW, "remember", "verdict")
    expected = {f"gate / {name}": "success" for name in jobs}
    assert (green.code, green.results()) == (0, expected), green.output
    assert green.report.outcome is Outcome.PASS


def test_the_summary_of_a_stage_is_what_github_would_show(green: Rehearsed) -> None:
    assert "## ✅ 1 stage passed" in green.jobs[f"gate / {ROW}"]["summary"]
    assert "| stage | ✅ success |" in green.jobs["gate / verdict"]["summary"]
    assert "| delegate | " in green.jobs["gate / plan"]["summary"]


def test_rows_that_were_not_run_are_reported_as_left_out(green: Rehearsed) -> None:
    left_out = {f.subject for f in green.report.findings if f.rule == "rehearse.left-out"}
    assert {"gate / lint", "gate / tests"} <= left_out


def test_a_failing_stage_makes_the_verdict_red(red: Rehearsed) -> None:
    assert red.code == 1, red.output
    assert red.results() == {
        "gate / plan": "success",
        f"gate / {ROW}": "failure",
        "gate / remember": "skipped",
        "gate / verdict": "failure",
    }


def test_the_annotations_of_a_failing_stage_are_its_findings(red: Rehearsed) -> None:
    annotations = red.jobs[f"gate / {ROW}"]["annotations"]
    assert any(one.startswith("error: validate: required-libraries: ") for one in annotations)
    assert red.jobs["gate / verdict"]["annotations"] == ["error: verdict: stage: failure"]


def test_a_failing_stage_still_has_its_summary_and_its_reports(red: Rehearsed) -> None:
    assert "❌" in red.jobs[f"gate / {ROW}"]["summary"]
    assert f"files as reports-wheels-{ROW}" in red.log(f"gate / {ROW}")


def test_a_pull_request_verifies_what_main_cached_and_saves_nothing(red: Rehearsed) -> None:
    log = red.log("gate / plan")
    assert "restored the cache qnn-ci-store-" in log
    assert ": whole (" in log
    assert "saved the cache" not in log
