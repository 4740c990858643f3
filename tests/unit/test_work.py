"""Tasks in child processes: what they find, how they end, and that nothing is left of them."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.work import child, outcome, trouble
from ci.work.jobs import Job, Line
from ci.work.outcome import Failure, Refused, TaskOutcome
from ci.work.processes import ChildTask, Home, asking
from ci.work.schedule import Exports, run_tasks
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.settings import ROOT

PATH = {"PATH": "/usr/bin:/bin"}
pytestmark = pytest.mark.usefixtures("one_template")


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
) -> list[TaskOutcome]:
    """The outcomes in the order of the requests."""
    tasks = [
        ChildTask(
            f"task{number}",
            f"tests.support.tasks:{function}",
            request,
            timeout,
            folder / f"{number}.log",
        )
        for number, request in enumerate(requests)
    ]
    outcomes = run_tasks(tasks, home or home_in(folder), "toys", lambda name, outcome: Line("ended"), jobs)
    return [outcomes[task.name] for task in tasks]


def reply(outcome: TaskOutcome) -> dict[str, Any]:
    assert isinstance(outcome, dict), outcome
    return outcome


def failure(outcome: TaskOutcome) -> Failure:
    assert isinstance(outcome, Failure), outcome
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
    home = home_in(tmp_path, MINE="yes")
    first, second = map(reply, done(tmp_path, "surroundings", {}, {}, home=home))
    assert first["stdin"] == "" and first["variables"]["MINE"] == "yes"
    # A model's own argparse sees none of ours.
    assert first["arguments"] == []
    assert first["temporary"] != second["temporary"] and not Path(first["temporary"]).exists()
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
    first, second = map(failure, done(tmp_path, "end", {"how": how}, {"how": "exit"}, jobs=1))
    assert (first.kind, first.blame) == ((trouble, "machine") if trouble else ("crash", "model"))
    assert second.kind == "crash" and first.ending.endswith(words) and words in first.message


@pytest.mark.parametrize(
    ("busy", "idle", "blame"),
    [(True, math.inf, "model"), (False, math.inf, "machine"), (False, -math.inf, "model")],
    ids=["computes", "waits on a busy machine", "waits on an idle machine"],
)
def test_a_task_ends_after_its_limit_with_the_flag_that_gives_it_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: bool, idle: float, blame: str
) -> None:
    # Other tests run beside this one, and take the processor from what computes.
    monkeypatch.setattr(trouble, "BUSY", 0.05)
    monkeypatch.setattr(trouble, "IDLE", idle)
    request = {"file": str(tmp_path / "numbers"), "busy": busy}
    task = ChildTask("task", "tests.support.tasks:hang", request, 0.8, tmp_path / "log")
    outcomes = run_tasks([task], home_in(tmp_path), "toys", lambda name, outcome: Line("ended"))
    late = failure(outcomes["task"])
    assert late.kind == "timeout" and "--timeout" in late.fix and "0.8 s" in late.message
    assert not any(map(is_there, numbers(tmp_path)))
    assert late.blame == blame


@pytest.mark.parametrize("busy", [0.0, math.inf], ids=["computes", "waits"])
def test_a_task_ends_with_the_time_for_all_of_which_it_is_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: float
) -> None:
    monkeypatch.setattr(trouble, "BUSY", busy)
    request = {"file": str(tmp_path / "numbers"), "busy": True}
    until = time.monotonic() + 0.8
    task = ChildTask("task", "tests.support.tasks:hang", request, 60, tmp_path / "log", until=until)
    late = failure(run_tasks([task], home_in(tmp_path), "toys", lambda name, outcome: Line("ended"))["task"])
    # No flag gives this one task longer.
    assert late.kind == "timeout" and "--timeout" not in late.message and "longer" not in late.fix
    assert busy or outcome.OVERALL in late.message


def numbers(folder: Path) -> list[int]:
    """Of the grandchild and the task."""
    return [*map(int, (folder / "numbers").read_text().split())]


def test_a_task_that_ends_leaves_no_grandchild(tmp_path: Path) -> None:
    (outcome,) = done(tmp_path, "hang", {"file": str(tmp_path / "numbers"), "ends": True})
    assert not is_there(reply(outcome)["grandchild"])


def test_where_the_system_ends_the_process_of_all_tasks_they_end_and_no_model_is_to_blame(
    tmp_path: Path,
) -> None:
    """As it does where memory runs out."""
    file = tmp_path / "numbers"
    with ThreadPoolExecutor(1) as pool:
        requests, home = [{"file": str(file)}] * 2, home_in(tmp_path, PURPOSE="to be ended")
        running = pool.submit(done, tmp_path, "hang", *requests, home=home, jobs=1)
        wait_until(lambda: file.exists() and len(file.read_text().split()) == 2)
        grandchild, task = numbers(tmp_path)
        os.kill(parent_of(task), signal.SIGKILL)
        try:
            wait_until(lambda: not is_there(task))
        finally:
            for process in filter(is_there, (task, grandchild)):
                os.kill(process, signal.SIGKILL)
        for outcome in running.result():
            assert (failure(outcome).kind, failure(outcome).blame) == ("killed", "machine")


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-C", "kill -9"])
def test_a_command_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "numbers"
    command = subprocess.Popen(
        [sys.executable, "-m", "tests.support.tasks", str(file)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: file.exists() and len(file.read_text().split()) == 2)
    assert all(map(is_there, numbers(tmp_path)))
    command.send_signal(number)
    command.wait()
    wait_until(lambda: not any(map(is_there, numbers(tmp_path))))


def test_longest_first_and_one_at_a_time_where_memory_allows_no_more(tmp_path: Path) -> None:
    file = tmp_path / "order"
    tasks = [
        ChildTask(
            name,
            "tests.support.tasks:sleep",
            {"name": name, "file": str(file)},
            30,
            tmp_path / "log",
            cost=Job(name, seconds, memory),
        )
        for name, seconds, memory in (("short", 1, 4), ("long", 9, 8), ("middle", 5, 4))
    ]
    run_tasks(tasks, home_in(tmp_path), "toys", lambda name, outcome: Line("ended"), 3, memory=10)
    begun = file.read_text().split()
    assert begun[0] == "long" and set(begun[1:]) == {"middle", "short"}


def exported(folder: Path, *values: str, jobs: int = 2, **known: TaskOutcome) -> dict[str, TaskOutcome]:
    """Two tasks of each value's export."""
    log, file = folder / "log", str(folder / "exports")
    tasks = [
        ChildTask(
            f"{value}{number}",
            "tests.support.tasks:compile_exported",
            {"ends": value == "half" and not number},
            30,
            log,
            export=value,
        )
        for value in values
        for number in range(2)
    ]
    made = {
        value: ChildTask(value, "tests.support.tasks:export", {"value": value, "file": file}, 30, log)
        for value in values
    }

    def settle(task: ChildTask, reply: Mapping[str, Any]) -> ChildTask | TaskOutcome:
        assert reply["value"] == task.export
        return known.get(task.name, task)

    exports = Exports(made, settle)
    return run_tasks(tasks, home_in(folder), "toys", lambda *_: Line("ended"), jobs, exports=exports)


