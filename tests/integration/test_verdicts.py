"""What is no agreement with the float model is no pass, with the real compilers and the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.suite.limits import DEFAULT_FLOORS
from tests.support.lowering_suites import run, suite

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


# Nightly, as it lowers and runs four programs: test_gate_models.py has a wrong program and a good one in
# .ci/run, and tests/unit/test_accuracy.py such outputs in each run.
@pytest.mark.whole
def test_in_executorchs_lane_other_classes_and_less_than_ten_db_fail_and_what_stands_still_is_warned_of(
    tmp_path: Path,
) -> None:
    cases = {
        name: {"factory": f"lowering_models:{name}", "scheme": "8a8w", "thresholds": ""}
        for name in ("steep", "lost", "still", "net")
    }
    path = suite(tmp_path / "models", cases)
    text = path.read_text().replace("thresholds = {  }\n", "")
    factory = 'factory = "lowering_models:still"\n'
    assert "thresholds" not in text and factory in text
    # With more than 1,000 values in a part of the output, that part is judged by itself.
    path.write_text(text.replace(factory, f"{factory}inferences = 2\n"))
    done = run("test_emulator", tmp_path, "--suite", path)
    assert done.code == 1
    rules = {name: done.rules(name) for name in cases}
    assert rules["steep"] == {"emulator-accuracy"} and rules["lost"] == {"emulator-accuracy"}
    assert rules["still"] == {"threshold-placeholder", "accuracy-constant"}
    assert rules["net"] == {"threshold-placeholder"}
    rows: Any = done.report.metrics["programs"]
    assert rows["steep/8a8w/SM8650"]["figures"]["agreement"] < DEFAULT_FLOORS["agreement"]
    assert rows["net/8a8w/SM8650"]["figures"]["variation_sqnr_db"] > 20
    assert rows["lost/8a8w/SM8650"]["figures"]["sqnr_db"] < DEFAULT_FLOORS["sqnr_db"]
