"""Lock files: what goes in, what a stale one is told by, and what of torch's CUDA build stays out."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from provisioning import lock_files

INPUTS = ("filelock", "rich>=13")
TOOLS = "rich==15.0 \\\n    --hash=sha256:aa\nfilelock==4.1 \\\n    --hash=sha256:bb\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A fresh lock file of INPUTS."""
    path = tmp_path / "tools.txt"
    path.write_text(lock_files.render(INPUTS, lock_files.parse(TOOLS)))
    return path


class TestStaleness:
    def test_a_fresh_lock_has_no_errors(self, path: Path) -> None:
        assert lock_files.problems(path, INPUTS) == []

    def test_an_added_requirement_is_named(self, path: Path) -> None:
        (problem,) = lock_files.problems(path, (*INPUTS, "isal>=1.7"))
        assert problem.startswith("tools.txt: isal>=1.7 was added")

    def test_a_pin_changed_by_hand_is_named(self, path: Path) -> None:
        path.write_text(path.read_text().replace("rich==15.0", "rich==12.0"))
        assert lock_files.problems(path, INPUTS) == ["tools.txt: rich>=13 is required but not pinned"]

    def test_a_lost_hash_is_named(self, path: Path) -> None:
        path.write_text(path.read_text().replace(" \\\n    --hash=sha256:bb", ""))
        assert lock_files.problems(path, INPUTS) == ["tools.txt: filelock==4.1 has no hash"]

    def test_an_address_is_named(self, path: Path) -> None:
        path.write_text("--index-url https://index.example/simple\n" + path.read_text())
        assert any("holds an address" in fault for fault in lock_files.problems(path, INPUTS))


class TestCommittedLocks:
    def test_they_are_fresh(self) -> None:
        for name in lock_files.lockable():
            assert lock_files.problems(lock_files.lock_path(name), lock_files.inputs_of(name)) == []

    @pytest.mark.parametrize("name", lock_files.lockable())
    def test_nothing_of_cuda_is_in_them(self, name: str) -> None:
        names = {entry.name for entry in lock_files.parse(lock_files.lock_path(name).read_text())}
        assert [name for name in names if lock_files.CUDA_ONLY.fullmatch(name) or name == "torch"] == []

    @pytest.mark.parametrize("name", lock_files.lockable())
    @pytest.mark.parametrize("python", ["3.10", "3.13"])
    def test_each_package_is_pinned_once_for_each_python(self, name: str, python: str) -> None:
        environment = {
            "python_version": python,
            "python_full_version": f"{python}.5",
            "implementation_name": "cpython",
        }
        pins = [Requirement(entry.line) for entry in lock_files.parse(lock_files.lock_path(name).read_text())]
        taken = [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
        assert len(taken) == len(set(taken))
