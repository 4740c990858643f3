"""`--recheck` on real programs: what is right is equal, and a stale entry whose digests all fit is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.lowering_suites import run
from tests.support.onnx_models import conv_model, write
from tests.support.stale_entries import Document, alter, alter_file, entries

# The same of a lane of a few lines is in every run: tests/unit/test_lane.py.
pytestmark = [pytest.mark.heavy, pytest.mark.whole, pytest.mark.timeout(900)]

NET = """\
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 8).eval(), lambda generator: (torch.rand(1, 8, generator=generator),)
"""
SUITE = """\
schema = 2
[case.net]
{model}
[[case.net.run]]
{precision}
socs = ["SM8650"]
"""
LANES = {
    "test_lowering": ("lowering", 'factory = "net:make"', 'lane = "executorch"\nprecision = "fp16"'),
    "test_onnx": ("onnx", 'model = "net.onnx"', 'lane = "onnx"\nprecision = "fp16"'),
}


def stale(document: Document) -> None:
    """Another figure, as a cache that missed a changed input would have it."""
    facts: dict[str, Any] = document["result"]
    (facts["beside"]["near"] if "beside" in facts else facts["ddr"]).update(
        {"sqnr_db": 199.0} if "beside" in facts else {"read": 1}
    )


@pytest.mark.parametrize("stage", LANES)
def test_a_stale_result_is_found_and_what_is_right_is_equal(stage: str, tmp_path: Path) -> None:
    kind, model, precision = LANES[stage]
    models = tmp_path / "models"
    models.mkdir()
    (models / "net.py").write_text(NET)
    write(conv_model(), models / "net.onnx")
    (models / "suite.toml").write_text(SUITE.format(model=model, precision=precision))
    flags = ("--suite", models / "suite.toml", "--jobs", "1")
    first = run(stage, tmp_path, *flags)
    assert first.code == 0, first.out + first.err

    (entry,) = entries(tmp_path / "store", kind)
    alter(entry, stale)
    assert run(stage, tmp_path, *flags).code == 0, "nothing else finds it"
    found = run(stage, tmp_path, *flags, "--recheck", "100%")
    assert found.code == 1 and "flaky" in found.rules("net"), found.out + found.err
    right = run(stage, tmp_path, *flags, "--recheck", "100%")
    assert right.code == 0 and right.report.metrics["rechecked"] == "1 of 1", right.out + right.err

    if kind == "lowering":
        (entry,) = entries(tmp_path / "store", kind)
        alter_file(entry, "float_0_0.raw", bytes(32))
        assert run(stage, tmp_path, *flags).code == 0
        found = run(stage, tmp_path, *flags, "--recheck", "100%")
        assert found.code == 1 and "flaky" in found.rules("net"), found.out + found.err
