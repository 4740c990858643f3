"""`test_delegate` on a small suite, through the command: verdicts, what is accepted, what is cached."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from ci.lanes.upstream.accepted import accepted_file, load_tests
from provisioning.accepted_file import Accepted, Values
from provisioning.base.findings import Metric, Report, Severity
from tests.support.upstream_suite import Suite, counts, findings


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    return Suite(tmp_path).activated(monkeypatch)


def test_surprises_run_each_time_until_they_are_accepted_and_then_are_cached(suite: Suite) -> None:
    suite.accept({"abs": "failed"})
    chosen = ("-k", "fails or aborts or skips", "-k", "*_abs")
    for _ in range(2):
        code, report = suite.run(*chosen)
        assert (code, suite.executed) == (1, {"abs", "aborts", "fails", "skips"})
    assert findings(report) == {
        "abs": ("delegate-passed", Severity.ERROR),
        "aborts": ("delegate-failed", Severity.ERROR),
        "fails": ("delegate-failed", Severity.ERROR),
        "skips": ("delegate-not-run", Severity.ERROR),
    }
    assert counts(report) == {"passed": 1, "failed": 2, "unexpected_passes": 1, "not_run": 1}
    fixes = {finding.rule: finding.fix for finding in report.findings}
    assert fixes["delegate-passed"] == "nox -s test_delegate -- -k test_abs --accept"
    suite.accept({"fails": "failed", "aborts": "crash", "skips": "not_run"})
    suite.run(*chosen)
    code, report = suite.run(*chosen)
    assert (code, suite.executed) == (0, set())
    assert findings(report) == {
        "fails": ("delegate-known-failure", Severity.NOTE),
        "aborts": ("delegate-known-failure", Severity.NOTE),
        "skips": ("delegate-not-run", Severity.NOTE),
    }
    assert counts(report) == {"passed": 1, "expected_failures": 2, "not_run": 1, "cached": 4}


@pytest.fixture(scope="module")
def remembered_run(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    with pytest.MonkeyPatch.context() as monkeypatch:
        suite = Suite(tmp_path_factory.mktemp("remembered")).activated(monkeypatch)
        suite.run("-k", "*_abs")
        suite.run("-k", "*_abs")
        assert suite.executed == set()
    return suite


@pytest.fixture
def remembered(remembered_run: Suite, monkeypatch: pytest.MonkeyPatch) -> Suite:
    return remembered_run.activated(monkeypatch)


QUALCOMM = "site/executorch/backends/qualcomm"
MACHINE = """
import os, signal

def test_fails():
    assert False

def test_full():
    with open("/dev/full", "w") as full:
        full.write("program")

def test_killed():
    os.kill(os.getpid(), signal.SIGKILL)
