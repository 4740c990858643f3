"""`divergence` of a suite's program, with the real compiler and emulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.lowering_suites import environment, suite
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.whole, pytest.mark.timeout(900)]


def test_an_operator_in_place_behind_the_end_of_a_program_does_not_change_it(tmp_path: Path) -> None:
    """All operators differ by some rounding; the programs that end before it are right."""
    case = {
        "factory": "lowering_models:in_place",
        "scheme": "16a8w",
        "thresholds": "sqnr_db = 1, reference_sqnr_db = 50",
    }
    answer = tmp_path / "found.json"
    words = ("--suite", suite(tmp_path, {"net": case}), "-k", "net/16a8w/SM8650", "--least", "200")
    done = typed(
        *("divergence", *words, "--json", answer),
        env=environment(QNN_CI_STORE=str(tmp_path / "store"), QNN_CI_REPORTS=str(tmp_path / "reports")),
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(answer.read_text())
    assert found["first"] and found["cuts"]["linear"] > 50
