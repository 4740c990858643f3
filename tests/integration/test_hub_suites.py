"""Suites on a hosted phone: AI Hub's client and a stand-in whose phones are QNN's emulator."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import onnxruntime_qnn
import pytest

from provisioning.stage_variables import HOST_LIBRARIES
from tests.support.hub import OTHER_PHONE, Play, stand_in
from tests.support.sdk import sdk_root
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3600)]

SUITE = """\
schema = 2
upload = true

[case.gelu]
factory = "ci.models.shipped.operators:gelu"
inferences = 2

[[case.gelu.run]]
lane = "executorch"
precision = "8a8w"
socs = ["SM8650"]

[[case.gelu.run]]
lane = "onnx"
precision = "16a8w"
socs = ["SM8650"]
"""
EMULATORS = {
    "test_device": lambda: sdk_root() / "lib" / HOST_LIBRARIES,
    "test_onnx_device": lambda: Path(onnxruntime_qnn.get_qnn_htp_path()).parent,
}
"""The libraries that the stage's lane runs programs with."""
PHONE = str(OTHER_PHONE["name"])


class Stage:
    """The stage as it is typed, and its report."""

    def __init__(self, folder: Path, name: str, *flags: str, **plays: Any) -> None:
        hub_folder, reports = folder / "hub", folder / "reports"
        hub_folder.mkdir()
        with stand_in(hub_folder, Play(libraries=str(EMULATORS[name]()), **plays)) as hub:
            environ = {**os.environ, **hub.environ, "QNN_SDK_ROOT": str(sdk_root())}
            words = (name, "--on", "aihub", "--device", PHONE, "--store", str(folder / "store"))
            done = typed(*words, "--reports", str(reports), *flags, env=environ, timeout=3600)
            self.jobs = hub.requests("POST jobs")
        self.code, self.printed = done.returncode, done.stdout + done.stderr
        self.report: Any = json.loads((reports / f"{name}.json").read_text(encoding="utf-8"))
        self.rows = self.report["metrics"].get("programs", {})

    @property
    def not_run(self) -> set[str]:
        return {row["subject"] for row in self.report["findings"] if row["rule"] == "device-not-run"}


@pytest.mark.long("it compiles a program, and starts the service and its client")
@pytest.mark.parametrize("name", EMULATORS)
def test_a_suite_that_agrees_to_uploads_is_equal_to_the_emulator_to_the_bit(
    tmp_path: Path, name: str
) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE, encoding="utf-8")
    stage = Stage(tmp_path, name, "--suite", str(suite))
    assert stage.code == 0, stage.printed
    (row,) = stage.rows.values()
    assert row["against_emulator"]["equal"] == 1 and row["ran_on"]["device"] == PHONE
    assert stage.jobs == 1


@pytest.mark.whole
def test_a_service_that_is_down_is_the_networks_fault_and_no_programs(tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE, encoding="utf-8")
    down = Stage(tmp_path, "test_onnx_device", "--suite", str(suite), refused={"POST jobs": (503, "down")})
    assert down.code == 4 and "same command" in down.printed


@pytest.mark.whole
@pytest.mark.parametrize("name", EMULATORS)
def test_all_shipped_models_are_equal_to_the_emulator_to_the_bit(tmp_path: Path, name: str) -> None:
    """Programs with an operator on the CPU are named as not run, and those alone."""
    stage = Stage(tmp_path, name, "--soc", "SM8650", "--yes")
    ran = {program: row for program, row in stage.rows.items() if program not in stage.not_run}
    assert len(ran) > len(stage.not_run), stage.printed
    assert {row["against_emulator"]["equal"] for row in ran.values()} == {1}
    on_cpu = [row for row in stage.report["findings"] if row["rule"] == "device-not-run"]
    assert all("on the CPU" in row["message"] for row in on_cpu)
