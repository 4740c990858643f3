"""Workers are replaced when a test takes them down, and only that test fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.engine.jobs import Job, run_jobs
from ci.engine.workers.parent import Setup, WorkerSlot, tail
from ci.upstream.pool import SuiteWorker, Verdict, Workers

WORKER = """\
import json, os, pathlib, signal, sys, time
replies = os.fdopen(int(sys.argv[1]), "w")
def reply(message):
    replies.write(json.dumps(message) + "\\n")
    replies.flush()
reply({"absent": []})
served = 0
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "list":
        reply({"tests": [["T.one", "abc"], ["T.two", "def"]]})
        continue
    test, scratch = request["test"], pathlib.Path(request["scratch"])
    scratch.mkdir(parents=True)
    (scratch / "model.pte").write_text("x")
    pathlib.Path(request["log"]).write_text(f"log of {test}\\n")
    served += 1
    if "segfault" in test:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "leave" in test:
        os._exit(3)
    if "hang" in test:
        time.sleep(600)
    outcome = "failed" if "fail" in test else "passed"
    problems = [{"where": "(i=0)", "what": "AssertionError: no"}] if outcome == "failed" else []
    resident = 9 << 30 if "greedy" in test else 1 << 20
    reply({"outcome": outcome, "reason": f"pid {os.getpid()} served {served}", "problems": problems,
           "subtests": 2, "seconds": 0.5, "cpu_seconds": 0.4, "peak": 1 << 20, "resident": resident})
"""


Slot = WorkerSlot[SuiteWorker, Verdict]


def setup_of(folder: Path, timeout: float = 30) -> Setup:
    script = folder / "worker.py"
    script.write_text(WORKER, encoding="utf-8")
    return Setup((str(script),), {}, folder / "logs", timeout, "the tests", "install them")


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return setup_of(tmp_path)


def slot_of(setup: Setup, *, keep: bool = False) -> Slot:
    return Workers(setup, 1, keep=keep).slot()


@pytest.fixture
def slot(setup: Setup) -> Iterator[Slot]:
    slot = slot_of(setup)
    yield slot
    slot.close()


def test_a_worker_serves_one_test_after_another(slot: Slot) -> None:
    first, second = slot.run(Job("T.one")).reason, slot.run(Job("T.two")).reason
    assert second == first.replace("served 1", "served 2")


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("T.segfault", "crash: ended by signal 11 (SIGSEGV)"),
        ("T.leave", "crash: exit code 3"),
    ],
)
def test_a_crash_fails_the_test_at_hand(slot: Slot, test: str, reason: str) -> None:
    verdict = slot.run(Job(test))
    assert (verdict.outcome, verdict.reason, verdict.broke) == ("failed", reason, True)


def test_a_crash_costs_no_other_test(setup: Setup) -> None:
    jobs = [Job("T.segfault", 9), *(Job(f"T.{n}") for n in range(6))]
    results = run_jobs(jobs, lambda: slot_of(setup), slots=2)
    assert [name for name, verdict in results.items() if verdict.outcome != "passed"] == ["T.segfault"]
    assert len(results) == 7


def test_a_test_that_hangs_fails_after_its_time(tmp_path: Path) -> None:
    slot = slot_of(setup_of(tmp_path, timeout=0.5))
    verdict = slot.run(Job("T.hang"))
    slot.close()
    assert (verdict.outcome, verdict.reason) == ("failed", "timeout: no result after 0.5 s")


def test_a_worker_that_holds_too_much_is_replaced(slot: Slot) -> None:
    slot.run(Job("T.greedy"))
    assert slot.run(Job("T.one")).reason.endswith("served 1")


def test_files_of_a_passed_test_are_removed_and_its_log_stays(slot: Slot, setup: Setup) -> None:
    slot.run(Job("T.one"))
    assert not (setup.logs / "T.one").exists()
    assert tail(setup.logs / "T.one.log") == "log of T.one\n"


def test_files_of_a_failed_test_are_kept(slot: Slot, setup: Setup) -> None:
    assert slot.run(Job("T.fail")).problems == (("(i=0)", "AssertionError: no"),)
    assert (setup.logs / "T.fail" / "model.pte").is_file()


def test_files_of_a_passed_test_are_kept_on_request(setup: Setup) -> None:
    slot = slot_of(setup, keep=True)
    slot.run(Job("T.one"))
    slot.close()
    assert (setup.logs / "T.one" / "model.pte").is_file()


def test_files_of_an_earlier_run_are_gone(slot: Slot, setup: Setup) -> None:
    stale = setup.logs / "T.fail" / "stale"
    stale.parent.mkdir(parents=True)
    stale.touch()
    slot.run(Job("T.fail"))
    assert not stale.exists()


def test_tests_are_listed_with_their_digests(setup: Setup) -> None:
    worker = SuiteWorker(setup)
    assert worker.tests() == {"T.one": "abc", "T.two": "def"}
    worker.end()


def test_the_worker_that_lists_the_tests_also_runs_them(setup: Setup) -> None:
    with Workers(setup, 1) as workers:
        tests = workers.tests()
        slot = workers.slot()
        assert slot.run(Job(next(iter(tests)))).outcome == "passed"
        slot.close()
        assert workers._begun == []


def test_workers_that_nobody_took_are_ended(setup: Setup) -> None:
    with Workers(setup, 2) as workers:
        workers.tests()
        processes = [future.result()._process for future in workers._begun]
    assert all(process.returncode is not None for process in processes)


def test_a_verdict_says_when_it_is_not_from_this_run() -> None:
    assert Verdict("T.one", "passed").cached is False
