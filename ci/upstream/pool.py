"""The workers that run ExecuTorch's tests: each is given tests, and replaced when one takes it down."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ci.engine.jobs import Job
from ci.engine.workers.parent import Gone, Setup, Worker, WorkerSlot
from provisioning.base.errors import EnvironmentLacking, ToolkitError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one test: passed, failed, not_run or expected_failure (marked so upstream)."""

    test: str
    outcome: str
    reason: str = ""
    problems: tuple[tuple[str, str], ...] = ()
    subtests: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of the worker and of what it started: what the test takes, however busy the machine is."""
    peak: int = 0
    cached: bool = False
    broke: bool = False
    """The worker crashed or was ended; nothing to keep for later."""


def setup_of(environment: Mapping[str, str], logs: Path, timeout: float) -> Setup:
    return Setup(
        command=("-m", "ci.upstream.worker"),
        environment=environment,
        logs=logs,
        timeout=timeout,
        imports="the tests",
        remedy="run it as `nox -s test_delegate`, which installs what they need",
    )


class SuiteWorker(Worker):
    """A worker that knows the suite's tests."""

    def __init__(self, setup: Setup, *, keep: bool = False) -> None:
        super().__init__(setup)
        self._keep = keep

    def tests(self) -> dict[str, str]:
        """Every test of the suite with the digest of its source."""
        try:
            reply = self.ask({"do": "list"}, self.setup.start_seconds)
        except Gone as gone:
            raise EnvironmentLacking(
                f"the tests could not be listed ({gone.how})", remedy=self.setup.remedy
            ) from gone
        return {str(name): str(digest) for name, digest in reply["tests"]}

    def run(self, test: str) -> Verdict:
        log, scratch = self.setup.logs / f"{test}.log", self.setup.logs / test
        shutil.rmtree(scratch, ignore_errors=True)
        began = time.monotonic()
        try:
            reply = self.ask({"do": "run", "test": test, "log": str(log), "scratch": str(scratch)})
        except Gone as gone:
            seconds = round(time.monotonic() - began, 3)
            return Verdict(test, "failed", str(gone), (("", str(gone)),), seconds=seconds, broke=True)
        problems = tuple((str(each["where"]), str(each["what"])) for each in reply["problems"])
        verdict = Verdict(
            test,
            str(reply["outcome"]),
            str(reply["reason"]),
            problems,
            int(reply["subtests"]),
            float(reply["seconds"]),
            float(reply["cpu_seconds"]),
            int(reply["peak"]),
        )
        if verdict.outcome != "failed" and not self._keep:
            shutil.rmtree(scratch, ignore_errors=True)
        return verdict


class Workers:
    """Where slots get their workers: importing takes seconds, so several begin at once and none is wasted."""

    def __init__(self, setup: Setup, count: int, *, keep: bool = False) -> None:
        self.setup = setup
        self._keep = keep
        self._threads = ThreadPoolExecutor(count)
        self._count = count
        self._begun: list[Future[SuiteWorker]] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *raised: object) -> None:
        for future in self._begun:
            if not future.cancel():
                with contextlib.suppress(ToolkitError):
                    future.result().end()
        self._threads.shutdown()

    def tests(self) -> dict[str, str]:
        """Ask one worker which tests there are, while the others import."""
        self._begun += [self._threads.submit(self._start) for _ in range(self._count)]
        return self._begun[0].result().tests()

    def take(self) -> SuiteWorker:
        with self._lock:
            begun = self._begun.pop(0) if self._begun else None
        return begun.result() if begun else self._start()

    def slot(self) -> WorkerSlot[SuiteWorker, Verdict]:
        def work(job: Job, worker: SuiteWorker) -> Verdict:
            return worker.run(job.name)

        return WorkerSlot(self.take, work)

    def _start(self) -> SuiteWorker:
        return SuiteWorker(self.setup, keep=self._keep)
