"""The metric of a task is that of its own suite and of now, whatever outputs are cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.lowering_suites import run
from tests.support.repositories import write

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

NET = """\
    import torch


    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval(), (torch.ones(1, 8),)
    """
SUITE = """\
    schema = 2

    [case.net]
    factory = "net:model"
    metric = {{ name = "right", function = "metric:score" }}

    [[case.net.run]]
    lane = "{lane}"
    precision = "8a8w"
    socs = ["SM8650"]
    """


def _score(value: float) -> str:
    return f"def score(outputs, floats):\n    return {value}\n"


@pytest.mark.long("exports, compiles and runs a program four times")
# Nightly in lane executorch, which compiles for a minute: one function finds the metric for both lanes.
@pytest.mark.parametrize(
    ("lane", "stage"),
    [pytest.param("executorch", "test_emulator", marks=pytest.mark.whole), ("onnx", "test_onnx")],
)
def test_each_suite_of_a_repository_has_the_metric_of_its_own_file_as_it_is_now(
    lane: str, stage: str, tmp_path: Path
) -> None:
    for name, value in (("one", 1.0), ("other", 0.25)):
        files = {"net.py": NET, "models.toml": SUITE.format(lane=lane), "metric.py": _score(value)}
        write(tmp_path / "repository" / name, files)
    (tmp_path / "repository" / ".git").mkdir()

    def metric(name: str) -> tuple[float, bool]:
        done = run(stage, tmp_path, "--suite", tmp_path / "repository" / name / "models.toml")
        rows: Any = done.report.metrics["programs"]
        row = rows["net/8a8w/SM8650"]
        return row["figures"]["metric"], row["cached"]

    assert metric("one") == (1.0, False)
    assert metric("other")[0] == 0.25
    write(tmp_path / "repository" / "other", {"metric.py": _score(0.5)})
    assert metric("other") == (0.5, True)
    assert metric("one") == (1.0, True)
    # The outputs stay beside the report where a program misses its threshold, and only there.
    outputs = tmp_path / "reports" / stage.removeprefix("test_") / "net" / "8a8w" / "SM8650"
    assert not list(outputs.glob("*"))
    suite = SUITE.format(lane=lane) + "    thresholds = { metric = 0.9 }\n"
    write(tmp_path / "repository" / "other", {"models.toml": suite})
    assert metric("other") == (0.5, True) and list(outputs.glob("*"))
