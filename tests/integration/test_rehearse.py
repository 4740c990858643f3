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


def test_the_gate_is_green_on_main_and_red_where_a_stage_of_a_pull_request_fails(tmp_path: Path) -> None:
    # As a push to main, which fills the cache.
    green = rehearse(tmp_path / "green", "--event", "push")
    jobs = ("plan", ROW, "remember", "verdict")
    assert (green.code, green.results()) == (0, {f"gate / {name}": "success" for name in jobs}), green.output
    assert green.report.outcome is Outcome.PASS
    assert "## ✅ 1 stage passed" in green.jobs[f"gate / {ROW}"]["summary"]
    left_out = {f.subject for f in green.report.findings if f.rule == "rehearse.left-out"}
    assert {"gate / lint", "gate / tests"} <= left_out

    # As a pull request, in jobs whose QNN SDK is an empty shell.
    sdk = tmp_path / "hollow"
    (sdk / "include" / "QNN").mkdir(parents=True)
    (sdk / "include" / "QNN" / "QnnCommon.h").write_text("#define QNN_API_VERSION_MAJOR 2\n")
    red = rehearse(tmp_path / "red", "--env", f"QNN_SDK_ROOT={sdk}")
    assert red.code == 1, red.output
    assert red.results() == {
        "gate / plan": "success",
        f"gate / {ROW}": "failure",
        "gate / remember": "skipped",
        "gate / verdict": "failure",
    }
    stage = red.jobs[f"gate / {ROW}"]
    assert any(one.startswith("error: validate: required-libraries: ") for one in stage["annotations"])
    assert "❌" in stage["summary"] and f"files as reports-wheels-{ROW}" in red.log(f"gate / {ROW}")
    # It verifies what main cached, and saves nothing.
    log = red.log("gate / plan")
    assert "restored the cache qnn-ci-store-" in log and ": whole (" in log and "saved the cache" not in log
