"""`timing` of a real program: operators with their lines, on the emulator and on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from provisioning.environment import HOST_LIBRARIES
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


ESTIMATES = """\
import json, sys, tempfile
from pathlib import Path
from ci.lanes.executorch.worker import facts_of

def estimated(soc, **more):
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        log.touch()
        case, run = {"factory": "net:make"}, {"precision": "fp16", "calibration": 1}
        order = {"case": case, "run": run, "soc": soc, "search_path": sys.argv[1]}
        return facts_of({**order, "into": folder, "log": str(log), **more})

found = [estimated("QCS9100", estimate=True) for _ in range(2)] + [estimated("SM8750", estimate=True)]
plain = estimated("QCS9100")
Path(sys.argv[1], "found.json").write_text(json.dumps([found, plain["delegates"], "estimate" in plain]))
"""


@pytest.mark.whole
def test_qnns_estimate_is_read_where_executorch_throws_it_away(tmp_path: Path) -> None:
    """Of the chips that have one, the same each time; a compile without it is as before."""
    (tmp_path / "net.py").write_text(NET.replace("x = x * torch.erf(x)", "x = x * x"))
    libraries = Path(environment()["QNN_SDK_ROOT"], "lib", HOST_LIBRARIES)
    variables = environment(LD_LIBRARY_PATH=str(libraries), PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    command = [sys.executable, "-c", ESTIMATES, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (*of_chip, of_phone), delegates, asked = json.loads((tmp_path / "found.json").read_text())
    estimates = [found["estimate"] for found in of_chip]
    assert estimates[0]["graphs"] == 1 and 0 < estimates[0]["least_us"] < estimates[0]["most_us"]
    assert estimates[1] == estimates[0]
    assert of_chip[0]["left"] == 0 and of_chip[0]["operators"]["aten.convolution.default"] == 1
    assert of_phone["estimate"] is None
    assert (delegates, asked) == (1, False)
