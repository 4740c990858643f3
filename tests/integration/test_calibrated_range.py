"""A sample that is clipped because calibrating saw no such values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.lowering_suites import environment
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

NET = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8)).eval()
    return net, lambda generator: (torch.randn(1, 16, generator=generator),)
"""


def test_a_sample_alone_outside_the_calibrated_range_is_named_and_the_others_are_judged(
    tmp_path: Path,
) -> None:
    import numpy

    (tmp_path / "net.py").write_text(NET, encoding="utf-8")
    folder = tmp_path / "samples"
    folder.mkdir()
    for number in range(24):
        values = numpy.random.default_rng(number).normal(size=(1, 16)).astype("f4")
        numpy.save(folder / f"{number:02}.npy", values)
    words = ("compile", f"{tmp_path}/net.py:make", "--precision", "16a8w", "--soc", "SM8650", "--no-search")
    command = (*words, "--calibrate", folder, "-o", tmp_path / "out")
    env = environment(QNN_CI_REPORTS=str(tmp_path / "reports"))
    healthy = typed(*command, env=env)
    assert healthy.returncode == 0 and "outside" not in healthy.stderr, healthy.stderr

    compared = _first_compared(24)
    numpy.save(folder / f"{compared:02}.npy", numpy.load(folder / f"{compared:02}.npy") * 40)
    clipped = typed(*command, env=env)

    assert clipped.returncode == 0, clipped.stderr
    assert "sample 0 is outside the calibrated range" in clipped.stderr
    record = json.loads((tmp_path / "out/net-SM8650-16a8w.json").read_text())
    assert record["samples_db"][0] < 20 < record["accuracy"]["sqnr_db"]


def _first_compared(count: int) -> int:
    from ci.models.inputs import shares_of

    return shares_of(count, None, None)[0][0]
