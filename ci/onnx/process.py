"""Workers as seen from the command line and from the stage."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ci.delegate.pool import RECYCLE_AT, Setup, Worker, tail
from ci.scheduler import Job
from provisioning.errors import CheckFailed, EnvironmentLacking, ToolkitError, UsageError

R = TypeVar("R")

NEEDED = ("onnx", "onnxruntime", "onnxruntime_qnn")
TIMEOUT = 900.0


class Crashed(CheckFailed):
    """The worker went away during an order."""


class Refused(ToolkitError):
    """A fault that the worker found; `details` has the problems or the audit where there are any."""

    def __init__(self, fault: Mapping[str, Any]) -> None:
        super().__init__(str(fault["message"]), remedy=str(fault["remedy"]))
        self.exit_code = int(fault["exit_code"])
        self.kind = str(fault["kind"])
        self.details = dict(fault)


class OnnxWorker(Worker):
    """A worker that takes orders of ci/onnx/steps.py."""

    resident: int = 0
    """Bytes it holds after the last order; more than all when it is gone."""

    def order(self, what: str, log: Path, **parameters: Any) -> dict[str, Any]:
        """Raises Refused for a fault that it found and Crashed when it went away."""
        log.parent.mkdir(parents=True, exist_ok=True)
        request = {"do": what, "log": str(log.absolute()), "cwd": str(Path.cwd()), **parameters}
        reply = self._ask(request, self.setup.timeout)
        if reply is None:
            self.resident = RECYCLE_AT + 1
            last = tail(log, 2000).strip().splitlines()[-1:]
            raise Crashed(
                f"{what}: the process of ONNX Runtime {self.end(grace=5)} without an answer"
                + (f"; its last words: {last[0]}" if last else ""),
                remedy=f"python -m ci diagnose {log}",
            )
        self.resident = int(reply["resident"])
        if "fault" in reply:
            raise Refused(reply["fault"])
        return reply


class Slot:
    """A slot of the scheduler: one worker, replaced when an order took it down or it holds too much."""

    def __init__(self, setup: Setup, work: Callable[[Job, OnnxWorker], Any]) -> None:
        self._setup, self._work = setup, work
        self._worker: OnnxWorker | None = None
        self._busy = self._closed = False

    def run(self, job: Job) -> Any:
        self._busy = True
        try:
            if self._worker is None:
                self._worker = started(self._setup)
                if self._closed:
                    self._worker.stop()
            result = self._work(job, self._worker)
            if self._worker.resident > RECYCLE_AT:
                self._worker.end()
                self._worker = None
            return result
        finally:
            self._busy = False

    def close(self) -> None:
        self._closed = True
        if self._worker is not None:
            self._worker.stop()
            if not self._busy:
                self._worker.end()


def setup_of(logs: Path, *, threads: int = 0, timeout: float = TIMEOUT) -> Setup:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    # The provider brings its own QNN libraries; another SDK's must not come first.
    environment.pop("LD_LIBRARY_PATH", None)
    return Setup(environment, logs, timeout, command=("-m", "ci.onnx.worker"))


def started(setup: Setup) -> OnnxWorker:
    require_installed()
    try:
        return OnnxWorker(setup)
    except EnvironmentLacking as error:
        raise EnvironmentLacking(
            error.message.replace("the tests", "onnxruntime and onnxruntime-qnn"), remedy="nox -s test_onnx"
        ) from error
    except PermissionError as error:
        raise UsageError(
            f"cannot write logs to {setup.logs}: {error.strerror}", remedy="choose another directory"
        ) from error


def require_installed() -> None:
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            raise EnvironmentLacking(
                f"{module.replace('_', '-')} is not installed in {sys.executable}",
                remedy="nox -s test_onnx makes .nox/onnx, whose bin/python has it",
            )
