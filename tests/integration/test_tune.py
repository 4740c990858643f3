"""`tune` with the real quantizers: scores on the CPU, a mixture on the emulator, and its precision file."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from ci.lanes.onnx import provider
from ci.models.inputs import Sample
from ci.suite.onnx_runtime import run_on_cpu
from ci.suite.precision import precision_named
from tests.support.lowering_suites import environment
from tests.support.onnx_models import model_of, write
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu_(self.conv(x))
        return self.head(torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1))


def make():
    torch.manual_seed(0)
    return Net().eval(), (torch.rand(1, 3, 16, 16),)
"""


def test_weights_with_a_scale_for_each_channel_are_quantized_at_an_old_opset(tmp_path: Path) -> None:
    """ONNX has an axis from opset 13 on; PaddlePaddle's exporter writes 11."""
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((4, 3, 3, 3)).astype("f4")}
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    model = write(model_of([conv], output=(1, 4, 6, 6), weights=weights, opset=11), tmp_path / "net.onnx")
    samples: list[Sample] = [{"x": random.standard_normal((1, 3, 8, 8)).astype("f4")}]
    (right,) = run_on_cpu(model, samples)
    for precision in ("u8u8", "u16u8"):
        (into := tmp_path / precision).mkdir()
        path = provider.quantize_model(model, samples, precision_named(precision), into, per_channel=True)
        (found,) = run_on_cpu(path, samples)
        assert found["y"] == pytest.approx(right["y"], abs=0.3)


def tune(folder: Path, *words: str | Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    answer = folder / "tuned.json"
    command = ("tune", f"{folder}/net.py:make", "-o", folder, "--json", answer, *words)
    done = typed(*command, "--reports", folder / "reports", env=environment())
    return done, json.loads(answer.read_text())


@pytest.mark.whole
def test_a_mixture_holds_a_floor_between_both_ends_and_its_file_gives_it_again(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "score.py").write_text("def count(outputs, floats):\n    return len(outputs) / len(floats)\n")
    # A metric that all hold: only both ends are compiled, which say where a mixture lies.
    metric = ("--metric", str(tmp_path / "score.py:count"), "--floor", "1")
    _, ends = tune(tmp_path, *metric)
    low, high = (point["accuracy"]["sqnr_db"] for point in ends["frontier"])
    assert low < high and [point["accuracy"]["metric"] for point in ends["frontier"]] == [1, 1]
    floor = f"{math.floor((low + high) / 2)}dB"
    done, found = tune(tmp_path, "--floor", floor)
    chosen = next(point for point in found["frontier"] if point["chosen"])
    assert done.returncode == 0 and 0 < chosen["exact"] <= chosen["of"], done.stdout
    again, same = tune(tmp_path, "--floor", floor)
    assert same["frontier"] == found["frontier"] and "1 to do" not in again.stderr
