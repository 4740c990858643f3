"""The emulator's stage on its own: it lowers what it needs, measures, and sees another runner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.lowering_suites import run, suite
from tests.support.runner import dist, runner_reports

__all__ = ["dist", "runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


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
