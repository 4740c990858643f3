"""The runner's build before anything is compiled: what it is built from, and what is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.builds.runner_build import Executorch, RunnerPlan, plan_of
from ci.builds.toolchain import BuildTool
from ci.suite.runner import EXECUTORCHS, Runner
from ci.work.results import CachedResults
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.settings import Selection
from tests.support.scripts import script


def test_a_list_of_inputs_has_a_line_for_each_inference_that_its_runner_can_read(tmp_path: Path) -> None:
    plain, spaced = Path("/in/a.raw"), Path("/in/a b.raw")
    ours = Runner(Path("runner")).write_inputs(tmp_path / "ours", [(plain, spaced), (spaced,)])
    assert ours.read_text() == '"/in/a.raw" "/in/a b.raw"\n"/in/a b.raw"\n'
    theirs = Runner(Path("runner"), EXECUTORCHS)
    assert theirs.write_inputs(tmp_path / "theirs", [(plain, plain)]).read_text() == "/in/a.raw /in/a.raw\n"
    with pytest.raises(CheckFailed, match=str(spaced)):
        theirs.write_inputs(tmp_path / "none", [(plain, spaced)])
    assert not (tmp_path / "none").exists()


def runner_plan(folder: Path) -> RunnerPlan:
    for name in (
        "include/program.h",
        "lib/libexecutorch.a",
        "share/cmake/executorch-config.cmake",
    ):
        (folder / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "package" / name).write_text(f"{name}\n")
    tools = {
        name: BuildTool(script(folder / "bin" / name, "true"), f"{name} 1.0")
        for name in ("compiler", "cmake", "ninja")
    }
    return RunnerPlan(
        target="x86_64-linux",
        build_type="Release",
        executorch=Executorch(folder / "package", "1.5.1"),
        folder=folder / "build",
        dist=folder / "dist",
        store=folder / "store",
        **tools,
    )


def key_of(plan: RunnerPlan) -> Any:
    return plan.key(CachedResults(plan.store, "runner"))


@pytest.mark.parametrize("change", [{"build_type": "Debug"}, {"target": "aarch64-linux"}])
def test_what_is_asked_for_is_in_the_key_of_a_build(tmp_path: Path, change: dict[str, Any]) -> None:
    plan = runner_plan(tmp_path)
    assert key_of(replace(plan, **change)) != key_of(plan)


@pytest.mark.parametrize(
    "file",
    [
        "package/include/program.h",
        "package/lib/libexecutorch.a",
        "package/share/cmake/executorch-config.cmake",
        "bin/compiler",
        "bin/cmake",
        "bin/ninja",
    ],
)
def test_each_byte_that_a_build_can_read_is_in_its_key_whatever_its_time(tmp_path: Path, file: str) -> None:
    plan, path = runner_plan(tmp_path), tmp_path / file
    first, stat = key_of(plan), path.stat()
    os.utime(path, (1, 1))
    assert key_of(plan) == first
    path.write_text(path.read_text().replace("e", "E"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert key_of(plan) != first


def test_another_folder_is_not_in_the_key(tmp_path: Path) -> None:
    assert key_of(runner_plan(tmp_path / "one")) == key_of(runner_plan(tmp_path / "other"))


SELECTION = Selection("wheels", "x86_64-linux", "SM8650", Path("/store"), Path("/reports"))


@pytest.mark.parametrize("folder", ["output", "build_dir"])
def test_a_folder_with_the_users_files_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "backup").touch()
    with pytest.raises(UsageError, match=str(tmp_path)) as caught:
        plan_of(SELECTION, **{folder: tmp_path})  # type: ignore[arg-type]
    assert f"--{folder.replace('_', '-')}" in caught.value.fix
