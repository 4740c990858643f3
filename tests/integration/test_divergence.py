"""`divergence` with the real compiler and emulator: the operator at which the chip's program is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.lowering_suites import environment, suite
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.whole, pytest.mark.timeout(900)]


def test_the_operator_that_the_emulator_computes_wrongly_is_named(tmp_path: Path) -> None:
    case = {
        "factory": "lowering_models:logarithm",
        "scheme": "16a8w",
        "thresholds": "sqnr_db = 1, reference_sqnr_db = 50",
    }
    answer = tmp_path / "found.json"
    done = typed(
        "divergence",
        *("--suite", suite(tmp_path, {"log": case}), "-k", "log/16a8w/SM8650", "--json", answer),
        env=environment(QNN_CI_STORE=str(tmp_path / "store"), QNN_CI_REPORTS=str(tmp_path / "reports")),
    )
    assert done.returncode == 1, done.stderr
    first = json.loads(answer.read_text())["first"]
    assert first["operator"] == "aten.log.default" and "torch.log(y)" in first["code"]
    assert first["sqnr_db"] < 10 and all(value > 50 for value in first["operands"].values())
    assert "torch.log(y)" in done.stdout
