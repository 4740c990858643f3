"""`test_delegate` on a small suite, by the real command and worker: what is accepted, and what is cached."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.lanes.upstream.accepted import Outcome, accepted_file, load_tests
from ci.work.processes import sharing_templates
from provisioning.accepted_file import Accepted, Values
from provisioning.base.command_line import main
from provisioning.base.findings import Metric, Report, Severity
from tests.support.miniature_executorch import make_sdk
from tests.support.own_manifests import own_accepted_tests

TESTS = """\
import ctypes, os, signal, subprocess, tempfile, time, unittest
from pathlib import Path

import torchvision
from executorch.backends.qualcomm import qnn_preprocess
from executorch.backends.qualcomm.tests.utils import TestQNN

os.environ["QNN_BUILD_FOLDER"]  # before any test, as a suite's own set-up reads it

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "spec").write_text("written while the tests are collected, as executorch does")
    Path(folder, "spec").read_text()


class Values(list):
    def detach(self):
        return self

    float = detach


class TestOps(TestQNN):
    def setUp(self):
        ran = f"{os.environ['QNN_SDK_ROOT']}/../ran/{time.time_ns()}-{self._testMethodName}"
        open(ran, "w").close()

    def test_abs(self):
        self.assertEqual(Path(tempfile.gettempdir()), Path.cwd())
        subprocess.run([os.environ["QNN_EXECUTOR_RUNNER"]], check=True)
        Path("model.pte").touch()

    def test_aborts(self):
        Path(os.environ["QNN_SDK_ROOT"] + "/../read").read_text()
        print("libc++.so.1: cannot open shared object file", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    def test_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "model.pte").touch()
            print("libc++.so.1: cannot open shared object file", flush=True)
            self.assertEqual(1, 2, "numbers differ")

    def test_hangs_in_native_code(self):
        subprocess.Popen(["sleep", "600"])
        ctypes.PyDLL(None).sleep(600)

    def test_outputs(self):
        self._assert_outputs_equal([Values([1.0, 2.0])], [Values([30.0, 40.0])])

    def test_skips(self):
        self.skipTest("needs a device")
"""

SHARED = """\
import unittest


class TestQNN(unittest.TestCase):
    def _assert_outputs_equal(self, computed, expected):
        for ours, theirs in zip(computed, expected):
            self.assertFalse(any(abs(a - b) > 1 for a, b in zip(ours, theirs)))
