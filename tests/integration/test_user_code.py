"""What a factory finds around it, in each lane: its folder, its standard input, the variables it declares."""

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
    assert os.environ["TZ"] == "UTC" and "QNN_CI_WORKER_THREADS" not in os.environ
    token = os.environ.get("HUB_TOKEN", "")
    torch.manual_seed(0)
    width = int(open("width.txt").read()) + int(os.environ.get("OMP_NUM_THREADS", "0")) + bool(token)
    return torch.nn.Linear(8, width).eval(), lambda generator: (torch.rand(1, 8, generator=generator),)
"""

SUITE = """\
schema = 1
{declared}
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
def test_relative_paths_begin_in_the_suite_and_declared_variables_alone_are_seen(
    stage: str, tmp_path: Path
) -> None:
    clone = tmp_path / "clone" / "models"
    (clone.parent / ".git").mkdir(parents=True)
    clone.mkdir()
    (clone / "net.py").write_text(NET)
    (clone / "width.txt").write_text("8")

    def suite(declared: str = "") -> None:
        (clone / "suite.toml").write_text(SUITE.format(precision=LANES[stage], declared=declared))

    def done(*flags: str, folder: Path = clone, **variables: str) -> Done:
        suite = folder / "suite.toml"
        return run(stage, tmp_path, "--suite", suite, *flags, environ=environment(**variables))

    def asked(found: Done) -> list[str]:
        return [each.fix for each in found.report.findings if each.rule == "variable-not-passed"]

    suite()
    first = done()
    (finding,) = (each for each in first.report.findings if each.severity.value == "error")
    assert (finding.subject, first.code) == ("lacking/fp16/SM8650", 1) and "absent.txt" in finding.message
    # Beside the command that repeats it, which names the suite.
    assert str(clone) in finding.fix.replace(str(clone / "suite.toml"), "") and not asked(first)
    # Another clone shares what is cached, as does another home, another time zone, and what is not declared,
    # which is said.
    again = shutil.copytree(clone.parent, tmp_path / "again")
    good = ("--case", "net")
    here = {"HOME": str(tmp_path), "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    other = done(*good, folder=again / "models", **here, OMP_NUM_THREADS="3", HUB_TOKEN="hunter2")
    assert other.cached() == {"net"}
    assert [fix.partition(" at ")[0] for fix in asked(other)] == [
        'secrets = ["HUB_TOKEN"]',
        'variables = ["OMP_NUM_THREADS"]',
    ]
    suite('variables = ["OMP_NUM_THREADS"]\nsecrets = ["HUB_TOKEN"]')
    assert done(*good, OMP_NUM_THREADS="3", HUB_TOKEN="hunter2").cached() == set()
    assert (last := done(*good, OMP_NUM_THREADS="3", HUB_TOKEN="hunter3")).cached() == {"net"}
    assert not asked(last)
    texts = [path for path in tmp_path.rglob("*") if path.is_file() and "suite.toml" not in path.name]
    assert not any(b"hunter" in path.read_bytes() for path in texts)
