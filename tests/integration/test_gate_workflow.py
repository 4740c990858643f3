"""The pull request's own workflow, run with real sessions: green, and red when a stage fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.workflows.run import Finished, run_workflow

pytestmark = [pytest.mark.heavy, pytest.mark.whole]

ROW = "validate"
"""The only row of the gate that is run here."""


def gate(tmp_path: Path, event: str, **env: str) -> Finished:
    """The two events share GitHub's cache."""
    return run_workflow(
        tmp_path / event,
        "pr",
        event=event,
        everything_changed=True,
        rows=[ROW],
        env=env,
        cache=tmp_path / "cache",
    )


def test_the_gate_is_green_on_main_and_red_where_a_stage_of_a_pull_request_fails(tmp_path: Path) -> None:
    # As a push to main, which fills the cache.
    green = gate(tmp_path, "push")
    jobs = ("plan", ROW, "remember", "verdict")
    expected = {f"gate / {name}": "success" for name in jobs} | {"gate / changes": "skipped"}
    assert green.results() == expected, green.failures()
    assert "## ✅ 1 stage passed" in green.jobs[f"gate / {ROW}"].summary
    assert {"gate / lint", "gate / tests"} <= {job.name for job in green.every_job} - {*green.jobs}

    # As a pull request, in jobs whose QNN SDK is an empty shell.
    sdk = tmp_path / "hollow"
    (sdk / "include" / "QNN").mkdir(parents=True)
    (sdk / "include" / "QNN" / "QnnCommon.h").write_text("#define QNN_API_VERSION_MAJOR 2\n")
    red = gate(tmp_path, "pull_request", QNN_SDK_ROOT=str(sdk))
    assert red.results() == {
        "gate / plan": "success",
        f"gate / {ROW}": "failure",
        "gate / remember": "skipped",
        "gate / changes": "skipped",
        "gate / verdict": "failure",
    }, red.failures()
    stage = red.jobs[f"gate / {ROW}"]
    assert any(line.startswith("error: validate: required-libraries: ") for line in stage.annotations)
    assert "❌" in stage.summary
    assert re.search(rf"files as reports-wheels-\w{{8}}-{ROW}", red.log(f"gate / {ROW}"))
    # It uses what main cached, and saves nothing.
    log = red.log("gate / plan")
    assert "restored the cache qnn-ci-store-" in log and "saved the cache" not in log
