"""The compare command on two real QNN builds, with programs that a later build makes worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provisioning.base.findings import Report
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


@pytest.mark.whole
def test_the_build_that_a_known_fault_ends_with_is_found_and_the_operator(tmp_path: Path) -> None:
    """llama-decode-u16u8: 2.49.40 and 2.50.40 have it, and 2.51.0 does not."""
    asked = ("--bisect", "--qnn", "2.49.40..2.51", "--case", "llama_decode", "--soc", "SM8650", "--where")
    done = typed("compare", *asked, "--reports", tmp_path / "reports")
    report = Report.read(tmp_path / "reports" / "compare.json")
    assert report.metrics["bisect"] == {
        "order": ["2.49.40", "2.50.40", "2.51.0"],
        "measured": ["2.49.40", "2.50.40", "2.51.0"],
        "first": "2.51.0",
    }
    where: Any = report.metrics["where"]
    assert where["2.50.40"]["first"] and done.returncode == 0, done.stdout
