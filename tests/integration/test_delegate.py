"""The delegate suite itself: the installed executorch, the provisioned SDK, the runner that was built."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from ci.lanes.upstream.accepted import load_tests
from provisioning.base.findings import Report, Severity
from tests.support.runner import dist, file_store, runner_reports
from tests.support.typed import typed

__all__ = ["dist", "file_store", "runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600), pytest.mark.usefixtures("file_store")]

ONE = "*TestQNNQuantizedOperator.test_qnn_backend_abs"


def delegate(base: Path, *flags: str, **variables: str) -> tuple[int, Report]:
    done = typed("test_delegate", *flags, "--reports", base / "reports", env={**os.environ, **variables})
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, Report.read(base / "reports" / "test_delegate.json")


@pytest.mark.whole
def test_the_whole_suite_is_found_and_every_test_has_a_recorded_length(tmp_path: Path) -> None:
    done = typed("test_delegate", "--list", "--reports", tmp_path / "reports")
    tests = [line.split()[2] for line in done.stdout.splitlines()[:-1]]
    recorded = load_tests("delegate", "wheels", "SM8650").tests
    assert (len(tests), set(tests)) == (374, set(recorded))


def test_a_test_passes_on_the_emulator_and_a_second_run_is_cached(tmp_path: Path) -> None:
    code, report = delegate(tmp_path, "-k", ONE)
    assert (code, report.metrics["passed"], report.metrics["cached"]) == (0, 1, 0)
    code, report = delegate(tmp_path, "-k", ONE)
    assert (code, report.metrics["passed"], report.metrics["cached"]) == (0, 1, 1)
    assert not (tmp_path / "reports" / "delegate" / "TestQNNQuantizedOperator.test_qnn_backend_abs").exists()


@pytest.mark.whole
def test_an_operator_that_a_copy_of_executorch_lowers_wrongly_is_found(tmp_path: Path) -> None:
    """What was remembered of the same test is not taken for it."""
    code, _ = delegate(tmp_path, "-k", ONE)
    assert code == 0
    spec = importlib.util.find_spec("executorch")
    assert spec and spec.submodule_search_locations
    (installed,) = spec.submodule_search_locations
    shutil.copytree(installed, tmp_path / "executorch", copy_function=os.link)
    builder = tmp_path / "executorch" / "backends/qualcomm/builders/op_abs.py"
    planted = builder.read_text().replace("OpElementWiseAbs", "OpElementWiseNeg")
    assert planted != builder.read_text()
    builder.unlink()  # It is one file with the installed one.
    builder.write_text(planted)
    code, report = delegate(tmp_path, "-k", ONE, PYTHONPATH=str(tmp_path))
    (finding,) = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert code == 1 and finding.subject.endswith("test_qnn_backend_abs")
    assert report.metrics["failed"] == 1 and report.metrics["cached"] == 0
