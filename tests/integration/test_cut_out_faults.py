"""`divergence --write` of models with a fault: the script shows it alone, with nothing of ours."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from provisioning.known_faults import load_faults
from tests.support.journey_files import FILES
from tests.support.lowering_suites import environment
from tests.support.models_of_faults import FAULTS
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


def ran_alone(script: Path) -> tuple[int, str]:
    """Its exit code and last word, elsewhere and with what `qnn-ci env` prints alone."""
    printed = typed("env", package="provisioning", env=environment()).stdout
    variables = dict(
        shlex.split(line.removeprefix("export "))[0].split("=", 1) for line in printed.splitlines()
    )
    environ = {name: os.environ[name] for name in ("PATH", "HOME")} | variables
    done = subprocess.run(
        [sys.executable, "-P", script], cwd="/", env=environ, capture_output=True, text=True, check=False
    )
    found = re.findall(r"^(still there|gone): ", done.stdout, re.MULTILINE)
    return done.returncode, found[-1] if found else done.stderr


@pytest.mark.long("compiles the operator alone and in its model")
def test_an_operator_of_an_onnx_model_is_a_script_that_tells_its_fault_from_none(tmp_path: Path) -> None:
    FILES["ONNX root mean square"](tmp_path / "rms.onnx")
    FILES["small rows"](tmp_path / "samples")
    model = ("rms.onnx", "--precision", "16a8w", "--calibrate", "samples")
    reports = ("--reports", tmp_path / "reports")
    done = typed("divergence", *model, "--write", "fault.py", *reports, cwd=tmp_path)
    script = tmp_path / "fault.py"
    assert done.returncode == 1 and "fault.py, run alone: still there" in done.stdout, done.stderr
    assert str(ROOT) not in script.read_text()
    assert ran_alone(script) == (1, "still there")
    script.write_text(script.read_text().replace("LEAST = 30", "LEAST = -20"))
    assert ran_alone(script) == (0, "gone")


POOL = """
import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(c, 8, 3, padding=1) for c in (1, 8, 8))

    def forward(self, x):
        for conv in self.convs:
            x = torch.relu(conv(x))
        x = x.mean(1)
        return functional.max_pool2d(x * 2, 5, 1, 2) + x


def model():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(1, 1, 16, 16),)
"""


@pytest.mark.whole("compiles a model, its rewrite, and parts of it")
def test_a_step_at_fault_is_reported_by_the_smallest_part_that_shows_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(POOL)
    words = ("net.py:model", "--precision", "8a8w", "--report-upstream", "fault.py", "-o", "out")
    done = typed("compile", *words, "--reports", tmp_path / "reports", cwd=tmp_path)
    text = (tmp_path / "fault.py").read_text()
    assert done.returncode == 1 and "fault.py shows it alone: still there: ValueError" in done.stdout, (
        done.stderr
    )
    assert "recompose_pad_maxpool2d.py" in text and "net.py:16" in text and "executorch 1." in text
    assert "conv2d" not in text and len(text.splitlines()) < 60 and str(ROOT) not in text
    assert ran_alone(tmp_path / "fault.py") == (1, "still there")


LARGEST = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 20)

    def forward(self, x):
        value, index = self.layer(x).max(-1)
        return value, index


def model():
    return Net().eval(), lambda generator: (torch.randn(1, 8, 16, generator=generator),)
"""


@pytest.mark.whole("compiles a model, its rewrite, and parts of it in processes that die")
def test_a_signal_that_ends_the_compiler_is_explained_by_the_line_with_what_keeps_it_away(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text(LARGEST)
    words = ("net.py:model", "--precision", "fp16", "--report-upstream", "fault.py", "-o", "out")
    done = typed("compile", *words, "--reports", tmp_path / "reports", cwd=tmp_path)
    assert (
        done.returncode == 1 and "fault.py shows it alone: still there: it ends with SIGSEGV" in done.stdout
    )
    assert "aten.max.dim at net.py:12" in done.stderr and "--only largest-with-its-index" in done.stderr
    assert re.search(r"--keep-on-cpu aten_max_dim\S* .*: \d\d\.\d dB", done.stderr), done.stderr
    assert ran_alone(tmp_path / "fault.py")[0] == -11


@pytest.mark.parametrize("name", ["net.py", "fault.txt"])
@pytest.mark.parametrize("words", [("divergence", "--write"), ("compile", "-o", "out", "--report-upstream")])
def test_a_file_of_the_users_own_is_never_overwritten_and_no_search_begins(
    words: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("mine")
    verb, *flags = words
    done = typed(verb, "net.py:model", *flags, name, cwd=tmp_path)
    assert done.returncode == 2 and name in done.stderr
    assert (tmp_path / name).read_text() == "mine"


def test_a_folder_that_is_missing_is_told_before_the_search(tmp_path: Path) -> None:
    done = typed("divergence", "net.py:model", "--write", "missing/fault.py", cwd=tmp_path)
    assert done.returncode == 2 and "missing/fault.py" in done.stderr


@pytest.mark.whole
@pytest.mark.parametrize("name", FAULTS)
def test_the_operator_of_a_known_fault_shows_it_alone(name: str, tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "tests" / "support" / "models_of_faults.py", tmp_path / "net.py")
    with (tmp_path / "net.py").open("a") as model:
        model.write(f"\n\ndef make():\n    return made({name!r})\n")
    script, answer = tmp_path / "fault.py", tmp_path / "found.json"
    asked = ("--precision", FAULTS[name].precision, "--soc", "SM8650", "--write", script, "--json", answer)
    done = typed(
        "divergence", f"{tmp_path}/net.py:make", *asked, "--reports", tmp_path / "r", env=environment()
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(answer.read_text())["verdict"].startswith("still there")
    assert ran_alone(script) == (1, "still there")


def test_each_of_these_faults_is_a_known_one() -> None:
    assert {*FAULTS} <= {fault.id for fault in load_faults()}
