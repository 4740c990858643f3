"""Tasks in child processes: what they find, how they end, and that nothing is left of them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.engine.jobs import Job
from ci.engine.progress import Line
from ci.engine.workers.parent import WorkerDied
from ci.work import ChildTask, Home, Outcome, run
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.settings import ROOT

PATH = {"PATH": "/usr/bin:/bin"}


def home_in(folder: Path, prepare: str = "prepare", **variables: str) -> Home:
    function = f"tests.support.tasks:{prepare}"
    return Home({**PATH, **variables}, folder / "logs", function, "the tests", "install them")


def done(
    folder: Path,
    function: str,
    *requests: Mapping[str, Any],
    timeout: float = 30,
    home: Home | None = None,
    jobs: int | None = None,
) -> list[Outcome]:
    """The outcomes in the order of the requests."""
    tasks = [
        ChildTask(
            f"task{number}",
            f"tests.support.tasks:{function}",
            {"log": str(folder / f"{number}.log"), **request},
            timeout,
        )
        for number, request in enumerate(requests)
    ]
    outcomes = run(tasks, home or home_in(folder), "toys", lambda name, outcome: Line("ended"), jobs)
    return [outcomes[task.name] for task in tasks]


def reply(outcome: Outcome) -> dict[str, Any]:
    assert isinstance(outcome, dict), outcome
    return outcome


def death(outcome: Outcome) -> WorkerDied:
    assert isinstance(outcome, WorkerDied), outcome
    return outcome


def is_there(process: int) -> bool:
    """Whether it runs: a zombie of another parent does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], object], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def test_each_task_is_a_fork_of_one_process_that_has_made_the_imports(tmp_path: Path) -> None:
    replies = [reply(outcome) for outcome in done(tmp_path, "echo", {"x": 1}, {"x": [2, "ä" * 300_000]})]
    assert [row["x"] for row in replies] == [1, [2, "ä" * 300_000]]
    assert len({row["process"] for row in replies}) == 2
    assert len({row["imported_in"] for row in replies}) == 1 and os.getpid() not in {
        row["imported_in"] for row in replies
    }
    assert (tmp_path / "0.log").read_text() == "a line of the log\n"


def test_no_task_sees_what_another_one_left_behind(tmp_path: Path) -> None:
    assert done(tmp_path, "change", {}, {}, jobs=1) == [{"seen": False}, {"seen": False}]


def test_a_task_finds_an_empty_input_its_own_temporary_folder_and_the_variables_it_may_have(
    tmp_path: Path,
) -> None:
    home = home_in(tmp_path, MINE="yes", QNN_CI_WORKER_MEMORY=str(1 << 40))
    first, second = map(reply, done(tmp_path, "surroundings", {}, {}, home=home))
    assert first["stdin"] == "" and first["variables"]["MINE"] == "yes"
    assert not [name for name in first["variables"] if name.startswith("QNN_CI_")]
    assert first["temporary"] != second["temporary"] and not Path(first["temporary"]).exists()
    assert first["most_memory"] == 1 << 40
    assert first["drawn"][0] != second["drawn"][0] and first["drawn"][1] != second["drawn"][1]


@pytest.mark.parametrize(
    ("how", "words", "trouble"),
    [
        ("exit", "ended with exit code 3; its last words: my last words", ""),
        ("SIGSEGV", "was ended by SIGSEGV; its last words: my last words", ""),
        ("raise", "its last words: ValueError: no model", ""),
        ("SIGKILL", "", "killed"),
        ("disk", "", "disk"),
    ],
)
def test_a_task_that_dies_says_how_and_the_others_go_on(
    tmp_path: Path, how: str, words: str, trouble: str
) -> None:
    first, second = done(tmp_path, "end", {"how": how}, {"how": "exit"}, jobs=1)
    assert death(second).kind == "crash"
    log, found = tmp_path / "0.log", death(first).trouble(tmp_path / "0.log")
    assert (found.kind if found else "") == trouble
    assert trouble or death(first).sentence(log).endswith(words)


