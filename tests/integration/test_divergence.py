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


GATED = """
import torch
from torch import nn

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x):
        g = self.fc((x.mean((2, 3)) > 0.0).float())
        return x * torch.sigmoid(g)[:, :, None, None]

def make():
    torch.manual_seed(0)
    gate, blocks = Gate(), [Residual() for _ in range(6)]
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks[:3], gate, *blocks[3:], nn.Conv2d(16, 4, 1))
    return net.eval(), lambda generator: (torch.randn(1, 3, 16, 16, generator=generator),)
"""


def test_among_residual_additions_at_8_bits_the_line_of_the_cast_is_named_with_its_fault(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text(GATED, encoding="utf-8")
    answer = tmp_path / "found.json"
    words = ("divergence", f"{tmp_path}/net.py:make", "--precision", "8a8w", "--soc", "SM8650")
    done = typed(
        *words,
        *("--json", answer),
        env=environment(QNN_CI_REPORTS=str(tmp_path / "reports")),
    )
    assert done.returncode == 1, done.stderr
    first = json.loads(answer.read_text())["first"]
    assert first["source"].endswith("net.py:19") and first["share"] > 0.5
    assert "comparison-as-float" in [row.get("fault") for row in first["known"]]


INDEXED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(16, 16)

    def forward(self, x):
        values, place = self.enter(x), (torch.tanh(x) * 3 + 4).floor()
        index = place.long()
        low, high = torch.gather(values, 1, index), torch.gather(values, 1, index + 1)
        return low * 0.5 + high * 0.25 + torch.gather(values, 1, index * 2)

def make():
    torch.manual_seed(0)
    return Net().eval(), lambda generator: (torch.randn(1, 16, generator=generator),)
"""


def test_a_quantized_cast_whose_codes_are_read_as_indices_is_named_and_not_what_reads_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text(INDEXED, encoding="utf-8")
    answer = tmp_path / "found.json"
    words = ("divergence", f"{tmp_path}/net.py:make", "--precision", "8a8w", "--soc", "SM8650")
    done = typed(*words, "--json", answer, env=environment(QNN_CI_REPORTS=str(tmp_path / "reports")))
    assert done.returncode == 1, done.stderr
    first = json.loads(answer.read_text())["first"]
    assert first["source"].endswith("net.py:12") and first["integers"] and first["share"] > 0.9
