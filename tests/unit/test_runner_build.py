"""Planning the runner's build, and judging what was staged, without building anything."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.builds import emulator_runner as runner
from ci.builds import qemu_check as emulated
from ci.builds.cmake import Program
from ci.builds.emulator_runner import Executorch, Plan, find_executorch
from ci.builds.qemu_check import judge, probe_in
from ci.engine.dist import RUNNER
from provisioning.base.command_line import main
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.settings import Selection
from tests.support.elves import Library

GOOD = Library(
    needed=("libexecutorch.so", "libstdc++.so.6", "libc.so.6"),
    runpath="$ORIGIN/../lib",
    interpreter="/lib64/ld-linux-x86-64.so.2",
    versions={"libc.so.6": ("GLIBC_2.34",)},
)


def staged(into: Path, library: Library = GOOD) -> Path:
    (into / "lib").mkdir(parents=True)
    (into / "bin").mkdir()
    library.write(into / RUNNER)
    Library(versions={"libc.so.6": ("GLIBC_2.28",)}).write(into / "lib" / "libexecutorch.so")
    return into


def test_equal_outputs_are_fine() -> None:
    assert judge([1.0, 2.0], [1.0, 2.000001], Path("r")).findings == ()


@pytest.mark.parametrize(
    "theirs", [[1.0], [1.0, 2.1], [1.0, float("nan")], []], ids=["fewer", "another", "NaN", "none"]
)
def test_other_outputs_are_told(theirs: list[float]) -> None:
    assert [finding.rule for finding in judge([1.0, 2.0], theirs, Path("r")).findings] == ["runner-outputs"]


def test_a_runner_that_hangs_on_the_probe_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "SECONDS", 0.2)
    with pytest.raises(CheckFailed, match=r"did not end within 0\.2 s"):
        emulated.outputs(["sh", "-c", "exec sleep 60"], tmp_path, tmp_path / "out")


def test_a_runner_that_writes_nothing_gives_no_outputs(tmp_path: Path) -> None:
    assert emulated.outputs(["true"], tmp_path, tmp_path / "out") == []


def test_no_outputs_at_all_are_told() -> None:
    assert judge([], [], Path("r")).findings


def arguments(*flags: str) -> tuple[argparse.Namespace, Selection]:
    from provisioning.base.settings import selection_of

    parser = argparse.ArgumentParser()
    runner.configure(parser)
    args = parser.parse_args(flags)
    return args, selection_of(args, {})


def package(root: Path, version: str = "1.5.1+cpu") -> Path:
    config = root / "share" / "cmake"
    config.mkdir(parents=True)
    (config / "executorch-config.cmake").touch()
    (config / "executorch-config-version.cmake").write_text(
        f'set(EXECUTORCH_BUILD_VERSION "{version}")\n', encoding="utf-8"
    )
    return root


def test_takes_an_unpacked_wheel_by_its_root_or_by_the_package_in_it(tmp_path: Path) -> None:
    root = package(tmp_path / "executorch")
    _, selection = arguments()

    assert find_executorch(root, selection) == find_executorch(tmp_path, selection)
    assert find_executorch(root, selection) == Executorch(root, "1.5.1+cpu")


def test_a_folder_that_is_no_executorch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking, match=r"executorch-config\.cmake in it, found none"):
        find_executorch(tmp_path, arguments()[1])


def test_another_machines_wheel_that_is_not_there_names_the_command_that_brings_it(tmp_path: Path) -> None:
    _, selection = arguments("--target", "aarch64-linux", "--store", str(tmp_path))

    with pytest.raises(EnvironmentLacking) as caught:
        find_executorch(None, selection)

    assert caught.value.remedy == "nox -s provision -- --target aarch64-linux --component executorch-runtime"


def test_a_profile_without_another_machines_wheel_names_the_one_that_has_it(tmp_path: Path) -> None:
    given = ("--target", "aarch64-linux", "--profile", "qnn-2.37", "--store", str(tmp_path))

    with pytest.raises(EnvironmentLacking, match=r"the profile qnn-2\.37 has no executorch wheel") as caught:
        find_executorch(None, arguments(*given)[1])

    assert "--profile wheels" in caught.value.remedy


def test_android_is_another_stages_work() -> None:
    with pytest.raises(UsageError) as caught:
        runner._plan(*arguments("--target", "aarch64-android"))

    assert "build_android" in caught.value.remedy


@pytest.mark.parametrize("pair", ["from", "a;b=c"])
def test_a_remap_that_is_no_pair_is_refused(pair: str) -> None:
    with pytest.raises(UsageError, match="expected FROM=TO"):
        runner._plan(*arguments("--remap", pair))


def test_a_glibc_that_is_no_version_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected a version like 2\.34, found 'new'"):
        runner._plan(*arguments("--glibc", "new"))


@pytest.mark.parametrize("flag", ["--output", "--build-dir"])
def test_a_folder_with_the_users_files_is_refused_before_any_is_removed(tmp_path: Path, flag: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "backup").touch()
    with pytest.raises(UsageError, match="of something else") as caught:
        runner._plan(*arguments(flag, str(tmp_path)))

    assert flag in caught.value.remedy


def test_folders_of_an_earlier_build_are_taken(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "build.log").touch()
    args, _ = arguments("--output", str(staged(tmp_path / "dist")), "--build-dir", str(tmp_path / "tree"))

    assert runner._named_folders(args) == (tmp_path / "dist", tmp_path / "tree")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    tool = Program(tmp_path / "tool", "tool 1.0")
    root = package(tmp_path / "executorch")
    (root / "lib").mkdir()
    return Plan(
        target="x86_64-linux",
        build_type="Release",
        executorch=Executorch(root, "1.5.1"),
        compiler=tool,
        cmake=tool,
        ninja=tool,
        remap=(),
        tree=tmp_path / "tree",
        dist=staged(tmp_path / "dist"),
    )


CHANGES: dict[str, Callable[[Plan], Plan]] = {
    "build type": lambda plan: replace(plan, build_type="Debug"),
    "compiler": lambda plan: replace(plan, compiler=Program(plan.compiler.path, "tool 1.1")),
    "cmake": lambda plan: replace(plan, cmake=Program(plan.cmake.path, "tool 1.1")),
    "remap": lambda plan: replace(plan, remap=("a=b",)),
    "target": lambda plan: replace(plan, target="aarch64-linux"),
    "executorch version": lambda plan: replace(plan, executorch=replace(plan.executorch, version="1.5.2")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_decides_the_build_is_in_its_key(plan: Plan, change: Callable[[Plan], Plan]) -> None:
    assert change(plan).key() != plan.key()


def test_the_bytes_of_executorch_are_in_the_key(plan: Plan) -> None:
    before = plan.key()
    (plan.executorch.root / "lib" / "libexecutorch.so").write_bytes(b"patched")

    assert plan.key() != before


def test_where_it_is_built_is_not_in_the_key(plan: Plan) -> None:
    assert replace(plan, tree=Path("elsewhere"), dist=Path("there")).key() == plan.key()


def stamp(plan: Plan) -> None:
    plan.tree.mkdir()
    kept = {"key": plan.key(), "dist": str(plan.dist), "files": runner._staged(plan.dist)}
    (plan.tree / runner.STAMP).write_text(json.dumps(kept), encoding="utf-8")


@pytest.mark.parametrize("from_source", [True, False])
def test_a_build_from_source_for_this_machine_is_not_replaced_to_compare_anothers_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_source: bool
) -> None:
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "_plan", lambda args, _: args.output)
    (tmp_path / "dist" / "x86_64-linux").mkdir(parents=True)
    if from_source:
        (tmp_path / "dist" / "x86_64-linux" / "manifest.json").touch()

    found: object = runner._plan_here(*arguments("--target", "aarch64-linux", "--output", "elsewhere"))

    assert found == (tmp_path / "build" / "runner" / "staged" if from_source else None)


def test_the_probes_input_is_found_after_its_folder_was_moved(tmp_path: Path) -> None:
    for name in ("probe.pte", "probe.raw"):
        (tmp_path / name).touch()
    (tmp_path / "probe.txt").write_text('"/before/it/was/moved/probe.raw"\n', encoding="utf-8")

    listed = (probe_in(tmp_path) / "probe.txt").read_text(encoding="utf-8")

    assert listed == f'"{tmp_path}/probe.raw"\n'


def test_untouched_files_are_kept(plan: Plan) -> None:
    stamp(plan)

    assert runner._kept(plan) == runner._staged(plan.dist)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plan: (plan.dist / "lib" / "libexecutorch.so").write_bytes(b"other"),
        lambda plan: (plan.dist / RUNNER).unlink(),
        lambda plan: (plan.dist / "lib" / "libmore.so").write_bytes(b"more"),
        lambda plan: (plan.tree / runner.STAMP).unlink(),
        lambda plan: (plan.tree / runner.STAMP).write_text("{", encoding="utf-8"),
        lambda plan: (plan.tree / runner.STAMP).write_text("{}", encoding="utf-8"),
    ],
    ids=["changed", "removed", "added", "no stamp", "damaged stamp", "empty stamp"],
)
def test_anything_else_is_built_again(plan: Plan, spoil: Callable[[Plan], object]) -> None:
    stamp(plan)
    spoil(plan)

    assert runner._kept(plan) is None


def test_an_interrupted_build_leaves_no_older_report_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Plan:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "_plan", interrupted)
    verbs = {"build_runner": VERBS["build_runner"]}
    assert main("python -m ci", "", verbs, ["build_runner", "--reports", str(tmp_path)]) == 130
    assert json.loads((tmp_path / "build_runner.json").read_text(encoding="utf-8"))["outcome"] == "error"
