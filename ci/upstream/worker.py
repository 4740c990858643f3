"""The process that runs the tests: it imports torch and executorch once and serves one test after another."""

from __future__ import annotations

import gc
import hashlib
import importlib
import inspect
import os
import random
import sys
import tempfile
import traceback
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ci.engine.workers.child import Answer, Meter, forget_torch, serve
from ci.upstream import shims

MODULE = "executorch.backends.qualcomm.tests.test_qnn_delegate_x86"

SEED = 0

COLLECT_AFTER = 500_000
"""New objects before the collector runs within a test. Exporting makes many, and few are garbage; that goes
after each test."""


class Result(unittest.TestResult):
    """Keeps what each test or subtest said, in the order in which it was said."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[dict[str, str]] = []
        self.skips: list[str] = []
        self.unavailable: list[str] = []
        self.subtests = 0
        self.expected_failure = ""
        self.unexpected_success = False

    def _problem(self, test: object, error: Any, where: str = "") -> None:
        kind, value, trace = error
        if issubclass(kind, shims.NotAvailableHere):
            self.unavailable.append(str(value))
            return
        text = "".join(traceback.format_exception(kind, value, trace))
        last = "".join(traceback.format_exception_only(kind, value)).strip()
        sys.stderr.write(f"\n{where or test}\n{text}\n")
        self.problems.append({"where": where, "what": last[:2000]})

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._problem(test, err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._problem(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.subtests += 1
        if err is not None:
            description = getattr(subtest, "_subDescription", lambda: str(subtest))()
            self._problem(subtest, err, description)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.skips.append(reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.expected_failure = "".join(traceback.format_exception_only(err[0], err[1])).strip()[:2000]

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.unexpected_success = True

    def verdict(self, touched: list[str]) -> tuple[str, str]:
        """The outcome and its reason. A test that fails after reaching for an absent module was not run."""
        if self.unavailable or (self.problems and touched):
            reason = self.unavailable[0] if self.unavailable else str(shims.NotAvailableHere(touched[0]))
            return "not_run", reason
        if self.problems:
            first = self.problems[0]
            return "failed", f"{first['where']} {first['what'].splitlines()[-1]}".strip()
        if self.unexpected_success:
            return "failed", "ExecuTorch marks this test as failing, and it passed"
        if self.expected_failure:
            return "expected_failure", self.expected_failure.splitlines()[-1]
        if self.skips:
            return "not_run", self.skips[0]
        return "passed", ""


class _Kept(tempfile.TemporaryDirectory[str]):
    """Leaves its files: the pool removes the whole scratch directory of a test that passed."""

    def cleanup(self) -> None:
        self._finalizer.detach()  # type: ignore[attr-defined]

    def __exit__(self, *args: object) -> None:
        self.cleanup()

    def __del__(self) -> None:
        self.cleanup()


def tests_of(module: types.ModuleType) -> Iterator[unittest.TestCase]:
    def flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
        for item in suite:
            if isinstance(item, unittest.TestSuite):
                yield from flat(item)
            elif isinstance(item, unittest.TestCase):
                yield item

    return flat(unittest.defaultTestLoader.loadTestsFromModule(module))


def name_of(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def source_digest(test: unittest.TestCase) -> str:
    """Of the test's own function; the module around it is part of the suite's digest."""
    method = getattr(type(test), test._testMethodName)
    return hashlib.sha256(inspect.getsource(inspect.unwrap(method)).encode()).hexdigest()


def run_one(test: unittest.TestCase, scratch: Path) -> dict[str, object]:
    """Run one test as in a process of its own: its own directory, and the same random numbers each time."""
    scratch.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(scratch)
    os.chdir(scratch)
    os.environ["QNN_ARTIFACT_DIR"] = str(scratch)
    _seed()
    shims.forget()
    result = Result()
    meter = Meter()
    unittest.TestSuite([test]).run(result)
    figures = meter.read()
    outcome, reason = result.verdict(shims.touched())
    return {
        "test": name_of(test),
        "outcome": outcome,
        "reason": reason,
        "problems": result.problems,
        "subtests": result.subtests,
        **figures,
    }


def start() -> Answer:
    tempfile.TemporaryDirectory = _Kept  # type: ignore[misc,assignment]
    shims.install()
    tests = {name_of(test): test for test in tests_of(importlib.import_module(MODULE))}
    gc.set_threshold(COLLECT_AFTER, 50, 100)

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "list":
            return {"tests": [[name, source_digest(test)] for name, test in tests.items()]}
        reply = run_one(tests[order["test"]], Path(order["scratch"]))
        forget_torch()
        return reply

    return answer


def _seed() -> None:
    """Most tests draw weights and inputs without one, and torch begins each process with another."""
    import torch

    random.seed(SEED)
    importlib.import_module("numpy").random.seed(SEED)
    torch.manual_seed(SEED)


if __name__ == "__main__":
    serve(int(sys.argv[1]), start)
