"""From a build directory to dist/: files are taken, stripped, and take the place of the last build."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ci.builds import install, source
from ci.builds.built_files import replace_build
from ci.builds.cmake import CMakeTarget
from ci.builds.source_plan import SourcePlan
from ci.builds.tree import Copy
from provisioning.base.errors import CheckFailed
from provisioning.base.stage_run import StageRun
from provisioning.dist import description_of
from tests.support.build_plans import make_plan


@pytest.fixture
def plan(tmp_path: Path) -> SourcePlan:
    return make_plan(tmp_path)


def test_a_build_without_the_backend_is_refused_with_what_it_made(
    plan: SourcePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = plan.build / "qnn_executor_runner"
    runner.parent.mkdir(parents=True)
    runner.touch()
    made = CMakeTarget("r", "EXECUTABLE", plan.build, plan.source, (runner,), (), "", (), (), "r::@1")
    monkeypatch.setattr(SourcePlan, "targets", lambda plan: [made])
    with pytest.raises(CheckFailed, match=r"lib/libqnn_executorch_backend\.so.*bin/qnn_executor_runner"):
        install.collect(plan, True)


def test_another_build_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """Whichever stage made it: nothing is left that tells of files that are gone."""
    old = ("bin/a", "bin/b", "lib/old.so", "python/a", "licences/x/COPYING", "sbom.cdx.json", "manifest.json")
    for place in (*(f"dist/{name}" for name in old), "part/bin/a", "part/lib/new.so"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place, encoding="utf-8")
    for users in ("overlay", "notes"):
        (tmp_path / "dist" / users).mkdir()
    replace_build(tmp_path / "part", tmp_path / "dist")
    remaining = sorted(str(path.relative_to(tmp_path / "dist")) for path in (tmp_path / "dist").rglob("*"))
    assert remaining == ["bin", "bin/a", "lib", "lib/new.so", "notes", "overlay"]
    assert (tmp_path / "dist/bin/a").read_text(encoding="utf-8") == "part/bin/a"


def test_the_overlay_is_what_pythonpath_names(plan: SourcePlan, capsys: pytest.CaptureFixture[str]) -> None:
    adaptor = plan.dist / "python" / "backends" / "PyA.so"
    adaptor.parent.mkdir(parents=True)
    adaptor.touch()
    plan.tree.root.mkdir(parents=True)
    source.put_into_python(plan, StageRun("build_x86", "wheels", "x86_64-linux", ""))
    overlaid = description_of(plan.dist / "overlay")
    assert overlaid is not None and overlaid.tree == plan.tree.root
    assert f"export PYTHONPATH={plan.dist / 'overlay'}$" in capsys.readouterr().out


def test_the_overlay_has_the_flatc_that_the_build_made(plan: SourcePlan) -> None:
    plan.tree.root.mkdir(parents=True)
    (made := plan.build / "third-party/flatc_ep/bin/flatc").parent.mkdir(parents=True)
    made.touch(0o755)
    copy = Copy(file="third-party/flatc_ep/bin/flatc", to="exir/flatc", built=True)
    absent = Copy(file="third-party/other", to="exir/other", built=True)
    plan = replace(plan, recipe=plan.recipe.model_copy(update={"copies": (copy, absent)}))
    source.put_into_python(plan, StageRun("build_x86", "wheels", "x86_64-linux", ""))
    folder = plan.dist / "overlay" / "executorch" / "exir"
    assert os.access(folder / "flatc", os.X_OK)
    assert sorted(path.name for path in folder.iterdir()) == ["__init__.py", "flatc"]


def test_a_build_without_adaptor_leaves_no_overlay_of_an_earlier_one(plan: SourcePlan) -> None:
    plan.tree.root.mkdir(parents=True)
    run = StageRun("build_x86", "wheels", "x86_64-linux", "")
    source.put_into_python(plan, run)
    assert (plan.dist / "overlay").is_dir()
    source.put_into_python(plan, run, target_only=True)
    assert not (plan.dist / "overlay").exists()
