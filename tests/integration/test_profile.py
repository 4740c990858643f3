"""`timing` of a real program: operators with their lines, on the emulator and on the CPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from tests.support.lowering_suites import environment
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        x = x * torch.erf(x)
        return self.head(x.mean((2, 3)))


def make():
    return Net().eval(), (torch.rand(1, 3, 16, 16),)
"""


def profile(folder: Path, *words: str, verb: str = "timing") -> subprocess.CompletedProcess[str]:
    return typed(verb, *words, "--reports", folder / "reports", env=environment())


@pytest.mark.whole
def test_every_operator_has_its_share_line_and_module_and_the_cpus_its_time(tmp_path: Path) -> None:
    net, now = tmp_path / "net.py", tmp_path / "now.json"
    net.write_text(NET)
    model = (f"{net}:make", "--precision", "8a8w", "--json", str(now))
    done = profile(tmp_path, *model, "--page", str(tmp_path / "page.html"))
    assert done.returncode == 0, done.stderr
    body = json.loads(now.read_text())
    assert sum(operator["share"] for operator in body["operators"]) == pytest.approx(1)
    lines = {operator["module"]: operator["line"] for operator in body["operators"]}
    assert lines["head"].endswith("net.py:13")
    (erf,) = body["cpu"]
    assert erf["operator"].startswith("erf") and erf["line"].endswith("net.py:12") and erf["milliseconds"] > 0
    again = profile(tmp_path, *model, "--against", str(now))
    assert again.returncode == 0 and "against" in again.stdout
    assert "head" in (tmp_path / "page.html").read_text()


@pytest.mark.whole
def test_an_audit_keeps_on_the_cpu_what_a_partition_dies_of_and_measures_it(tmp_path: Path) -> None:
    models = ROOT / "tests/support/lowering_models.py"
    (tmp_path / "gru.py").write_text(models.read_text())
    out = tmp_path / "audit.json"
    schemes = ("--precision", "fp16", "--precision", "8a8w")
    model = (f"{tmp_path}/gru.py:recurrent", *schemes, "--measure", "--json", str(out))
    done = profile(tmp_path, *model, verb="audit")
    assert done.returncode == 0, done.stdout + done.stderr
    body = json.loads(out.read_text())["precisions"]
    assert body["fp16"]["kept_on_cpu"] is None
    assert "aten_full_default" in body["8a8w"]["kept_on_cpu"]["cpu_nodes"]
    assert body["8a8w"]["measured"]["milliseconds"] > 0 and "gru.py:" in done.stdout
