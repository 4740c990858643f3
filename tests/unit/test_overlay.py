"""A build from source is used only for the state of the tree that it was made of."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.suite.runner import VARIABLE, find_runner
from ci.suite.stage import find_as_workers
from provisioning.base.errors import EnvironmentLacking
from provisioning.dist import BuiltFrom, describe, state_of
from provisioning.environment import Environment

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
    variables = {"PYTHONPATH": str(folder)}
    find_as_workers(Environment("wheels", "x86_64-linux", "SM8650", {}, variables, (), (), ()))


@pytest.fixture
def overlay(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "overlay").mkdir()
    describe(tmp_path / "overlay", BuiltFrom(tree, "qnn-2.48", state_of(tree)))
    use(tmp_path / "overlay")
    return tmp_path / "overlay"


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
    write(runner, "#!/bin/sh\necho --performance_output_path")
    runner.chmod(0o755)
    assert find_runner({VARIABLE: str(runner)}).path == runner
    write(tree / SOURCE, "int b;")
    with pytest.raises(EnvironmentLacking, match=r"QnnManager\.cpp"):
        find_runner({VARIABLE: str(runner)})
    shutil.rmtree(tree)
    assert find_runner({VARIABLE: str(runner)}).path == runner, "a build that was copied from elsewhere"


def test_an_edit_that_was_built_is_current_until_it_is_taken_back(tree: Path, overlay: Path) -> None:
    write(tree / SOURCE, "int b;")
    describe(overlay, BuiltFrom(tree, "wheels", state_of(tree)))
    use(overlay)
    git(tree, "checkout", "-q", SOURCE)
    with pytest.raises(EnvironmentLacking, match=r"QnnManager\.cpp"):
        use(overlay)


def test_a_tree_without_git_is_known_by_its_files(tmp_path: Path, overlay: Path) -> None:
    root = tmp_path / "plain"
    write(root / "CMakeLists.txt", "project(a)")
    describe(overlay, BuiltFrom(root, "wheels", state_of(root)))
    use(overlay)
    write(root / "CMakeLists.txt", "project(another)")
    with pytest.raises(EnvironmentLacking):
        use(overlay)
