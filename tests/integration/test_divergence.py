"""`divergence` with the real compiler and emulator: the operator at which the chip's program is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.lowering_suites import environment, suite
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.whole, pytest.mark.timeout(900)]


def divergence(tmp_path: Path, model: str, *arguments: str) -> tuple[dict[str, Any], str]:
    """The first operator that differs, and what was printed."""
    case = {
        "factory": f"lowering_models:{model}",
        "scheme": "16a8w",
        "thresholds": "sqnr_db = 1, reference_sqnr_db = 50",
    }
    answer = tmp_path / "found.json"
    words = ["--suite", str(suite(tmp_path, {"net": case})), "-k", "net/16a8w/SM8650", *arguments]
    done = typed(
        *("divergence", *words, "--json", str(answer)),
        env=environment(QNN_CI_STORE=str(tmp_path / "store"), QNN_CI_REPORTS=str(tmp_path / "reports")),
    )
    assert done.returncode == 1, done.stderr
    return json.loads(answer.read_text())["first"], done.stdout


def test_the_operator_that_the_emulator_computes_wrongly_is_named(tmp_path: Path) -> None:
    first, printed = divergence(tmp_path, "logarithm")
    assert first["operator"] == "aten.log.default" and "torch.log(y)" in first["code"]
    assert first["sqnr_db"] < 10 and first["operands"]
    assert all(value > 50 for value in first["operands"].values())
    assert "torch.log(y)" in printed


def test_an_operator_in_place_behind_the_end_of_a_program_does_not_change_it(tmp_path: Path) -> None:
    """All operators differ by some rounding, so the first is the first of the model."""
    first, _ = divergence(tmp_path, "in_place", "--least", "200")
    assert (first["operator"], first["operands"]) == ("aten.linear.default", {})
