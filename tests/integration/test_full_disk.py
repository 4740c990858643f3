"""A disk without room is never the model's verdict: each lane with one of its folders on 16 kB.

What passed before stays cached though --no-cache does it again there, and the command ends with 3.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from provisioning.base.settings import ROOT
from tests.support.lowering_suites import environment, suite
from tests.support.onnx_models import model_of, write
from tests.support.small_disk import with_small

pytestmark = [pytest.mark.heavy, pytest.mark.small_disk, pytest.mark.timeout(900)]

KILOBYTES = 16

ONNX = """\
schema = 2
[case.net]
model = "wide.onnx"
[[case.net.run]]
lane = "onnx"
precision = "fp16"
socs = ["SM8650"]
tags = ["pr"]
thresholds = { sqnr_db = 5 }
"""


@dataclass(frozen=True)
class Ended:
    code: int
    text: str


@dataclass(frozen=True)
class House:
    """A store, reports, a folder for temporary files and a suite of one model."""

    folder: Path

    def run(self, verb: str, *words: str | Path, full: str = "") -> Ended:
        for name in ("store", "reports", "temporary", *([full] if full else ())):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "ci", verb, *map(str, words)]
        command += ["--store", str(self.folder / "store"), "--reports", str(self.folder / "reports")]
        if full:
            command = with_small(self.folder / full, KILOBYTES, *command)
        environ = {**environment(), "TMPDIR": str(self.folder / "temporary")}
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return Ended(done.returncode, done.stdout + done.stderr)

    def test(self, stage: str, *flags: str, full: str = "") -> Ended:
        flags = ("--suite", str(self.folder / f"{stage}.toml"), "--jobs", "1", *flags)
        return self.run(stage, *flags, full=full)

    def report(self, stage: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.folder / f"reports/{stage}.json").read_text())
        return report


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    """A model for each lane."""
    house = House(tmp_path_factory.mktemp("house"))
    made = suite(house.folder, {"net": {"arguments": "width = 1024"}})
    shutil.copyfile(made, house.folder / "test_lowering.toml")
    shutil.copyfile(made, house.folder / "test_emulator.toml")
    (house.folder / "test_onnx.toml").write_text(ONNX)
    weights = {"w": np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="wide")]
    write(model_of(nodes, shape=(1, 256), output=(1, 256), weights=weights), house.folder / "wide.onnx")
    return house


@pytest.mark.long("fills a disk while it lowers")
@pytest.mark.parametrize(
    ("stage", "full"),
    [
        pytest.param("test_lowering", "store/cache/results/lowering/work", marks=pytest.mark.whole),
        pytest.param("test_lowering", "temporary", marks=pytest.mark.whole),
        pytest.param("test_emulator", "store/cache/results/emulator/work", marks=pytest.mark.whole),
        ("test_onnx", "reports/onnx"),
    ],
)
def test_it_ends_with_3_and_what_was_cached_stays(house: House, stage: str, full: str) -> None:
    if not (house.folder / f"reports/{stage}.json").is_file():
        passed = house.test(stage)
        assert passed.code == 0, passed.text
    ended = house.test(stage, "--no-cache", full=full)
    report = house.report(stage)
    errors = [finding for finding in report["findings"] if finding["severity"] == "error"]
    lane = stage.removeprefix("test_")
    assert (ended.code, report["outcome"], {finding["rule"] for finding in errors}) == (
        3,
        "error",
        {f"{lane}-machine"},
    ), ended.text
    assert "No space left on device" in errors[0]["message"]
    assert f"free some space at {house.folder / full}" in errors[0]["fix"]
    again = house.test(stage)
    assert (again.code, house.report(stage)["metrics"]["cached"]) == (0, 1), again.text
