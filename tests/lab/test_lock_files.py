"""Lock files: what goes in, what a stale one is told by, and what of torch's CUDA build stays out."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lab.lock import files as lock
from lab.lock.environments import load_environments
from provisioning.python_environments import CUDA_ONLY, entries_in, lock_path

INPUTS = ("filelock", "rich>=13")
TOOLS = "rich==15.0 \\\n    --hash=sha256:aa\nfilelock==4.1 \\\n    --hash=sha256:bb\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A fresh lock file of INPUTS."""
    path = tmp_path / "tools.txt"
    path.write_text("\n".join([*lock.header(INPUTS), TOOLS]))
    return path


class TestStaleness:
    def test_a_fresh_lock_has_no_errors(self, path: Path) -> None:
        assert lock.problems(path, INPUTS) == []

    def test_an_added_requirement_is_named(self, path: Path) -> None:
        assert "isal>=1.7" in "".join(lock.problems(path, (*INPUTS, "isal>=1.7")))

    def test_a_removed_requirement_is_named(self, path: Path) -> None:
        assert "input: filelock" in "".join(lock.problems(path, ("rich>=13",)))

    def test_other_room_for_the_packages_is_named(self, path: Path) -> None:
        assert "room: 600 MB" in "".join(lock.problems(path, INPUTS, 600))

    def test_a_pin_changed_by_hand_is_named(self, path: Path) -> None:
        path.write_text(path.read_text().replace("rich==15.0", "rich==12.0"))
        (problem,) = lock.problems(path, INPUTS)
        assert "rich>=13" in problem

    def test_a_lost_hash_is_named(self, path: Path) -> None:
        path.write_text(path.read_text().replace(" \\\n    --hash=sha256:bb", ""))
        (problem,) = lock.problems(path, INPUTS)
        assert "filelock==4.1" in problem

    @pytest.mark.parametrize(
        "line",
        [
            "--index-url https://index.example/simple",
            "rich @ https://index.example/rich.whl --hash=sha256:aa",
            "<<<<<<< HEAD",
            "# torch: torch==2",
        ],
    )
    def test_what_uv_does_not_write_is_named(self, path: Path, line: str) -> None:
        path.write_text(f"{path.read_text()}{line}\n")
        assert line in "".join(lock.problems(path, INPUTS))


class TestCommittedLocks:
    def test_they_are_fresh(self) -> None:
        for name, environment in load_environments().items():
            if not environment.abstract:
                inputs = lock.inputs_of(name)
                assert lock.problems(lock_path(name), inputs, environment.megabytes) == []

    @pytest.mark.parametrize("name", lock.lockable())
    def test_nothing_of_cuda_is_in_them(self, name: str) -> None:
        names = {entry.name for entry in entries_in(lock_path(name).read_text())}
        assert [name for name in names if CUDA_ONLY.fullmatch(name) or name == "torch"] == []

    @pytest.mark.parametrize("name", lock.lockable())
    @pytest.mark.parametrize("python", ["3.10", "3.13"])
    def test_each_package_is_pinned_once_for_each_python(self, name: str, python: str) -> None:
        environment = {
            "python_version": python,
            "python_full_version": f"{python}.5",
            "implementation_name": "cpython",
        }
        pins = [Requirement(entry.line) for entry in entries_in(lock_path(name).read_text())]
        taken = [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
        assert len(taken) == len(set(taken))
