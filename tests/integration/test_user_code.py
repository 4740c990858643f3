"""What a factory finds around it, in each lane: its folder, its standard input, the user's variables."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.lowering_suites import Done, environment, run

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

NET = """\
import os
import subprocess
import sys

import torch

def lacking():
    return open("absent.txt").read()

def make():
    assert not sys.stdin.read() and not subprocess.run(["cat"], capture_output=True, timeout=10).stdout
    torch.manual_seed(0)
    width = int(open("width.txt").read()) + int(os.environ.get("OMP_NUM_THREADS", "0"))
    return torch.nn.Linear(8, width).eval(), lambda generator: (torch.rand(1, 8, generator=generator),)
"""

SUITE = """\
schema = 1
[case.net]
factory = "net:make"
[[case.net.run]]
{precision}
socs = ["SM8650"]
[case.lacking]
factory = "net:lacking"
[[case.lacking.run]]
{precision}
socs = ["SM8650"]
"""

LANES = {"test_lowering": 'scheme = "fp16"', "test_onnx": 'precision = "fp16"'}


@pytest.mark.parametrize("stage", LANES)
def test_relative_paths_begin_in_the_suite_and_the_users_variables_are_seen(
    stage: str, tmp_path: Path
) -> None:
    clone = tmp_path / "clone" / "models"
    (clone.parent / ".git").mkdir(parents=True)
    clone.mkdir()
    (clone / "net.py").write_text(NET)
    (clone / "suite.toml").write_text(SUITE.format(precision=LANES[stage]))
    (clone / "width.txt").write_text("8")

    def done(*flags: str, folder: Path = clone, **variables: str) -> Done:
        suite = folder / "suite.toml"
        return run(stage, tmp_path, "--suite", suite, *flags, environ=environment(**variables))

    first = done()
    (finding,) = (each for each in first.report.findings if each.severity.value == "error")
    assert (finding.subject, first.code) == ("lacking/fp16/SM8650", 1) and "absent.txt" in finding.message
    # Beside the command that repeats it, which names the suite.
    assert str(clone) in finding.fix.replace(str(clone / "suite.toml"), "")
    # Another clone shares what is cached.
    again = shutil.copytree(clone.parent, tmp_path / "again")
    assert done("--case", "net", folder=again / "models").cached() == {"net"}
    assert done("--case", "net", OMP_NUM_THREADS="3").cached() == set()
