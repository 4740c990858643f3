"""`--recheck` on real programs: compiling one twice gives the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lowering_suites import run
from tests.support.onnx_models import conv_model, write

# What differs is found in a lane of a few lines: tests/support/toy_lane.py.
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
    "test_lowering": ('factory = "net:make"', 'lane = "executorch"\nprecision = "fp16"'),
    "test_onnx": ('model = "net.onnx"', 'lane = "onnx"\nprecision = "fp16"'),
}


@pytest.mark.parametrize("stage", LANES)
def test_a_program_that_is_compiled_twice_is_the_same(stage: str, tmp_path: Path) -> None:
    model, precision = LANES[stage]
    models = tmp_path / "models"
    models.mkdir()
    (models / "net.py").write_text(NET)
    write(conv_model(), models / "net.onnx")
    (models / "suite.toml").write_text(SUITE.format(model=model, precision=precision))
    ended = run(stage, tmp_path, "--suite", models / "suite.toml", "--jobs", "1", "--recheck", "100%")
    assert ended.code == 0, ended.out + ended.err
    names = ended.report.metrics["rechecked"]
    assert isinstance(names, list) and len(names) == 1