"""

CHANGES = {
    "the test": f"{QUALCOMM}/tests/test_qnn_delegate_x86.py",
    "a module beside the tests": f"{QUALCOMM}/tests/__init__.py",
    "executorch's Python": f"{QUALCOMM}/qnn_preprocess.py",
    "an adaptor of executorch": f"{QUALCOMM}/PyQnnManagerAdaptor.so",
    "the emulator": "sdk/lib/x86_64-linux-clang/libQnnHtp.so",
    "another library of QNN": "sdk/lib/x86_64-linux-clang/libQnnSystem.so",
    "the runner": "dist/bin/qnn_executor_runner",
    "a library of the runner": "dist/lib/libexecutorch.so",
    "a module that was absent": "site/torchsr/__init__.py",
}


SAMPLE = {"the test", "the emulator"}


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=name, marks=() if name in SAMPLE else pytest.mark.whole)
        for name, file in CHANGES.items()
    ],
)
def test_a_test_runs_again_when_something_changed(remembered: Suite, file: str) -> None:
    path = remembered.root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write("\n# changed\n")
    remembered.run("-k", "*_abs")
    assert remembered.executed == {"abs"}


def test_a_killed_run_loses_no_verdict(suite: Suite) -> None:
    if not (run := os.fork()):
        try:
            suite.command("-k", "fails or hangs or outputs", "-k", "*_abs", "--jobs", "1", "--accept")
        finally:
            # Whatever happens, this is no second run of all tests.
            os._exit(1)
    _wait_for(suite, "hangs")
    os.kill(run, signal.SIGKILL)
    os.waitpid(run, 0)
    code, report = suite.run("-k", "fails or outputs", "-k", "*_abs", "--accept")
    # The tests run in the order of their names: this one had not begun.
    assert (code, suite.executed) == (0, {"outputs"})
    assert counts(report) == {"passed": 1, "expected_failures": 2, "cached": 2}


def _wait_for(suite: Suite, name: str) -> None:
    deadline = time.monotonic() + 120
    while name not in suite.executed_so_far():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_list_sample_and_shards_choose_and_run_nothing_else(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(*flags: str) -> list[str]:
        assert suite.command("--list", *flags) == 0
        return [line.split()[1] for line in capsys.readouterr().out.splitlines()[:-1]]

    suite.accept({"skips": "not_run"})
    every = listed()
    assert len(every) == 6
    assert sorted(test for i in (1, 2, 3) for test in listed("--shard", f"{i}/3")) == every
    assert len(listed("--sample")) == 1
    assert suite.command("-k", "abs", "-k", "no_such_test", "--list") == 2
    assert not suite.executed_so_far()


def test_what_upstream_has_removed_is_an_error_until_an_update_removes_it_here(suite: Suite) -> None:
    rows: dict[str, Metric] = {
        "gone": {"outcome": "failed"},
        "removed": {"cost": [1, 1]},
        "abs": {"cost": [1, 1]},
    }
    tests: dict[str, Values] = {f"TestOps.test_{name}": {"SM8650": row} for name, row in rows.items()}
    suite.write(accepted_file("delegate", "wheels"), Accepted(Path()).updated(tests).as_text())
    code, report = suite.run("-k", "*_abs")
    removed = dict.fromkeys(("gone", "removed"), ("delegate-gone", Severity.ERROR))
    assert (code, findings(report), suite.executed) == (1, removed, {"abs"})
    assert report.findings[0].fix == "nox -s test_delegate -- --sample --accept"
    code, report = suite.run("-k", "*_abs", "--accept")
    assert (code, findings(report)) == (0, {})
    accepted = load_tests("delegate", "wheels", "SM8650")
    assert {test: row.outcome for test, row in accepted.tests.items()} == {"TestOps.test_abs": "passed"}


def test_what_the_machine_did_is_not_accepted_and_no_verdict(suite: Suite) -> None:
    suite.write(suite.tests / "test_passes.py", MACHINE)
    code, report = suite.run("passes", "--accept", stage="test_upstream")
    accepted = load_tests("passes", "wheels", "SM8650").tests
    assert {test: row.outcome for test, row in accepted.items()} == {"test_fails": "failed"}
    assert (code, findings(report)["full"]) == (3, ("upstream-machine", Severity.ERROR))
    assert findings(report)["killed"] == findings(report)["full"]


def test_a_suite_that_has_lost_all_its_tests_is_an_error_that_nobody_can_accept(suite: Suite) -> None:
    suite.write(suite.tests / "test_passes.py", "")
    rows: dict[str, Values] = {"test_relu": {"SM8650": {"cost": [1, 1]}}}
    suite.write(accepted_file("passes", "wheels"), Accepted(Path()).updated(rows).as_text())
    code, report = suite.run("passes", "--accept", stage="test_upstream")
    assert (code, [(found.rule, found.subject) for found in report.findings]) == (
        1,
        [("upstream-gone", "passes")],
    )
    assert "--accept" not in report.findings[0].fix and load_tests("passes", "wheels", "SM8650").tests


@pytest.mark.parametrize(
    "flags",
    [
        ("--shard", "1/2", "--accept"),
        ("--soc", "SM8650,SM8750"),
    ],
)
def test_usage_errors_run_nothing(suite: Suite, flags: tuple[str, ...]) -> None:
    assert suite.command(*flags) == 2
    assert not suite.executed_so_far()


def test_tests_that_cannot_be_imported_are_an_environment_error(suite: Suite) -> None:
    suite.write(
        suite.package / "executorch/backends/qualcomm/tests/test_qnn_delegate_x86.py", "import nothing"
    )
    assert suite.command() == 3
    assert Report.read(suite.root / "reports" / "test_delegate.json").outcome == "error"


@pytest.mark.whole
def test_a_killed_worker_is_no_verdict_of_its_test(suite: Suite) -> None:
    def kill_worker() -> None:
        _wait_for(suite, "hangs")
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                # It works in the folder of its test.
                if (entry / "cwd").readlink().is_relative_to(suite.logs):
                    os.kill(int(entry.name), signal.SIGKILL)

    threading.Thread(target=kill_worker, daemon=True).start()
    _, report = suite.run("-k", "fails or hangs", "--jobs", "1", "--timeout", "3")
    assert suite.executed_so_far().split() == ["test_fails", *["test_hangs_in_native_code"] * 2]
    assert "no result after 3 s" in next(f.message for f in report.findings if "hangs" in f.subject)


@pytest.mark.whole
def test_an_interrupted_run_says_so_and_keeps_what_it_had(suite: Suite) -> None:
    suite.accept({"fails": "failed"})

    def interrupt_once_it_hangs() -> None:
        _wait_for(suite, "hangs")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt_once_it_hangs, daemon=True).start()
    assert suite.command("-k", "fails or hangs") == 130
    (finding,) = Report.read(suite.root / "reports" / "test_delegate.json").findings
    assert (finding.rule, finding.message) == ("delegate-not-measured", "interrupted")
    suite.run("-k", "fails")
    assert suite.executed == set()
