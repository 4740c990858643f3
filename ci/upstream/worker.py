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
from ci.upstream.adapters import ADAPTERS, Plain, worst
from ci.upstream.suite import SUITES, Suite

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


OUTCOMES = {"dies": "dies", "wrong": "wrong", "bad_test": "bad_test", "no_kernel": "not_run"}
"""What the worst part of a test makes of it; the other results pass."""


class Recorder:
    """A pytest plugin that keeps the reports of the test that runs, and of the collection."""

    def __init__(self, adapter: Plain) -> None:
        self.adapter = adapter
        self.reports: list[pytest.TestReport] = []
        self.parts: list[dict[str, Any]] = []
        self.collection_errors: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self.parts = self.adapter.parts(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)
        if report.failed:
            sys.stderr.write(f"\n{_subtest(report) or report.nodeid}\n{report.longreprtext}\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collection_errors.append(report.longreprtext)


class Tests:
    """The collected tests of a suite by name, and the way to run one."""

    def __init__(self, suite: Suite) -> None:
        # pytest.main would run all tests; pytest-xdist creates its session in the same way.
        from _pytest.config import _prepareconfig

        adapter = ADAPTERS[suite.adapter]()
        adapter.prepare()
        self._recorder = Recorder(adapter)
        place = suite.place()
        marker = ("-m", suite.marker) if suite.marker else ()
        arguments = [*ARGUMENTS, *marker, f"--rootdir={Path.cwd()}", str(place)]
        config = _prepareconfig(arguments, [self._recorder])
        config._do_configure()
        session = pytest.Session.from_config(config)
        config.hook.pytest_sessionstart(session=session)
        session.perform_collect()
        if self._recorder.collection_errors:
            raise ImportError(self._recorder.collection_errors[0])
        self._items = {
            name: item
            for item in session.items
            if (name := _name(item, place)) and (not suite.classes or name.startswith(suite.classes))
        }

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
        self._recorder.reports, self._recorder.parts = [], []
        item = self._items[name]
        meter = Meter()
        # Without a next item, pytest tears down the class and the module too.
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        figures = meter.read()
        verdict = verdict_of(self._recorder.reports, shims.touched(), self._recorder.parts)
        return {"test": name, **verdict, "parts": self._recorder.parts, **figures}


def _name(item: pytest.Item, place: Path) -> str:
    """Class and function; of a folder's tests the file before them. A slash is no part of a file's name."""
    words = item.nodeid.replace("/", "-").split("::")[1:]
    return ".".join([item.path.stem, *words] if place.is_dir() else words)


def verdict_of(
    reports: list[pytest.TestReport], touched: list[str], parts: list[dict[str, Any]]
) -> dict[str, object]:
    """The outcome and its reason. A test that fails after it used an absent module counts as not run.

    Where parts are told apart, the worst of them decides, as skips of upstream hide bad tests."""
    problems = [{"where": _subtest(each), "what": _error(each)} for each in reports if each.failed]
    expected = [each for each in reports if each.skipped and hasattr(each, "wasxfail")]
    skipped = [each for each in reports if each.skipped and not hasattr(each, "wasxfail")]
    outcome, reason = "passed", ""
    if problems and touched:
        outcome, reason = "not_run", str(shims.NotAvailableHere(touched[0]))
    elif (result := worst(parts)) in OUTCOMES:
        outcome, part = OUTCOMES[result], next(part for part in parts if part["result"] == result)
        reason = part["error"] or (f"{part['sqnr_db']} dB" if result == "wrong" else "")
        if result == "no_kernel":
            reason = f"on the CPU, where ExecuTorch has no kernel of it: {', '.join(part['cpu'])}"
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
    """Collect the tests of a suite and run one of them, so that forks find libraries and caches warm."""
    suite = SUITES[sys.argv[1]]
    warm_up = suite.warm_up
    tempfile.TemporaryDirectory = _KeptDirectory  # type: ignore[misc,assignment]
    shims.install()
    tests = Tests(suite)
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
    serve(int(sys.argv[2]), start, forks=True)
