"""The commands of a run share a process that has made the imports (tests/support/templates.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci.work import processes
from ci.work.processes import ChildTask, Home
from provisioning.base.errors import EnvironmentLacking
from tests.support import templates

TASKS = "tests.support.tasks"


def home_in(folder: Path, prepare: str = "prepare") -> Home:
    return Home({"PATH": os.environ["PATH"]}, folder / "logs", f"{TASKS}:{prepare}", "numpy", "install it")


@pytest.fixture(autouse=True)
def _templates_are_shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The run's own stays where it is.
    monkeypatch.setenv(templates.VARIABLE, "")
    monkeypatch.setattr(templates, "SHARED", (f"{TASKS}:prepare", f"{TASKS}:fail_to_prepare"))
    with templates.serving(), templates.shared():
        yield


class Command:
    def __init__(self, home: Home, folder: Path) -> None:
        # As it is within `shared`.
        self.template, self.folder = processes.Template(home), folder

    def start(self, function: str) -> processes.Running:
        request = {"file": str(self.folder)}
        task = ChildTask(function, f"{TASKS}:{function}", request, 30, self.folder.with_suffix(".log"))
        return self.template.orders.start(task, os.sched_getaffinity(0))

    def echo(self) -> dict[str, Any]:
        entry = self.start("echo")
        while (outcome := entry.outcome()) is None:
            time.sleep(0.01)
        assert isinstance(outcome, dict)
        return outcome

    def hang(self) -> list[Path]:
        """The processes of work that comes to no end."""
        self.start("hang")
        while not self.folder.is_file() or not (numbers := self.folder.read_text().split()):
            time.sleep(0.01)
        return [Path("/proc", number) for number in numbers]


def test_a_command_that_ends_leaves_the_imports_and_the_work_of_another(tmp_path: Path) -> None:
    first = Command(home_in(tmp_path), tmp_path / "first")
    second = Command(home_in(tmp_path), tmp_path / "second")
    assert first.echo()["imported_in"] == second.echo()["imported_in"]
    of_first, of_second = first.hang(), second.hang()
    first.template.close()
    assert not any(path.exists() for path in of_first) and all(path.exists() for path in of_second)
    second.template.close()
    assert not any(path.exists() for path in of_second)


def test_imports_that_fail_are_the_commands_own_error(tmp_path: Path) -> None:
    command = Command(home_in(tmp_path, "fail_to_prepare"), tmp_path / "work")
    with pytest.raises(EnvironmentLacking, match="no such library"):
        command.echo()
