"""The processes that run ExecuTorch's own tests: pytest collects them in one, and each fork runs one.

`Tests` has the collected tests by name. A `Recorder` keeps what pytest reports, and `verdict_of` makes one
outcome of it: what was skipped, absent or compared with a bad figure is no pass."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from ci.lanes.upstream import adapters, shims
from ci.lanes.upstream.suite import (
    Part,
    TestNames,
    TestOrder,
    UpstreamSuite,
    UpstreamVerdict,
    upstream_suites,
)
from ci.models.vision_operators import define_vision_operators
from ci.work import InTrouble, Meter, read, to_json, trouble_of_text

SEED = 0

COLLECT_AFTER = 500_000
"""The garbage collector runs within a test after this many new objects: exporting creates many, and little
garbage."""

ARGUMENTS = (
    *("-c", os.devnull, "--assert=plain", "--tb=native", "--capture=no", "--quiet"),
    *(word for name in ("cacheprovider", "logging", "timeout", "warnings") for word in ("-p", f"no:{name}")),
)
"""These arguments make pytest ignore the folder's configuration, and plugins that rewrite, capture or have
time limits of their own."""


OUTCOMES = {"dies": "dies", "wrong": "wrong", "bad_test": "bad_test", "no_kernel": "not_run"}
"""The worst part of a test decides its outcome so. Other results are decided by the reports."""

TESTS_NOTHING = ("bad_test", "no_kernel")
"""A part with this result raises no error: an error that is raised beside it is a failure of its own."""

NOT_HERE = ("ModuleNotFoundError", "ci.lanes.upstream.shims.NotAvailableHere")
"""A test raises one of these errors if it wants what is not installed here."""

NO_TOOL = (
    (re.compile(r"/x86_64-linux-clang/([\w.-]+): No such file or directory"), "this QNN SDK does not have"),
    (re.compile(r"ExecutableNotFound: failed to execute PosixPath\('([\w.-]+)'\)"), "is not installed"),
)
"""Errors about missing programs match one of these."""

MEMORY_LIMIT = 12 << 30
"""One test may allocate this many bytes. The largest that passes takes a third of it."""


class Recorder:
    """Keeps, as a pytest plugin, the reports of the test that runs, and of the collection."""

    def __init__(self, adapter: adapters.DefaultAdapter) -> None:
        self.adapter = adapter
        self.forget()
        self.collection_errors: list[str] = []

    def forget(self) -> None:
        self.reports: list[pytest.TestReport] = []
        self.comparisons: list[list[adapters.UpstreamComparison]] = []
        self.parts: list[Part] = []
        self.adapter.comparisons = []

    def all_parts(self) -> list[Part]:
        """Return the parts that the adapter knows, else one for each subtest, else one for the test."""
        calls = [
            (report, comparisons)
            for report, comparisons in zip(self.reports, self.comparisons, strict=True)
            if report.when == "call" or not report.passed
        ]
        subtests = [call for call in calls if _subtest(call[0])]
        return self.parts or [part_of_report(*call) for call in subtests or calls]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self.parts = self.adapter.parts(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)
        self.comparisons.append(self.adapter.comparisons)
        self.adapter.comparisons = []
        if report.failed:
            sys.stderr.write(f"\n{_subtest(report) or report.nodeid}\n{report.longreprtext}\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collection_errors.append(report.longreprtext)


class Tests:
    """Holds the collected tests of a suite by name, and runs one."""

    def __init__(self, suite: UpstreamSuite) -> None:
        # pytest.main would run all tests; pytest-xdist creates its session in the same way.
        from _pytest.config import _prepareconfig

        self._models = suite.models
        self._adapter = adapter = _adapter_of(suite)
        adapter.prepare()
        self._recorder = Recorder(adapter)
        place = suite.place()
        arguments = [*ARGUMENTS, *adapter.arguments, f"--rootdir={Path.cwd()}", str(place)]
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
            if (name := _name(item, place))
            and (not suite.classes or name.startswith(suite.classes))
            and adapter.holds(item)
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def run(self, name: str, scratch: Path, *, is_logged: bool = False) -> UpstreamVerdict:
        """Run one test in its own folder and with the same random numbers each time."""
        scratch.mkdir(parents=True, exist_ok=True)
        tempfile.tempdir = str(scratch)
        os.chdir(scratch)
        os.environ["QNN_ARTIFACT_DIR"] = str(scratch)
        _seed()
        shims.forget()
        self._recorder.forget()
        self._adapter.enter(scratch)
        item = self._items[name]
        meter = Meter()
        if reason := self._adapter.skip_reason(item):
            parts = [adapters.part("bad_test", error=reason)]
        else:
            with self._naming_culprits(is_logged):
                # Without a next item, pytest tears down the class and the module too.
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            parts = self._recorder.all_parts()
        costs = meter.read()
        verdict = verdict_of(name, self._recorder.reports, shims.touched_modules(), parts)
        return replace(verdict, seconds=costs.seconds, cpu_seconds=costs.cpu_seconds, peak=costs.peak)

    def _naming_culprits(self, is_logged: bool) -> contextlib.AbstractContextManager[None]:
        if not (is_logged and self._models):
            return contextlib.nullcontext()
        from ci.operators.failing_operators import naming

        return naming()


def _adapter_of(suite: UpstreamSuite) -> adapters.DefaultAdapter:
    module, _, name = suite.adapter.partition(":")
    adapter: type[adapters.DefaultAdapter] = getattr(importlib.import_module(module), name)
    return adapter()


def _name(item: pytest.Item, place: Path) -> str:
    """Name a test by class and function; in a folder's tests the file comes first. A file's name has no
    slash."""
    words = item.nodeid.replace("/", "-").split("::")[1:]
    return ".".join([item.path.stem, *words] if place.is_dir() else words)


def verdict_of(
    test: str, reports: Sequence[pytest.TestReport], touched: Sequence[str], parts: Sequence[Part]
) -> UpstreamVerdict:
    """Return the outcome of a test and its reason. `touched` are absent modules that it used.

    The first of these that applies decides. The parts come before the reports, because upstream's skips hide
    bad tests."""
    problems = tuple((_subtest(report), _error(report)) for report in reports if report.failed)
    ending = (
        _absence(problems, touched)
        or _ending_of_parts(parts, is_failed=bool(problems))
        or _failure(problems)
        or _expected_failure(reports)
        or _skip(reports)
        or Ending("passed")
    )
    return UpstreamVerdict(test, ending.outcome, ending.reason, problems, tuple(parts))


class Ending(NamedTuple):
    """How a test ended, and why."""

    outcome: str
    reason: str = ""


Problems = Sequence[tuple[str, str]]
"""The failed subtests, or the whole test under an empty name, each with its error."""


def _absence(problems: Problems, touched: Sequence[str]) -> Ending | None:
    """The ending of a test that failed because something is not installed here."""
    if not problems:
        return None
    if touched:
        return Ending("absent", touched[0])
    for _, error in problems:
        if error.startswith(NOT_HERE):
            return Ending("absent", error.removeprefix(f"{NOT_HERE[1]}: "))
    for _, error in problems:
        for pattern, why in NO_TOOL:
            if match := pattern.search(error):
                return Ending("absent", f"it starts {match[1]}, which {why}")
    return None


def _ending_of_parts(parts: Sequence[Part], *, is_failed: bool) -> Ending | None:
    """The ending that the worst part decides. None if the reports decide."""
    result = adapters.worst(parts)
    if result not in OUTCOMES or (is_failed and result in TESTS_NOTHING):
        return None
    culprit = next(part for part in parts if part.result == result)
    reason = f"{culprit.name} {culprit.error.strip()}".strip()
    if result == "no_kernel":
        reason = f"on the CPU, where ExecuTorch has no kernel of it: {', '.join(culprit.cpu)}"
    return Ending(OUTCOMES[result], reason)


def _failure(problems: Problems) -> Ending | None:
    if not problems:
        return None
    subtest, error = problems[0]
    reason = f"{subtest} {error.splitlines()[-1]}".strip()
    if reason == "Failed: Unexpected success":
        reason = "ExecuTorch marks this test as failing, and it passed"
    return Ending("failed", reason)


def _expected_failure(reports: Sequence[pytest.TestReport]) -> Ending | None:
    for report in reports:
        if report.skipped and hasattr(report, "wasxfail"):
            return Ending("expected_failure", report.wasxfail or "marked as failing by ExecuTorch")
    return None


def _skip(reports: Sequence[pytest.TestReport]) -> Ending | None:
    for report in reports:
        if report.skipped:
            longrepr = report.longrepr
            reason = longrepr[2] if isinstance(longrepr, tuple) else report.longreprtext
            return Ending("not_run", reason.removeprefix("Skipped: "))
    return None


def part_of_report(report: pytest.TestReport, comparisons: Sequence[adapters.UpstreamComparison]) -> Part:
    """Return a test or subtest as a part: how it ended, and the least figure that it compared."""
    figure = adapters.least_of(
        comparison.figure for comparison in comparisons if comparison.figure is not None
    )
    error = ""
    if report.skipped:
        result = "failed" if hasattr(report, "wasxfail") else "not_run"
    elif report.passed:
        error = adapters.why_unheld(figure)
        result = "bad_test" if error else "passed"
    else:
        result, error = "failed", _error(report).splitlines()[-1]
        if any(comparison.figure is not None and not comparison.agrees for comparison in comparisons):
            result = "wrong"
        elif any(word in report.longreprtext for word in adapters.LOWERING):
            result = "dies"
    return adapters.part(result, figure, name=_subtest(report), error=error)


def _subtest(report: pytest.TestReport) -> str:
    """Return the description of the subtest that this report is about, such as `(i=1)`; else empty."""
    describe = getattr(report, "_sub_test_description", None)
    return str(describe()) if describe else ""


def _error(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = adapters.ADDRESS.sub("0x…", str(crash.message if crash else report.longreprtext).strip())
    return text[:2000] or "failed without a message"


class _KeptDirectory(tempfile.TemporaryDirectory[str]):
    """Keeps its files: the step removes the folder of a test that ended as expected."""

    def cleanup(self) -> None:
        self._finalizer.detach()  # type: ignore[attr-defined]

    def __exit__(self, *args: object) -> None:
        self.cleanup()

    def __del__(self) -> None:
        self.cleanup()


collected: list[Tests] = []
"""This process has collected these tests of its suite; each fork runs one."""


def prepare(suite: str, logs: str) -> None:
    collect(upstream_suites()[suite], logs)


def collect(suite: UpstreamSuite, logs: str) -> None:
    """Collect the tests of a suite and run one of them, so that forks find libraries and caches warm."""
    folder = Path.cwd()
    # Below the logs: some suites write files while they are imported.
    scratch = Path(tempfile.mkdtemp(dir=logs))
    tempfile.tempdir = str(scratch)
    tempfile.TemporaryDirectory = _KeptDirectory  # type: ignore[misc,assignment]
    shims.install()
    shims.refuse_network()
    define_vision_operators()
    import torch

    # A fork can have threads of its own only if this process never had any.
    torch.set_num_threads(1)
    if suite.models:
        importlib.import_module("ci.operators.failing_operators")
    tests = Tests(suite)
    if suite.warm_up in tests:
        tests.run(suite.warm_up, scratch / "warm-up")
        os.chdir(folder)
        # What tracing left in it. The process of a home collects its garbage itself.
        torch._dynamo.reset()
    tempfile.tempdir = None
    shutil.rmtree(scratch)
    gc.set_threshold(COLLECT_AFTER, 50, 100)
    collected.append(tests)


def list_tests(_: Mapping[str, object]) -> dict[str, object]:
    return to_json(TestNames(tuple(collected[0])))


def run_test(request: Mapping[str, object]) -> dict[str, object]:
    """Run the test and return its verdict. Raises InTrouble if the machine is to blame."""
    import torch

    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    order = read(TestOrder, request)
    verdict = collected[0].run(order.test, order.into, is_logged=True)
    # ExecuTorch's suite for all backends catches what a model raises: only its part has the words.
    errors = [*(text for _, text in verdict.problems), *(part.error for part in verdict.parts)]
    if trouble := trouble_of_text("\n".join(errors)):
        raise InTrouble(trouble)
    return to_json(verdict)


def _seed() -> None:
    """Set the seeds: most tests draw without one, and torch starts each process with another."""
    import torch

    random.seed(SEED)
    importlib.import_module("numpy").random.seed(SEED)
    torch.manual_seed(SEED)
