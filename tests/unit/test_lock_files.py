"""Lock files: what goes in, what a stale one is told by, and what of torch's CUDA build stays out."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from provisioning import lock_files
from provisioning.manifest import PythonEnvironment


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, PythonEnvironment]:
    """Two environments of our own, and a folder of our own for their lock files."""
    environments = {
        "tools": PythonEnvironment(requires=("rich>=13", "filelock")),
        "heavy": PythonEnvironment(include=("tools",), profile="wheels"),
    }
    monkeypatch.setattr(lock_files, "load_environments", lambda: environments)
    monkeypatch.setattr(lock_files, "LOCKS", tmp_path)
    return environments


def write(name: str, entries: str) -> Path:
    path = lock_files.lock_path(name)
    path.write_text(lock_files.render(lock_files.inputs_of(name), lock_files.parse(entries)))
    return path


TOOLS = "rich==15.0 \\\n    --hash=sha256:aa\nfilelock==4.1 \\\n    --hash=sha256:bb\n"


class TestStaleness:
    def test_a_fresh_lock_has_no_errors(self, table: dict[str, PythonEnvironment]) -> None:
        write("tools", TOOLS)
        assert lock_files.problems("tools") == []

    def test_an_added_requirement_is_named(self, table: dict[str, PythonEnvironment]) -> None:
        write("tools", TOOLS)
        table["tools"] = PythonEnvironment(requires=("rich>=13", "filelock", "isal>=1.7"))
        assert lock_files.problems("tools") == ["tools.txt: isal>=1.7 was added to the environment"]

    def test_a_pin_changed_by_hand_is_named(self, table: dict[str, PythonEnvironment]) -> None:
        path = write("tools", TOOLS)
        path.write_text(path.read_text().replace("rich==15.0", "rich==12.0"))
        assert lock_files.problems("tools") == ["tools.txt: rich>=13 is required but not pinned"]

    def test_a_lost_hash_is_named(self, table: dict[str, PythonEnvironment]) -> None:
        path = write("tools", TOOLS)
        path.write_text(path.read_text().replace(" \\\n    --hash=sha256:bb", ""))
        assert lock_files.problems("tools") == ["tools.txt: filelock==4.1 has no hash"]

    def test_an_address_is_named(self, table: dict[str, PythonEnvironment]) -> None:
        path = write("tools", TOOLS)
        path.write_text("--index-url https://index.example/simple\n" + path.read_text())
        assert any("holds an address" in fault for fault in lock_files.problems("tools"))


class TestCommittedLocks:
    def test_they_are_fresh(self) -> None:
        assert [fault for name in lock_files.lockable() for fault in lock_files.problems(name)] == []

    @pytest.mark.parametrize("name", lock_files.lockable())
    def test_nothing_of_cuda_is_in_them(self, name: str) -> None:
        names = {entry.name for entry in lock_files.parse(lock_files.lock_path(name).read_text())}
        assert [one for one in names if lock_files.CUDA_ONLY.fullmatch(one) or one == "torch"] == []

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
