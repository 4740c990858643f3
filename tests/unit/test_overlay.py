"""A stage runs the executorch that is named, or ends. A build from source is used for its tree alone, in the
state that it was made of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ci.builds.tree import SourceTree, make_overlay
from ci.suite.ready_environment import ready_environment, use_executorch
from ci.suite.runner import VARIABLE, find_runner
from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import BUILDS_TREE, OFFICIAL_PROFILE, Selection
from provisioning.components import EXECUTORCH_SOURCE
from provisioning.dist import BuiltFrom, describe, description_of
from provisioning.environment import Environment, users_own
from provisioning.executorch import PROFILES_WHEEL, Executorch, choose
from provisioning.executorch_chips import chips_known_to, installed_chips
from provisioning.manifest import load_socs
from provisioning.source_tree import state_of
from tests.support.environments import write_sdk
from tests.support.scripts import script

IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
SOURCE = "backends/qualcomm/runtime/QnnManager.cpp"


def git(folder: Path, *words: str) -> None:
    command = ["git", *IDENTITY, "-c", "protocol.file.allow=always", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("original")
    root, inner = base / "executorch", base / "inner"
    write(root / SOURCE, "int a;")
    write(root / "CMakeLists.txt", "project(a)")
    write(inner / "src" / "c.c", "int c;")
    for folder in (inner, root):
        git(folder, "init", "-q")
        if folder == root:
            git(root, "submodule", "add", "-q", str(inner), "third-party/inner")
        git(folder, "add", "--all")
        git(folder, "commit", "-qm", "all")
    return root


@pytest.fixture
def tree(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "executorch", symlinks=True)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def use(folder: Path) -> None:
    """As a stage does that takes executorch from an overlay."""
    executorch = Executorch(description_of(folder), folder)
    use_executorch(Environment("wheels", "x86_64-linux", "SM8650", {}, {}, (), (), (), executorch))


def build_x86(tree: Path, dist: Path, profile: str = "qnn-2.48") -> Path:
    """As far as Python sees what it builds, and a runner; returns the overlay."""
    state = state_of(tree)
    source = SourceTree(tree, "1.6.0", state.commit, time=0, state=state)
    make_overlay(source, {}, dist / "overlay", profile)
    script(dist / "bin" / "qnn_executor_runner", "echo --performance_output_path")
    return dist / "overlay"


@pytest.fixture
def overlay(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    overlay = build_x86(tree, tmp_path / "dist")
    use(overlay)
    return overlay


def another_commit(tree: Path) -> None:
    git(tree, "commit", "-q", "--allow-empty", "-m", "another")


def submodule_moved(tree: Path) -> None:
    another_commit(tree / "third-party/inner")


CHANGES: dict[str, Callable[[Path], None]] = {
    "an edit": lambda tree: write(tree / SOURCE, "int b;"),
    "a new file": lambda tree: write(tree / "backends/qualcomm/runtime/New.cpp", "int b;"),
    "a file that is gone": lambda tree: (tree / SOURCE).unlink(),
    "a renamed file": lambda tree: git(tree, "mv", SOURCE, SOURCE.replace(".cpp", ".cc")),
    "a CMake file": lambda tree: write(tree / "CMakeLists.txt", "project(b)"),
    "a schema": lambda tree: write(tree / "schema/program.fbs", "table B {}"),
    "another commit": another_commit,
    "an edit of a submodule": lambda tree: write(tree / "third-party/inner/src/c.c", "int b;"),
    "another commit of a submodule": submodule_moved,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_build_of_another_state_is_refused_with_the_command_that_builds(
    tree: Path, overlay: Path, change: str
) -> None:
    CHANGES[change](tree)
    with pytest.raises(EnvironmentLacking) as stale:
        use(overlay)
    assert "build_x86" in stale.value.fix and "qnn-2.48" in stale.value.fix
    assert state_of(tree).commit[:12] in stale.value.message


@pytest.mark.parametrize("place", ["notes.md", "backends/qualcomm/quantizer.py", "out/model.pte"])
def test_what_no_build_reads_makes_none_stale(tree: Path, overlay: Path, place: str) -> None:
    write(tree / place, "changed")
    use(overlay)


def test_the_runner_of_a_build_is_refused_too(tree: Path, overlay: Path) -> None:
    """Also where EXECUTORCH_ROOT is not set, and stages take the runner alone from it."""
    runner = overlay.parent / "bin" / "qnn_executor_runner"
    assert find_runner({VARIABLE: str(runner)}, PROFILES_WHEEL).path == runner
    write(tree / SOURCE, "int b;")
    with pytest.raises(EnvironmentLacking, match=r"QnnManager\.cpp"):
        find_runner({VARIABLE: str(runner)}, PROFILES_WHEEL)
    shutil.rmtree(tree)
    assert find_runner({VARIABLE: str(runner)}, PROFILES_WHEEL).path == runner, (
        "a build that was copied from elsewhere"
    )


def test_a_runner_that_does_not_start_is_built_again_by_what_built_it(tree: Path, overlay: Path) -> None:
    runner = script(overlay.parent / "bin" / "qnn_executor_runner", "exit 127")
    build = Executorch(description_of(overlay), overlay)
    commands = []
    for executorch, environ in ((build, {}), (PROFILES_WHEEL, {VARIABLE: str(runner)})):
        with pytest.raises(EnvironmentLacking) as refused:
            find_runner(environ, executorch)
        assert isinstance(refused.value.fix, Fix)
        commands.append(refused.value.fix.command[0])
    assert commands == ["build_x86", "build_runner"]


def test_an_edit_that_was_built_is_current_until_it_is_taken_back(tree: Path, overlay: Path) -> None:
    write(tree / SOURCE, "int b;")
    build_x86(tree, overlay.parent)
    use(overlay)
    git(tree, "checkout", "-q", SOURCE)
    with pytest.raises(EnvironmentLacking, match=r"QnnManager\.cpp"):
        use(overlay)


def test_a_tree_without_git_is_known_by_its_files(tmp_path: Path, overlay: Path) -> None:
    root = tmp_path / "plain"
    write(root / "CMakeLists.txt", "project(a)")
    build_x86(root, overlay.parent)
    use(overlay)
    write(root / "CMakeLists.txt", "project(another)")
    with pytest.raises(EnvironmentLacking):
        use(overlay)


@dataclass(frozen=True)
class Machine:
    """What a user has exported, and where builds are put."""

    folder: Path

    @property
    def dist(self) -> Path:
        return self.folder / "dist"

    def chosen(self, environ: Mapping[str, object], word: str = "") -> Executorch:
        selection = Selection("wheels", "x86_64-linux", "SM8650", self.folder, self.folder)
        variables = {name: str(value) for name, value in environ.items()}
        return choose(
            replace(selection, executorch=word),
            variables,
            users_own(EXECUTORCH_SOURCE, self.folder / "store", variables, []),
            None,
            overlay=self.dist / "overlay",
            prefix=self.folder / "python",
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def other(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "other" / "executorch", symlinks=True)


@pytest.mark.parametrize("built", [False, True])
def test_a_tree_that_is_named_and_not_built_ends_a_stage_with_the_command_that_builds_it(
    machine: Machine, tree: Path, other: Path, built: bool
) -> None:
    """Also where another one is built, or nothing knows that it is a tree."""
    if built:
        build_x86(other, machine.dist)
    with pytest.raises(EnvironmentLacking) as lacking:
        machine.chosen({"EXECUTORCH_ROOT": tree}).current()
    assert str(tree) in lacking.value.message and (str(other) in lacking.value.message) == built
    assert isinstance(lacking.value.fix, Fix)
    assert lacking.value.fix.command == ("build_x86", "--profile", OFFICIAL_PROFILE)
    with pytest.raises(EnvironmentLacking, match="/nowhere"):
        machine.chosen({"EXECUTORCH_ROOT": "/nowhere"}).current()


@pytest.mark.parametrize("variable", ["EXECUTORCH_ROOT", "PYTHONPATH"])
def test_the_tree_that_is_named_and_built_is_what_runs_with_its_commit_and_its_runner(
    machine: Machine, tree: Path, variable: str
) -> None:
    overlay = build_x86(tree, machine.dist)
    named = {"EXECUTORCH_ROOT": tree, "PYTHONPATH": f"/mine{os.pathsep}{overlay}"}[variable]
    executorch = machine.chosen({variable: named}).current()
    (tree / "notes.md").write_text("mine")
    git(tree, "add", "notes.md")
    words = executorch.current().describe("1.6.0")
    assert str(tree) in words and state_of(tree).commit in words and "+changes" in words
    assert executorch.runner(Path("elsewhere")) == machine.dist / "bin" / "qnn_executor_runner"


def test_without_a_name_and_by_the_users_word_the_wheel_runs_with_our_runner(
    machine: Machine, tree: Path
) -> None:
    overlay = build_x86(tree, machine.dist)
    exported = {"EXECUTORCH_ROOT": tree, "PYTHONPATH": f"{overlay}{os.pathsep}/mine"}
    by_word = machine.chosen(exported, "wheel").current()
    assert by_word == machine.chosen({}).current() == PROFILES_WHEEL
    assert by_word.python_path({"PYTHONPATH": f"{overlay}{os.pathsep}/mine"}) == "/mine"
    assert by_word.runner(machine.dist) == machine.dist / "wheel" / "bin" / "qnn_executor_runner"


def test_a_trees_wheel_is_known_by_its_tree(machine: Machine, tree: Path, other: Path) -> None:
    for folder in (machine.folder / "python", machine.folder / "environments" / "executorch"):
        folder.mkdir(parents=True)
        describe(folder, BuiltFrom(tree, "qnn-2.48", state_of(tree)))
    assert str(tree) in machine.chosen({"EXECUTORCH_ROOT": tree}).current().describe("1.6.0")
    assert machine.chosen({}).current().build
    for exported, word in ({"EXECUTORCH_ROOT": other}, ""), ({}, "wheel"):
        with pytest.raises(EnvironmentLacking, match=str(tree)):
            machine.chosen(exported, word).current()
    write(tree / SOURCE, "int b;")
    with pytest.raises(EnvironmentLacking) as stale:
        machine.chosen({}).current()
    assert "--wheel" in stale.value.fix
    # The Python of another stage, whose environment has the profile's wheel.
    shutil.rmtree(machine.folder / "python")
    with pytest.raises(EnvironmentLacking, match=str(tree)):
        machine.chosen({"QNN_CI_ENVIRONMENTS": machine.folder / "environments"}).current()


def test_another_executorch_before_it_on_pythons_path_is_refused(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = str(tree.parent)
    monkeypatch.setattr(sys, "path", [found, *sys.path])
    for python_path, named in (found, f"{found} out of PYTHONPATH"), ("", "pip uninstall executorch"):
        monkeypatch.setenv("PYTHONPATH", python_path)
        with pytest.raises(EnvironmentLacking, match=str(tree)) as refused:
            use_executorch(Environment("wheels", "x86_64-linux", "SM8650", {}, {}, (), (), ()))
        assert named in refused.value.fix


def test_after_a_build_for_a_device_the_same_tree_is_built_for_this_machine_first(
    tree: Path, tmp_path: Path
) -> None:
    """As the sessions of one call: this tree cannot be built, and the stage says why."""
    sdk = write_sdk(tmp_path / "sdk")
    environ = {**os.environ, "QNN_SDK_ROOT": str(sdk), "EXECUTORCH_ROOT": str(tree)}
    selection = Selection("wheels", "x86_64-linux", "SM8650", tmp_path / "store", tmp_path / "reports")
    with pytest.raises(EnvironmentLacking, match="is not built"):
        ready_environment(selection, environ)
    assert not selection.reports.exists()
    with pytest.raises(EnvironmentLacking, match=r"could not be built.*expected an ExecuTorch tree"):
        ready_environment(selection, {**environ, BUILDS_TREE: "1"})


def test_the_chips_are_those_that_executorch_compiles_for_by_its_own_list() -> None:
    """manifests/socs.toml says which of ours the locked executorch knows."""
    by_table = {name for name, chip in load_socs().items() if chip.executorch}

    assert installed_chips() == by_table


def test_an_executorch_whose_list_cannot_be_read_refuses_no_chip(tmp_path: Path) -> None:
    assert chips_known_to(tmp_path) == frozenset()
