"""Workers as seen from the command line and from the stage."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.engine.workers.parent import Gone, Setup, Worker
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, EnvironmentLacking, ToolkitError

NEEDED = ("onnx", "onnxruntime", "onnxruntime_qnn")
TIMEOUT = 900.0


class Crashed(CheckFailed):
    """The worker went away during an order, or took too long over it; `kind` says which."""

    def __init__(self, kind: str, message: str, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.kind = kind


class Refused(ToolkitError):
    """A fault that the worker found; `details` has the problems or the audit where there are any."""

    def __init__(self, fault: Mapping[str, Any]) -> None:
        super().__init__(str(fault["message"]), remedy=str(fault["remedy"]))
        self.exit_code = int(fault["exit_code"])
        self.kind = str(fault["kind"])
        self.details = dict(fault)


class OnnxWorker(Worker):
    """A worker that takes orders of ci/onnx/steps.py."""

    def order(self, what: str, log: Path, **parameters: Any) -> dict[str, Any]:
        """Raises Refused for a fault that it found and Crashed when it went away."""
        log.parent.mkdir(parents=True, exist_ok=True)
        request = {"do": what, "log": str(log.absolute()), "cwd": str(Path.cwd()), **parameters}
        try:
            reply = self.ask(request)
        except Gone as gone:
            late = "give it longer with --timeout" if gone.kind == "timeout" else ""
            raise Crashed(
                gone.kind, f"{what}: {gone.sentence(log)}", late or session("diagnose", log)
            ) from gone
        if "fault" in reply:
            raise Refused(reply["fault"])
        return reply


def setup_of(logs: Path, *, threads: int = 0, timeout: float = TIMEOUT) -> Setup:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    # The provider brings its own QNN libraries; another SDK's must not come first.
    environment.pop("LD_LIBRARY_PATH", None)
    return Setup(
        command=("-m", "ci.onnx.worker"),
        environment=environment,
        logs=logs,
        timeout=timeout,
        imports="onnxruntime and onnxruntime-qnn",
        remedy="nox -s test_onnx",
    )


def require_installed() -> None:
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            raise EnvironmentLacking(
                f"{module.replace('_', '-')} is not installed in {sys.executable}",
                remedy="nox -s test_onnx makes .nox/onnx, whose bin/python has it",
            )
