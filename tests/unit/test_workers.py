"""Workers, from both sides: they serve one order after another, and what goes wrong costs only that order."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.engine.jobs import Job
from ci.engine.workers import child
from ci.engine.workers.parent import Refused, Worker, WorkerDied, WorkerSlot, WorkerSpec
from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.settings import ROOT
from tests.support.builds import gone

PROGRAM = """\
import os, signal, sys, time
from ci.engine.workers.child import serve

served = 0

def start():
    def answer(order):
        global served
        served += 1
        what = order["do"]
        print("working on", what)
        if what == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "leave":
            os._exit(3)
        if what == "hang":
            time.sleep(600)
        if what == "grow":
            answer.kept = bytearray(order["bytes"])
        return {"pid": os.getpid(), "served": served}
    return answer

serve(int(sys.argv[1]), start)
"""

HANGING = """\
import sys, tempfile, time
from pathlib import Path
from ci.engine.workers.child import serve

def answer(order):
    Path(tempfile.gettempdir(), "half").touch()
    time.sleep(600)

serve(int(sys.argv[1]), lambda: answer, forks=True)
"""


SAYING = """\
import os, sys, time
from pathlib import Path
from ci.engine.workers.child import doing, serve

def answer(order):
    doing("quantize")
    Path(order["said"]).touch()
    while not Path(order["go on"]).exists():
        time.sleep(0.01)
    return {}

serve(int(sys.argv[1]), lambda: answer, forks="forks" in os.environ)
"""


READING = """\
import os, subprocess, sys
from ci.engine.workers.child import serve

def answer(order):
    child = subprocess.run(["cat"], capture_output=True, text=True, timeout=10)
    return {"found": sys.stdin.read() + child.stdout}

serve(int(sys.argv[1]), lambda: answer, forks="forks" in os.environ)
"""


@pytest.fixture
def setup(tmp_path: Path) -> WorkerSpec:
    environment = {"PYTHONPATH": str(ROOT)}
    return WorkerSpec(("-c", PROGRAM), environment, tmp_path / "logs", 30, "the tests", "install them")


@pytest.fixture
def slot(setup: WorkerSpec) -> Iterator[WorkerSlot[Any]]:
    slot = WorkerSlot(lambda: Worker(setup), answer_of)
    yield slot
    slot.close()


def answer_of(job: Job, worker: Worker) -> Any:
    """What a stage does with an order: a worker that goes is a result, no exception."""
    try:
        return worker.ask({"do": job.name, "log": str(worker.setup.logs / f"{job.name}.log")})
    except WorkerDied as gone:
        return gone


class TestParent:
    @pytest.mark.parametrize(
        ("what", "words"),
        [
            ("segfault", "crash: was ended by SIGSEGV"),
            ("leave", "crash: ended with exit code 3"),
        ],
    )
    def test_a_worker_that_goes_says_how(self, slot: WorkerSlot[Any], what: str, words: str) -> None:
        assert str(slot.run(Job(what))) == words

    @pytest.mark.parametrize("forks", [False, True])
    def test_a_worker_says_what_its_work_is_at(self, setup: WorkerSpec, tmp_path: Path, forks: bool) -> None:
        said, go_on = tmp_path / "said", tmp_path / "go on"
        environment = {**setup.environment, **({"forks": ""} if forks else {})}
        worker = Worker(replace(setup, command=("-c", SAYING), environment=environment, forks=forks))
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(worker.ask, {"said": str(said), "go on": str(go_on)})
            while not said.exists():
                time.sleep(0.01)
            assert worker.doing == "quantize"
            go_on.touch()
            reply.result(timeout=30)
        worker.end()

    def test_closing_a_slot_ends_the_process(self, slot: WorkerSlot[Any]) -> None:
        pid = slot.run(Job("one"))["pid"]
        slot.close()
        assert not Path(f"/proc/{pid}").exists()

    def test_an_order_that_is_ended_leaves_no_temporary_file(
        self, setup: WorkerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (folder := tmp_path / "temporary").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        environment = {**setup.environment, "TMPDIR": str(folder)}
        worker = Worker(replace(setup, command=("-c", HANGING), environment=environment, forks=True))
        with ThreadPoolExecutor(1) as thread:
            asking = thread.submit(worker.ask, {})
            while not list(folder.glob("*/half")):
                assert not asking.done()
                time.sleep(0.01)
            worker.stop()
            with pytest.raises(WorkerDied, match="SIGKILL"):
                asking.result()
        assert list(folder.iterdir()) == []

    @pytest.mark.parametrize("forks", [False, True])
    def test_work_and_its_children_find_nothing_on_standard_input(
        self, setup: WorkerSpec, forks: bool
    ) -> None:
        environment = {**os.environ, **setup.environment, **({"forks": "1"} if forks else {})}
        worker = Worker(replace(setup, command=("-c", READING), environment=environment, forks=forks))
        try:
            assert [worker.ask({})["found"] for _ in range(2)] == ["", ""]
        finally:
            worker.end()

    def test_imports_that_fail_are_reported_with_their_error(self, tmp_path: Path) -> None:
        program = ("-c", "raise SystemExit('No module named torch')")
        with pytest.raises(EnvironmentLacking, match="the tests") as caught:
            Worker(WorkerSpec(program, {}, tmp_path, 5, "the tests", "install them"))
        assert "No module named torch" in caught.value.message and caught.value.fix == "install them"


class TestChild:
    def test_a_log_holds_what_c_and_children_print(self, tmp_path: Path) -> None:
        log = tmp_path / "logs" / "one.log"
        with child.output_to(log):
            ctypes.CDLL(None).printf(b"from C\n")
            os.write(2, b"an error\n")
            subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
        assert sorted(log.read_text(encoding="utf-8").splitlines()) == ["an error", "from C", "from a child"]

    def test_it_does_not_outlive_whoever_started_it(self) -> None:
        starter = """
import os, subprocess, sys
code = f"import time; from ci.engine.workers.child import end_with; end_with({os.getpid()}); time.sleep(600)"
print(subprocess.Popen([sys.executable, "-c", code], start_new_session=True).pid)
"""
        done = subprocess.run(
            [sys.executable, "-c", starter], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
        assert gone(int(done.stdout))


def test_the_command_of_a_fix_reaches_the_one_that_asked() -> None:
    def refuse(order: dict[str, Any]) -> dict[str, Any]:
        raise UsageError("it is so", fix=Fix("read {}, or type {}", "{log}", ("diagnose", "a log")))

    def error_of(error: Exception, order: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(error, UsageError)
        return {"kind": "refused", "message": error.message, "fix": error.fix, "exit_code": error.exit_code}

    reply = json.loads(json.dumps(child.reporting(refuse, error_of)({})))
    fix = Refused(reply["error"]).fix
    assert isinstance(fix, Fix) and fix.command == ("diagnose", "a log") and "{log}" in fix