def exports_made(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "exports").read_text().splitlines()]


def test_an_export_is_made_once_and_each_task_is_a_fork_of_it(tmp_path: Path) -> None:
    outcomes = exported(tmp_path, "a", "b", a1={"value": "known"})
    assert sorted(exports_made(tmp_path)) == ["a", "b"]
    assert {name: reply(outcome)["value"] for name, outcome in outcomes.items()} == {
        "a0": "a",
        "a1": "known",
        "b0": "b",
        "b1": "b",
    }
    assert reply(outcomes["b0"])["before"] == reply(outcomes["b1"])["before"] == 0
    processes = [int(line.split()[1]) for line in (tmp_path / "exports").read_text().splitlines()]
    wait_until(lambda: not any(map(is_there, processes)))


def test_an_export_that_dies_is_made_once_and_each_of_its_tasks_says_so(tmp_path: Path) -> None:
    outcomes = exported(tmp_path, "bad", "good")
    assert all("exit code 3" in failure(outcomes[f"bad{number}"]).ending for number in range(2))
    assert sorted(exports_made(tmp_path)) == ["bad", "good"] and reply(outcomes["good1"])


def for_chips(folder: Path, *chips: str, dies: bool = False, fails: str = "") -> dict[str, TaskOutcome]:
    """Tasks of one export that have the beginning of their work in common."""
    log, file = folder / "logs", str(folder / "begun")
    request = {"file": file, "dies": dies}
    common = ChildTask("all", "tests.support.tasks:compile_for_chips", request, 30, log / "all.log")
    tasks = [
        ChildTask(
            chip,
            "tests.support.tasks:compile_alone",
            {"name": chip, "fails_here": chip == fails},
            30,
            log / f"{chip}.log",
            export="model",
            common=common,
        )
        for chip in chips
    ]
    export = ChildTask(
        "model",
        "tests.support.tasks:export",
        {"value": "model", "file": str(folder / "exports")},
        30,
        log / "model.log",
    )
    exports = Exports({"model": export}, lambda task, reply: {"known": 1} if task.name == "known" else task)
    return run_tasks(tasks, home_in(folder), "toys", lambda *_: Line("ended"), 2, exports=exports)


