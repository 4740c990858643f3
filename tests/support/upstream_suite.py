"""A small executorch package with a delegate suite of our own, which the real command and worker run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.lanes.upstream.accepted import Outcome, accepted_file
from provisioning.accepted_file import Accepted, Values
from provisioning.base.command_line import main
from provisioning.base.findings import Report, Severity
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
        self.logs = root / "reports" / "delegate"
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
        self.write(accepted_file("delegate", "wheels"), Accepted(Path()).updated(rows).as_text())

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
