"""What a factory finds around it, in each lane: its folder, its standard input, the variables it declares."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
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
    assert not sys.stdin.read() and not subprocess.run(["/bin/cat"], capture_output=True, timeout=10).stdout
    assert os.environ["TZ"] == "UTC" and "QNN_CI_WORKER_THREADS" not in os.environ
    assert os.environ["HF_HOME"].startswith("/a/cache/")
    token = os.environ.get("HUB_TOKEN", "")
    torch.manual_seed(0)
    width = int(open("width.txt").read()) + int(os.environ.get("OMP_NUM_THREADS", "0")) + bool(token)
    return torch.nn.Linear(8, width).eval(), lambda generator: (torch.rand(1, 8, generator=generator),)
"""

SUITE = """\
schema = 2
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

LANES = {
    "test_lowering": 'lane = "executorch"\nprecision = "fp16"',
    "test_onnx": 'lane = "onnx"\nprecision = "fp16"',
}


@dataclass(frozen=True)
class User:
    """Has a suite of two models in a clone, and a stage that runs it."""

    stage: str
    folder: Path
    declared: str = ""

    @property
    def clone(self) -> Path:
        return self.folder / "clone" / "models"

    def made(self) -> User:
        self.clone.mkdir(parents=True)
        (self.clone.parent / ".git").mkdir()
        (self.clone / "net.py").write_text(NET)
        (self.clone / "width.txt").write_text("8")
        suite = SUITE.format(precision=LANES[self.stage], declared=self.declared)
        (self.clone / "suite.toml").write_text(suite)
        return self

    def runs(self, *flags: str, folder: Path | None = None, **variables: str) -> Done:
        suite = (folder or self.clone) / "suite.toml"
        variables.setdefault("HF_HOME", "/a/cache/here")
        return run(self.stage, self.folder, "--suite", suite, *flags, environ=environment(**variables))


def asked(done: Done) -> list[str]:
    """The lines that would declare what was asked for."""
    return [finding.fix for finding in done.report.findings if finding.rule == "variable-not-passed"]


GOOD = ("-k", "net/")


@pytest.mark.long("lowers in two clones")
@pytest.mark.parametrize("stage", ["test_lowering", pytest.param("test_onnx", marks=pytest.mark.whole)])
def test_relative_paths_begin_in_the_suite_and_what_is_not_declared_is_not_seen(
    stage: str, tmp_path: Path
) -> None:
    user = User(stage, tmp_path).made()
    first = user.runs()
    (finding,) = (finding for finding in first.report.findings if finding.severity.value == "error")
    assert (finding.subject, first.code) == ("lacking/fp16/SM8650", 1) and "absent.txt" in finding.message
    # Beside the command that repeats it, which names the suite.
    suite = str(user.clone / "suite.toml")
    assert str(user.clone) in finding.fix.replace(suite, "") and not asked(first)
    # Another clone shares what is cached, as do another time zone and another place of the Hub's cache, and
    # what is not declared, which is said.
    again = shutil.copytree(user.clone.parent, tmp_path / "again")
    here = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "HF_HOME": "/a/cache/there"}
    other = user.runs(*GOOD, folder=again / "models", **here, OMP_NUM_THREADS="3", HUB_TOKEN="hunter2")
    assert other.cached() == {"net"}
    assert [fix.partition(" at ")[0] for fix in asked(other)] == [
        'secrets = ["HUB_TOKEN"]',
        'variables = ["OMP_NUM_THREADS"]',
    ]


@pytest.mark.long("lowers with and without each variable")
@pytest.mark.parametrize("stage", ["test_lowering", pytest.param("test_onnx", marks=pytest.mark.whole)])
def test_what_is_declared_is_passed_and_a_secret_is_in_no_key_and_no_file(stage: str, tmp_path: Path) -> None:
    user = User(stage, tmp_path, 'variables = ["OMP_NUM_THREADS"]\nsecrets = ["HUB_TOKEN"]').made()
    first = user.runs(*GOOD, OMP_NUM_THREADS="3", HUB_TOKEN="hunter2")
    assert first.code == 0 and not asked(first), first.out + first.err
    assert user.runs(*GOOD, OMP_NUM_THREADS="3", HUB_TOKEN="hunter3").cached() == {"net"}
    texts = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "suite.toml"]
    assert not any(b"hunter" in path.read_bytes() for path in texts)
