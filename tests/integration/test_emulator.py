"""The emulator's stage on its own: it lowers what it needs, measures, and sees another runner."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.lowering_suites import environment, run, suite
from tests.support.runner import dist, runner_reports

__all__ = ["dist", "runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


def _runner(folder: Path, script: str) -> Path:
    path = folder / "runner"
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(scope="module")
def base(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulator")


@pytest.mark.whole
def test_alone_it_lowers_first_and_keeps_both(base: Path) -> None:
    one = suite(base, {"net": {}})
    first = run("test_emulator", base, "--suite", one, "--reload")
    assert first.code == 0 and first.err.count("0 cached, 1 to do") == 3
    assert first.report.metrics["loaded again"] == 1
    rows = first.report.metrics["programs"]
    assert isinstance(rows, Mapping)
    (row,) = rows.values()
    assert isinstance(row, Mapping)
    assert all(isinstance(row[name], int | float) and row[name] for name in ("load_ms", "run_ms"))
    peak = row["peak_bytes"]
    # The emulator alone is tens of megabytes, and the model is nothing beside it.
    assert isinstance(peak, int | float) and 20 << 20 < peak < 2 << 30
    again = run("test_emulator", base, "--suite", one)
    assert again.cached() == {"net"} and again.err.count("1 cached, 0 to do") == 2


@pytest.mark.whole
def test_another_runner_runs_it_again(base: Path) -> None:
    other = _runner(base, "#!/bin/sh\nexit 7\n")
    done = run(
        "test_emulator",
        base,
        *("--suite", suite(base, {"net": {}})),
        environ=environment(QNN_EXECUTOR_RUNNER=str(other)),
    )
    (finding,) = [each for each in done.report.findings if each.rule == "emulator-run"]
    assert "exit code 7" in finding.message