"""

RUNNER = """\
#!/bin/sh
[ "$1" = --help ] && exec echo "  --metrics_path"
cat "$(dirname "$0")"/../lib/*.so "$QNN_SDK_ROOT"/lib/x86_64-linux-clang/*.so > /dev/null
"""

PREPROCESS = """\
from pathlib import Path

ADAPTOR = Path(__file__).with_name("PyQnnManagerAdaptor.so").read_text()
"""

FILES = {
    "executorch/__init__.py": "",
    "executorch/backends/__init__.py": "",
    "executorch/backends/qualcomm/__init__.py": "",
    "executorch/backends/qualcomm/qnn_preprocess.py": PREPROCESS,
    "executorch/backends/qualcomm/PyQnnManagerAdaptor.so": "",
    "executorch/backends/qualcomm/tests/__init__.py": "",
    "executorch/backends/qualcomm/tests/test_qnn_delegate_x86.py": TESTS,
    "executorch/backends/qualcomm/tests/utils.py": SHARED,
    "torch/__init__.py": "def manual_seed(seed): ...\ndef set_num_threads(count): ...\n",
    "torch/_dynamo.py": "def reset(): ...\n",
    # Other releases than the pinned ones, whose exports the worker makes quicker.
    **{
        f"{name}-0.dist-info/METADATA": f"Name: {name}\nVersion: 0\n"
        for name in ("torch", "torchao", "executorch")
    },
}


class Suite:
    """A small suite of delegate tests, and `test_delegate` on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "site"
        self.tests = self.package / "executorch/backends/qualcomm/tests"
        self.sdk = make_sdk(root / "sdk")
        self.runner = root / "dist" / "bin" / "qnn_executor_runner"
        self.ran = root / "ran"
        """A file for each test that ran. Work that appends to one file is not cached."""
        self.ran.mkdir(parents=True)
        self.write(root / "read", "1")
        for name, text in FILES.items():
            self.write(self.package / name, text)
        self.write(self.package / "torch/__init__.py", "from . import _dynamo\n" + FILES["torch/__init__.py"])
        self.write(self.runner, RUNNER)
        self.runner.chmod(0o755)
        self.write(self.sdk / "lib" / "x86_64-linux-clang" / "libQnnSystem.so", "")
        self.write(self.runner.parent.parent / "lib" / "libexecutorch.so", "")

    def activated(self, monkeypatch: pytest.MonkeyPatch) -> Suite:
        """For the test that this is a fixture of: another may use another one between two that use this."""
        own_accepted_tests(monkeypatch, self.root / "manifests")
        for name in [name for name in sys.modules if name.partition(".")[0] in ("executorch", "torch")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(self.package)
        # Its executorch is that of the environment.
        monkeypatch.setattr(sys, "prefix", str(self.root))
        for name, value in {
            "PYTHONPATH": self.package,
            "QNN_SDK_ROOT": self.sdk,
            "QNN_EXECUTOR_RUNNER": self.runner,
        }.items():
            monkeypatch.setenv(name, str(value))
        return self

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def accept(self, outcomes: Mapping[str, Outcome]) -> None:
        """Expect these outcomes, by names without their class."""
        rows: dict[str, Values] = {
            f"TestOps.test_{name}": {"any": {"outcome": outcome}} for name, outcome in outcomes.items()
        }
        self.write(accepted_file("delegate", "wheels"), Accepted(Path()).updated(rows).to_text())

    def run(self, *flags: str, stage: str = "test_delegate") -> tuple[int, Report]:
        """The exit code and the report; `self.executed` has what ran."""
        self.forget_executed()
        code = self.command(*flags, stage=stage)
        return code, Report.read(self.root / "reports" / f"{stage}.json")

    def command(self, *flags: str, stage: str = "test_delegate") -> int:
        folders = ["--store", str(self.root / "store"), "--reports", str(self.root / "reports")]
        return main("python -m ci", "", {stage: VERBS[stage]}, [stage, *flags, *folders, "--jobs", "1"])

    def forget_executed(self) -> None:
        for path in self.ran.iterdir():
            path.unlink()

    def executed_so_far(self) -> str:
        names = sorted(path.name for path in self.ran.iterdir())
        return "".join(f"{name.partition('-')[2]}\n" for name in names)

    @property
    def executed(self) -> set[str]:
        return {line.removeprefix("test_") for line in self.executed_so_far().split()}


def counts(report: Report) -> dict[str, object]:
    names = ("passed", "failed", "not_run", "expected_failures", "unexpected_passes", "cached")
    return {name: report.metrics[name] for name in names if report.metrics[name]}


def findings(report: Report) -> dict[str, tuple[str, Severity]]:
    """By test, and not that the suite was never measured."""
    found = (finding for finding in report.findings if not finding.rule.endswith("-no-record"))
    return {finding.subject.partition("_")[2]: (finding.rule, finding.severity) for finding in found}


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Suite]:
    # The runs of a test are forks of one process: none changes what it has imported.
    with sharing_templates():
        yield Suite(tmp_path).activated(monkeypatch)


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
import os, pathlib, signal

def test_fails():
    assert False

def test_full():
    with open("/dev/full", "w") as full:
        full.write("program")

def test_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def test_killed_once():
    before = pathlib.Path(os.environ["QNN_SDK_ROOT"], "killed")
    if not before.exists():
        before.touch()
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
    suite.write(accepted_file("delegate", "wheels"), Accepted(Path()).updated(tests).to_text())
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
    outcomes = {test: row.outcome for test, row in accepted.items()}
    assert outcomes == {"test_fails": "failed", "test_killed_once": "passed"}
    assert (code, findings(report)["full"]) == (3, ("upstream-machine", Severity.ERROR))
    assert findings(report)["killed"] == findings(report)["full"]


def test_a_suite_that_has_lost_all_its_tests_is_an_error_that_nobody_can_accept(suite: Suite) -> None:
    suite.write(suite.tests / "test_passes.py", "")
    rows: dict[str, Values] = {"test_relu": {"SM8650": {"cost": [1, 1]}}}
    suite.write(accepted_file("passes", "wheels"), Accepted(Path()).updated(rows).to_text())
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