@pytest.mark.parametrize("busy", [True, False], ids=["computes", "waits"])
def test_a_task_ends_after_its_limit_with_the_flag_that_gives_it_longer(tmp_path: Path, busy: bool) -> None:
    (outcome,) = done(tmp_path, "hang", {"file": str(tmp_path / "numbers"), "busy": busy}, timeout=1.5)
    died = death(outcome)
    assert died.kind == "timeout" and "--timeout" in died.sentence(tmp_path / "0.log")
    assert not any(map(is_there, numbers(tmp_path)))
    held_up = died.trouble(tmp_path / "0.log") is not None
    if busy and held_up and share_of_processor() < 0.9:
        pytest.skip("other work has the processor, so that this task was held up indeed")
    assert held_up != busy, "the machine held up what did not compute"


def share_of_processor() -> float:
    """What this process gets of one now, if it computes."""
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < 1:
        pass
    return time.process_time() - used


def numbers(folder: Path) -> list[int]:
    """Of the grandchild, the task and its guard."""
    return [*map(int, (folder / "numbers").read_text().split())]


def test_a_task_that_ends_leaves_no_grandchild(tmp_path: Path) -> None:
    (outcome,) = done(tmp_path, "hang", {"file": str(tmp_path / "numbers"), "ends": True})
    assert not is_there(reply(outcome)["grandchild"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-C", "kill -9"])
def test_a_command_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "numbers"
    command = subprocess.Popen(
        [sys.executable, "-m", "tests.support.tasks", str(file)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: file.exists() and len(file.read_text().split()) == 3)
    assert all(map(is_there, numbers(tmp_path)))
    command.send_signal(number)
    command.wait()
    wait_until(lambda: not any(map(is_there, numbers(tmp_path))))


def test_a_killed_guard_leaves_no_process_and_no_verdict(tmp_path: Path) -> None:
    file = tmp_path / "numbers"
    command = subprocess.Popen(
        [sys.executable, "-m", "tests.support.tasks", str(file)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: file.exists() and len(file.read_text().split()) == 3)
    os.kill(numbers(tmp_path)[2], signal.SIGKILL)
    assert command.wait(20) == 0
    wait_until(lambda: not any(map(is_there, numbers(tmp_path))))


def test_longest_first_and_one_at_a_time_where_memory_allows_no_more(tmp_path: Path) -> None:
    file = tmp_path / "order"
    tasks = [
        ChildTask(
            name,
            "tests.support.tasks:sleep",
            {"name": name, "file": str(file)},
            30,
            cost=Job(name, seconds, memory),
        )
        for name, seconds, memory in (("short", 1, 4), ("long", 9, 8), ("middle", 5, 4))
    ]
    run(tasks, home_in(tmp_path), "toys", lambda name, outcome: Line("ended"), 3, memory=10)
    begun = file.read_text().split()
    assert begun[0] == "long" and set(begun[1:]) == {"middle", "short"}


def test_imports_that_fail_are_an_environment_that_lacks_something(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking) as caught:
        done(tmp_path, "echo", {}, home=home_in(tmp_path, "fail_to_prepare"))
    assert "there is no such library" in caught.value.message and caught.value.fix == "install them"


def test_a_folder_of_logs_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(UsageError, match=str(tmp_path / "logs")):
        done(tmp_path, "echo", {})


def test_where_no_more_files_can_be_opened_it_is_the_machine_and_no_verdict(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lines: list[str] = []

    def line(name: str, outcome: Outcome) -> Line:
        # From the first end on, none is free.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        lines.append(name)
        return Line("ended")

    tasks = [ChildTask(name, "tests.support.tasks:echo", {}, 30) for name in ("one", "two")]
    try:
        first, second = run(tasks, home_in(tmp_path), "toys", line, 1).values()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(first, dict) and lines == ["one", "two"]
    found = death(second).trouble(tmp_path / "1.log")
    assert found and found.kind == "disk"
