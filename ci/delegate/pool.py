"""Workers as seen from the stage: start one, give it tests, and replace it when a test takes it down."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.scheduler import Job
from provisioning.errors import EnvironmentLacking, ToolkitError
from provisioning.settings import ROOT

START_SECONDS = 300.0
"""For importing torch and executorch on a busy machine."""

RECYCLE_AT = 3 << 30
"""A worker that holds more than this after a test is replaced before the next."""


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


@dataclass(frozen=True, slots=True)
class Setup:
    """What every worker of a run has in common."""

    environment: Mapping[str, str]
    logs: Path
    timeout: float
    keep: bool = False
    python: str = sys.executable
    command: tuple[str, ...] = ("-m", "ci.delegate.worker")
    start_seconds: float = START_SECONDS


@dataclass
class Worker:
    """One process. Not for two threads at once, but for `close`."""

    setup: Setup

    def __post_init__(self) -> None:
        self.setup.logs.mkdir(parents=True, exist_ok=True)
        receive, send = os.pipe()
        log = self.setup.logs / f"worker-{os.getpid()}-{threading.get_ident()}.log"
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [self.setup.python, *self.setup.command, str(send)],
                cwd=ROOT,
                env=dict(self.setup.environment),
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                pass_fds=[send],
                start_new_session=True,
            )
        os.close(send)
        self._receive = receive
        self._pending = b""
        if self._reply(self.setup.start_seconds) is None:
            ended = self.end(grace=5)
            text = log.read_text(encoding="utf-8", errors="replace").strip()
            raise EnvironmentLacking(
                f"the tests cannot be imported ({ended}):\n{text[-2000:]}",
                remedy="run it as `nox -s test_delegate`, which installs what they need",
            )
        log.unlink(missing_ok=True)

    def tests(self) -> dict[str, str]:
        """Every test of the suite with the digest of its source."""
        reply = self._ask({"do": "list"}, self.setup.start_seconds)
        if reply is None:
            raise EnvironmentLacking("the tests could not be listed", remedy="nox -s test_delegate")
        return {str(name): str(digest) for name, digest in reply["tests"]}

    def run(self, test: str) -> tuple[Verdict, int]:
        """The verdict, and how much memory the worker holds now (0: it is gone)."""
        log, scratch = self.setup.logs / f"{test}.log", self.setup.logs / test
        shutil.rmtree(scratch, ignore_errors=True)
        began = time.monotonic()
        request = {"do": "run", "test": test, "log": str(log), "scratch": str(scratch)}
        reply = self._ask(request, self.setup.timeout)
        seconds = round(time.monotonic() - began, 3)
        if reply is None:
            late = seconds >= self.setup.timeout
            ended = self.end(grace=0 if late else 5)
            reason = f"timeout: no result after {self.setup.timeout:g} s" if late else f"crash: {ended}"
            return Verdict(test, "failed", reason, (("", reason),), seconds=seconds, broke=True), 0
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
        if verdict.outcome != "failed" and not self.setup.keep:
            shutil.rmtree(scratch, ignore_errors=True)
        return verdict, int(reply["resident"])

    def end(self, grace: float = 0) -> str:
        """End the process and all it started; returns how it ended.

        One that went away by itself may still be dying when its pipe is closed: `grace` waits for that.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self._receive >= 0:
            os.close(self._receive)
            self._receive = -1
        return f"ended by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"

    def stop(self) -> None:
        """From another thread: end the process, and leave its descriptors to the thread that reads them."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _ask(self, request: dict[str, str], timeout: float) -> dict[str, Any] | None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        return self._reply(timeout)

    def _reply(self, timeout: float) -> dict[str, Any] | None:
        """One line, or None when the worker is gone or says nothing for too long."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._receive], [], [], left)[0]:
                return None
            block = os.read(self._receive, 1 << 16)
            if not block:
                return None
            self._pending += block
        line, _, self._pending = self._pending.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply


class Workers:
    """Where slots get their workers: importing takes seconds, so several begin at once and none is wasted."""

    def __init__(self, setup: Setup, count: int) -> None:
        self.setup = setup
        self._threads = ThreadPoolExecutor(count)
        self._count = count
        self._begun: list[Future[Worker]] = []
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
        self._begun += [self._threads.submit(Worker, self.setup) for _ in range(self._count)]
        return self._begun[0].result().tests()

    def take(self) -> Worker:
        with self._lock:
            begun = self._begun.pop(0) if self._begun else None
        return begun.result() if begun else Worker(self.setup)

    def slot(self) -> WorkerSlot:
        return WorkerSlot(self.take)


class WorkerSlot:
    """A slot of the scheduler: one worker, kept from test to test."""

    def __init__(self, take: Callable[[], Worker]) -> None:
        self._take = take
        self._worker: Worker | None = None
        self._busy = False

    def run(self, job: Job) -> Verdict:
        self._busy = True
        try:
            if self._worker is None:
                self._worker = self._take()
            verdict, resident = self._worker.run(job.name)
            if verdict.broke or resident > RECYCLE_AT:
                self._worker.end()
                self._worker = None
            return verdict
        finally:
            self._busy = False

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            # A thread that waits for its reply sees the worker go, and puts its things away itself.
            if not self._busy:
                self._worker.end()


def tail(log: Path, characters: int = 200_000) -> str:
    """The end of a log, as text; empty when there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - characters))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
