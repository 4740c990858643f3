"""The process that runs upstream tests: pytest collects them once, then runs the one that is named next."""

from __future__ import annotations

import gc
import importlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci.engine.workers.child import Answer, Meter, forget_torch, serve
from ci.upstream import shims

SEED = 0

COLLECT_AFTER = 500_000
"""How many new objects trigger the garbage collector within a test: exporting creates many, and little
garbage.
"""

ARGUMENTS = (
    *("-c", os.devnull, "--assert=plain", "--tb=native", "--capture=no", "--quiet"),
    *(word for name in ("cacheprovider", "logging", "warnings") for word in ("-p", f"no:{name}")),
)
"""Ignore the folder's configuration, and plugins that rewrite or capture."""


class Recorder:
    """A pytest plugin that keeps the reports of the test that runs, and of the collection."""

    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []
        self.collection_errors: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)
        if report.failed:
            sys.stderr.write(f"\n{_subtest(report) or report.nodeid}\n{report.longreprtext}\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collection_errors.append(report.longreprtext)


class Tests:
    """The collected tests of a module by name, and the way to run one."""

    def __init__(self, module: str) -> None:
        # pytest.main would run all tests; pytest-xdist creates its session in the same way.
        from _pytest.config import _prepareconfig

        self._recorder = Recorder()
        config = _prepareconfig([*ARGUMENTS, f"--rootdir={Path.cwd()}", "--pyargs", module], [self._recorder])
        config._do_configure()
        session = pytest.Session.from_config(config)
        config.hook.pytest_sessionstart(session=session)
        session.perform_collect()
        if self._recorder.collection_errors:
            raise ImportError(self._recorder.collection_errors[0])
        self._items = {".".join(item.nodeid.split("::")[1:]): item for item in session.items}

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def run(self, name: str, scratch: Path) -> dict[str, object]:
        """Run one test in its own folder and with the same random numbers each time."""
        scratch.mkdir(parents=True, exist_ok=True)
        tempfile.tempdir = str(scratch)
        os.chdir(scratch)
        os.environ["QNN_ARTIFACT_DIR"] = str(scratch)
        _seed()
        shims.forget()
        self._recorder.reports = []
        item = self._items[name]
        meter = Meter()
        # Without a next item, pytest tears down the class and the module too.
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        figures = meter.read()
        return {"test": name, **verdict_of(self._recorder.reports, shims.touched()), **figures}


def verdict_of(reports: list[pytest.TestReport], touched: list[str]) -> dict[str, object]:
    """The outcome and its reason. A test that fails after it used an absent module counts as not run."""
    problems = [{"where": _subtest(each), "what": _error(each)} for each in reports if each.failed]
    expected = [each for each in reports if each.skipped and hasattr(each, "wasxfail")]
    skipped = [each for each in reports if each.skipped and not hasattr(each, "wasxfail")]
    outcome, reason = "passed", ""
    if problems and touched:
        outcome, reason = "not_run", str(shims.NotAvailableHere(touched[0]))
    elif problems:
        first = problems[0]
        outcome, reason = "failed", f"{first['where']} {first['what'].splitlines()[-1]}".strip()
        if reason == "Failed: Unexpected success":
            reason = "ExecuTorch marks this test as failing, and it passed"
    elif expected:
        outcome, reason = "expected_failure", expected[0].wasxfail or "marked as failing by ExecuTorch"
    elif skipped:
        outcome, reason = "not_run", _skip_reason(skipped[0])
    subtests = sum(bool(_subtest(each)) for each in reports)
    return {"outcome": outcome, "reason": reason, "problems": problems, "subtests": subtests}


def _subtest(report: pytest.TestReport) -> str:
    """The description of the subtest that this report is about, such as `(i=1)`; else empty."""
    describe = getattr(report, "_sub_test_description", None)
    return str(describe()) if describe else ""


def _error(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longreprtext).strip()[:2000] or "failed without a message"


def _skip_reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return reason.removeprefix("Skipped: ")


class _KeptDirectory(tempfile.TemporaryDirectory[str]):
    """Keeps its files: the stage removes the scratch folder of a test that passed."""

    def cleanup(self) -> None:
        self._finalizer.detach()  # type: ignore[attr-defined]

    def __exit__(self, *args: object) -> None:
        self.cleanup()

    def __del__(self) -> None:
        self.cleanup()


def start() -> Answer:
    """Collect the tests of a module and run one of them, so that forks find libraries and caches warm."""
    module, warm_up = sys.argv[1:3]
    tempfile.TemporaryDirectory = _KeptDirectory  # type: ignore[misc,assignment]
    shims.install()
    tests = Tests(module)
    if warm_up in tests:
        scratch, folder = Path(tempfile.mkdtemp()), Path.cwd()
        tests.run(warm_up, scratch)
        os.chdir(folder)
        tempfile.tempdir = None
        shutil.rmtree(scratch)
        forget_torch()
    gc.set_threshold(COLLECT_AFTER, 50, 100)

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "list":
            return {"tests": list(tests)}
        return tests.run(order["test"], Path(order["scratch"]))

    return answer


def _seed() -> None:
    """Set the seeds: most tests draw without one, and torch starts each process with another."""
    import torch

    random.seed(SEED)
    importlib.import_module("numpy").random.seed(SEED)
    torch.manual_seed(SEED)


if __name__ == "__main__":
    serve(int(sys.argv[3]), start, forks=True)