def test_what_tasks_have_in_common_is_done_once_and_each_goes_on_from_there(tmp_path: Path) -> None:
    outcomes = for_chips(tmp_path, "one", "two", "three", "known")
    assert exports_made(tmp_path) == ["model"]
    (begun,) = (tmp_path / "begun").read_text().splitlines()
    process = int(begun.split()[1])
    assert reply(outcomes["known"]) == {"known": 1}
    for chip in ("one", "two", "three"):
        own = reply(outcomes[chip])
        assert own["name"] == chip and own["parent"] == process
        # What was done for all counts for each of them.
        assert own["cpu"] >= 0.1 and own["seconds"] >= own["cpu"] - 0.1
        assert (tmp_path / "logs" / f"{chip}.log").read_text() == f"goes on for {chip}\n"
    wait_until(lambda: not is_there(process))


def test_a_task_that_fails_as_it_goes_on_is_done_as_a_whole(tmp_path: Path) -> None:
    outcomes = for_chips(tmp_path, "one", "two", fails="two")
    assert "alone" not in reply(outcomes["one"]) and reply(outcomes["two"]) == {"name": "two", "alone": True}


def test_where_the_common_beginning_fails_each_task_is_done_as_a_whole(tmp_path: Path) -> None:
    outcomes = for_chips(tmp_path, "one", "two", dies=True)
    assert [reply(outcomes[chip]) for chip in ("one", "two")] == [
        {"name": "one", "alone": True},
        {"name": "two", "alone": True},
    ]
    assert len((tmp_path / "begun").read_text().splitlines()) == 1


def test_a_part_that_crashes_does_not_end_its_task(tmp_path: Path) -> None:
    (outcome,) = done(tmp_path, "in_parts", {"parts": ["SIGSEGV", "echo"]})
    crashed, echoed = reply(outcome)["outcomes"]
    assert crashed == {"died": -signal.SIGSEGV} and echoed["how"] == "echo" and not reply(outcome)["left"]


def test_a_command_gets_the_reply_or_what_its_worker_says_against_it(tmp_path: Path) -> None:
    error = {"kind": "factory", "message": "no model", "fix": "make one", "exit_code": 2}
    with asking(home_in(tmp_path), "tests.support.tasks:echo", tmp_path / "log", 30) as ask:
        assert ask(x=1)["x"] == 1
        with pytest.raises(Refused) as caught:
            ask(error=error)
    assert (caught.value.message, caught.value.exit_code) == ("no model", 2)


def test_imports_during_which_a_command_is_interrupted_leave_no_process(tmp_path: Path) -> None:
    home = replace(home_in(tmp_path, "prepare_for_ever"), arguments=(str(tmp_path / "process"),))

    def interrupt() -> None:
        wait_until(lambda: (tmp_path / "process").is_file() and (tmp_path / "process").read_text())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with ThreadPoolExecutor() as pool, pytest.raises(KeyboardInterrupt):
        pool.submit(interrupt)
        done(tmp_path, "echo", {}, home=home)
    assert not is_there(int((tmp_path / "process").read_text()))


def test_imports_that_fail_are_an_environment_that_lacks_something(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking) as caught:
        done(tmp_path, "echo", {}, home=home_in(tmp_path, "fail_to_prepare"))
    assert "there is no such library" in caught.value.message and caught.value.fix == "install them"


def test_a_folder_of_logs_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(UsageError, match=str(tmp_path / "logs")):
        done(tmp_path, "echo", {}, home=home_in(tmp_path, PURPOSE="to have no logs"))


def test_where_no_more_files_can_be_opened_it_is_the_machine_and_no_verdict(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lines: list[str] = []

    def line(name: str, outcome: TaskOutcome) -> Line:
        # From the first end on, none is free.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        lines.append(name)
        return Line("ended")

    log = tmp_path / "log"
    tasks = [ChildTask(name, "tests.support.tasks:echo", {}, 30, log) for name in ("one", "two")]
    try:
        first, second = run_tasks(tasks, home_in(tmp_path), "toys", line, 1).values()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(first, dict) and lines == ["one", "two"]
    assert (failure(second).kind, failure(second).blame) == ("disk", "machine")


def test_a_log_holds_what_c_and_children_print(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "one.log"
    with child.output_to(log):
        ctypes.CDLL(None).printf(b"from C\n")
        os.write(2, b"an error\n")
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    assert sorted(log.read_text(encoding="utf-8").splitlines()) == ["an error", "from C", "from a child"]


def test_what_another_command_prints_to_a_log_of_this_name_is_not_read(tmp_path: Path) -> None:
    """The compiler's figures are read there, and kept with the program."""
    log = tmp_path / "one.log"
    code = "import pathlib, sys; from ci.work import child; log = child.output_to(pathlib.Path(sys.argv[1]))"
    theirs = [sys.executable, "-c", f"{code}\nwith log: print('theirs')", str(log)]
    with child.output_to(log):
        os.write(1, b"ours\n")
        begin = child.printed_so_far()
        subprocess.run(theirs, check=True, cwd=ROOT)
        os.write(1, b"ours too\n")
        assert child.text_since(begin) == "ours too\n"
