"""The runner's build before anything is compiled: what it is built from, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.builds.emulator_runner import Executorch, RunnerPlan, plan_of
from ci.builds.programs import BuildTool
from ci.builds.qemu_check import DATA, EXPECTED, TOLERANCE, difference, outputs, try_runner
from ci.builds.runner_inputs import changed_since
from ci.pipeline.runner import EXECUTORCHS, OURS, Dialect, Runner, with_names
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from tests.support.scripts import script


@pytest.mark.parametrize(
    ("expected", "found"),
    [([1.0, 2.0], [1.0]), ([1.0], [1.1]), ([1.0], [float("nan")]), ([1.0], []), ([], [])],
)
def test_other_outputs_are_never_near(expected: list[float], found: list[float]) -> None:
    assert difference(expected, found) > TOLERANCE


def probe(folder: Path, expected: float = 1.0) -> Path:
    """Of a program that gives back what it gets. ExecuTorch's runner cannot read a name with spaces."""
    (spaced := folder / "a probe").mkdir()
    (spaced / DATA).write_bytes(struct.pack("f", 1.0))
    (spaced / EXPECTED).write_bytes(struct.pack("f", expected))
    return spaced


@pytest.mark.parametrize(("expected", "rules"), [(1.0, []), (1.1, ["runner-outputs"])])
@pytest.mark.parametrize("dialect", [OURS, EXECUTORCHS])
def test_a_runner_must_give_what_pytorch_gave(
    tmp_path: Path, dialect: Dialect, expected: float, rules: list[str]
) -> None:
    emulator = script(tmp_path / "qemu", 'cat "$(tr -d \\" < "$7")" > "$9/output_0_0.raw"')
    stage = StageRun("build_linux_arm64", "wheels", "aarch64-linux", "")
    tool = BuildTool(emulator, "qemu 7.2")
    try_runner(Runner(Path("runner"), dialect), probe(tmp_path, expected), tool, tmp_path, stage)
    assert [finding.rule for finding in stage.findings] == rules


def test_a_runner_that_hangs_on_the_probe_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=r"0\.2 s"):
        outputs(Runner(Path("sh")), probe(tmp_path), ["sh", "-c", "exec sleep 60"], seconds=0.2)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("Loading of method forward failed with status 0x14", "OperatorMissing"),
        ("Execution of method forward failed with status 0x12", "InvalidArgument"),
        ("Execution failed with status 0x99", ""),
        ("expected magic number: 0x14", ""),
    ],
)
def test_an_error_of_executorchs_runner_gets_its_name(message: str, named: str) -> None:
    assert with_names(message) == (f"{message} ({named})" if named else message)


SELECTION = Selection("wheels", "x86_64-linux", "SM8650", Path("/store"), Path("/reports"))


@pytest.mark.parametrize("folder", ["output", "build_dir"])
def test_a_folder_with_the_users_files_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "backup").touch()
    with pytest.raises(UsageError, match=str(tmp_path)) as caught:
        plan_of(SELECTION, **{folder: tmp_path})  # type: ignore[arg-type]
    assert f"--{folder.replace('_', '-')}" in caught.value.fix


TOOL = BuildTool(Path("/bin/tool"), "tool 1.0")
PLAN = RunnerPlan(
    target="x86_64-linux",
    build_type="Release",
    executorch=Executorch(Path("/executorch"), "1.5.1"),
    compiler=TOOL,
    cmake=TOOL,
    ninja=TOOL,
    remap=(),
    folder=Path("/build"),
    dist=Path("/dist"),
    store=Path("/store"),
)


@pytest.mark.parametrize(
    "change",
    [
        {"build_type": "Debug"},
        {"target": "aarch64-linux"},
        {"remap": ("a=b",)},
        *({name: BuildTool(Path("/bin/tool"), "tool 1.1")} for name in ("compiler", "cmake", "ninja")),
        {"executorch": Executorch(Path("/executorch"), "1.5.2")},
        {"executorch": Executorch(Path("/other"), "1.5.1")},
    ],
)
def test_whatever_decides_the_build_is_in_its_key(change: dict[str, Any]) -> None:
    assert replace(PLAN, **change).key() != PLAN.key()


def test_a_file_that_another_environment_shares_since_has_not_changed(tmp_path: Path) -> None:
    site = tmp_path / "lib/site-packages"
    (site / "tool-1.dist-info").mkdir(parents=True)
    file = site / "tool.cmake"
    file.write_text("set(A 1)\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=")
    (site / "tool-1.dist-info/RECORD").write_text(f"tool.cmake,sha256={digest},9\n")
    os.utime(file, (1e9, 1e9))
    started = time.time() - 60
    (tmp_path / "other.cmake").hardlink_to(file)
    assert not changed_since(file, started)
    # With the time that it had before.
    file.write_text("set(A 2)\n")
    os.utime(file, (1e9, 1e9))
    assert changed_since(file, started)
    file.write_text("set(A 1)\n")
    assert changed_since(file, started)
