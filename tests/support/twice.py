"""Run the chosen tests twice, the second time under load: `nox -s tests -- --twice FILE`.

Under load, two processes keep the processor busy, and processes of the tests are stopped at random for a
moment. A test whose outcome differs relies on being fast enough; a real machine would find it some day.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

FLAG = "--twice"
BUSY = 2
PAUSE, STOPPED = (0.05, 0.5), (0.05, 1.0)
"""Between two stops, and of each, in seconds: the least and the most."""


def add_flags(group: pytest.OptionGroup) -> None:
    group.addoption(
        FLAG,
        action="store_true",
        help="run the chosen tests twice, the second time under load, and report whose outcome differs",
    )


def run(config: pytest.Config) -> int:
    """The exit code of the whole call."""
    words = [str(word) for word in config.invocation_params.args if word != FLAG]
    folder = Path(os.environ.get("QNN_CI_REPORTS") or config.rootpath / "reports") / "twice"
    folder.mkdir(parents=True, exist_ok=True)
    quiet, code = _outcomes(words, folder / "quiet.xml", config.invocation_params.dir)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return code
    with busy():
        loaded, code = _outcomes(words, folder / "loaded.xml", config.invocation_params.dir, disturbed=True)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return code
    names = sorted(quiet.keys() | loaded.keys())
    differing = [name for name in names if quiet.get(name) != loaded.get(name)]
    for name in differing:
        was, became = quiet.get(name, "absent"), loaded.get(name, "absent")
        print(f"differs: {name}: {was} in quiet, {became} under load")
    failed = [name for name in names if name not in differing and quiet[name] == "failed"]
    for name in failed:
        print(f"failed twice: {name}")
    print(f"=== twice: {len(names)} tests, {len(differing)} differ, {len(failed)} failed twice ===")
    return int(pytest.ExitCode.TESTS_FAILED if differing or failed else pytest.ExitCode.OK)


def _outcomes(
    words: Sequence[str], report: Path, cwd: Path, *, disturbed: bool = False
) -> tuple[Mapping[str, str], int]:
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *words, f"--junitxml={report}"]
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(command, cwd=cwd))
        if disturbed:
            stack.enter_context(disturbing(process.pid))
        try:
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
    if not report.is_file():
        return {}, code or int(pytest.ExitCode.INTERNAL_ERROR)
    return outcomes(report), code


def outcomes(report: Path) -> dict[str, str]:
    """The outcome of each test in a JUnit report; one with several entries has the worst."""
    found: dict[str, str] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        if found.get(name) != "failed":
            found[name] = outcome
    return found


@contextmanager
def busy() -> Iterator[None]:
    # They end with this process, even if that is killed.
    code = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    with ExitStack() as stack:
        for _ in range(BUSY):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", code]))
            stack.callback(process.kill)
        yield


@contextmanager
def disturbing(pid: int) -> Iterator[None]:
    """Stop a random process below `pid` for a moment, again and again."""
    ended = threading.Event()

    def disturb() -> None:
        while not ended.wait(random.uniform(*PAUSE)):
            # One that a test has stopped itself must stay so.
            if below := [descendant for descendant in descendants(pid) if _state(descendant) in "RSD"]:
                chosen = random.choice(below)
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(chosen, signal.SIGSTOP)
                    try:
                        time.sleep(random.uniform(*STOPPED))
                    finally:
                        os.kill(chosen, signal.SIGCONT)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with suppress(OSError):
                children = [int(child) for child in task.read_text().split()]
                found += children
                waiting += children
    return found


def _state(pid: int) -> str:
    """Its letter in /proc; a dot if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "."
