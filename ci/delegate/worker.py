"""The process that runs the tests: it imports torch and executorch once and serves one test after another.

Requests come as JSON lines on stdin, replies go as JSON lines to the descriptor given as the argument; what
the tests, their libraries and the runner print goes to the log of the test at hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import hashlib
import importlib
import inspect
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from ci import shims

MODULE = "executorch.backends.qualcomm.tests.test_qnn_delegate_x86"

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


def run_one(test: unittest.TestCase, scratch: Path, seed: int) -> dict[str, object]:
    """Run one test as in a process of its own: its own directory, and the seeds of a new process."""
    scratch.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(scratch)
    os.chdir(scratch)
    os.environ["QNN_ARTIFACT_DIR"] = str(scratch)
    _seed(seed)
    shims.forget()
    result = Result()
    _reset_peak()
    began, cpu = time.monotonic(), _cpu_seconds()
    unittest.TestSuite([test]).run(result)
    seconds, cpu = time.monotonic() - began, _cpu_seconds() - cpu
    outcome, reason = result.verdict(shims.touched())
    return {
        "test": name_of(test),
        "outcome": outcome,
        "reason": reason,
        "problems": result.problems,
        "subtests": result.subtests,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu, 3),
        "peak": _status("VmHWM"),
    }


def serve(module: types.ModuleType, replies: TextIO) -> None:
    import torch

    # The seed with which every process of torch begins, and so every test here.
    seed = torch.initial_seed()
    tests = {name_of(test): test for test in tests_of(module)}
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "list":
            rows = [[name, source_digest(test)] for name, test in tests.items()]
            _reply(replies, {"tests": rows})
            continue
        with _output_to(Path(request["log"])):
            reply = run_one(tests[request["test"]], Path(request["scratch"]), seed)
        _forget_caches()
        reply["resident"] = _status("VmRSS")
        _reply(replies, reply)


def main(descriptor: int) -> None:
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    faulthandler.enable()
    replies = os.fdopen(descriptor, "w", encoding="utf-8")
    tempfile.TemporaryDirectory = _Kept  # type: ignore[misc,assignment]
    began = time.monotonic()
    absent = shims.install()
    module = importlib.import_module(MODULE)
    # What the imports left is never garbage: keep every later collection from walking it.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 50, 100)
    _reply(replies, {"absent": absent, "seconds": round(time.monotonic() - began, 3)})
    with contextlib.suppress(KeyboardInterrupt):
        serve(module, replies)


def _end_with(parent: int) -> None:
    """The stage may be killed and unable to say so; neither a worker nor its runner outlives it."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def _reply(replies: TextIO, message: dict[str, object]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Also what C and C++ code and child processes print."""
    log.parent.mkdir(parents=True, exist_ok=True)
    saved = [os.dup(1), os.dup(2)]
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    _flush()
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        _flush()
        for number, old in zip((1, 2), saved, strict=True):
            os.dup2(old, number)
            os.close(old)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)


def _seed(first: int) -> None:
    import torch

    random.seed(0)
    importlib.import_module("numpy").random.seed(0)
    torch.manual_seed(first)


def _forget_caches() -> None:
    import torch

    torch._dynamo.reset()
    gc.collect()


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    main(int(sys.argv[1]))
