"""A process that has imported our verbs, and becomes each command that it is sent, in a fork.

Most of a short command's time is Python's start and the import of our own modules, and tests type hundreds.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Set
from functools import cache
from pathlib import Path
from typing import Any

from ci.work.digests import content_of, site_folders
from tests.support import templates

MOST_BYTES = 1 << 17
"""Of a command with its environment."""

LATER = (
    *("ci.lanes.executorch.stage", "ci.lanes.onnx.stage", "ci.lanes.upstream.stage"),
    *("ci.builds.runner_build", "ci.device.bundle", "ci.parity.check"),
    *("ci.inspect.package", "ci.inspect.package", "ci.signing.lpai_sign", "ci.gate.table"),
    *("provisioning.store", "provisioning.validation.context", "ci.gate.supervision"),
    *("ci.one_model.into_suite", "ci.one_model.output", "ci.explain.audit"),
    "ci.lanes.executorch.product",
    *("ci.one_model.output", "ci.report.page"),
    *("provisioning.components", "provisioning.validation.compiler"),
    *("filelock", "jinja2", "rich.console", "rich.table", "tomlkit"),
)
"""What verbs import when they run."""

WORKING = ("executorch", "onnx", "llm", "upstream")
"""Environments of verbs that work on models."""

LATE = "late"

HEAVY = ("torch", "onnx", "onnxruntime", "executorch", "numpy", "transformers")
"""They read variables when they are imported, and start threads."""


def next_command(channel: socket.socket, working: Set[str]) -> dict[str, Any]:
    """Returns in the process that is to become the command, whose output goes where its sender wants it.
    `working` are the verbs that work on models."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, MOST_BYTES, 3)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:
            os._exit(0)
        sent: dict[str, Any] = json.loads(message)
        if sent["words"][:1] and sent["words"][0] in working:
            _look_at_packages()
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    channel.close()
    output, errors, status = descriptors
    if command := os.fork():
        os.close(output)
        os.close(errors)
        _say_how_it_ends(command, status, sent["timeout"])
        os._exit(0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for descriptor in descriptors:
        os.close(descriptor)
    return sent


@cache
def _look_at_packages() -> None:
    """At what is installed in this Python, once for all commands: no test changes it, and each key has it."""
    for folder in site_folders():
        content_of(folder, Path(os.devnull))
    gc.freeze()


def _say_how_it_ends(command: int, status: int, timeout: float) -> None:
    """Its exit code, or that it was ended because it took longer."""
    ended = os.pidfd_open(command)
    in_time = bool(select.select([ended], [], [], timeout)[0])
    if not in_time:
        os.kill(command, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    os.write(status, (str(code) if in_time else LATE).encode())


def main(channel: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    working = set[str]()
    for package in ("ci", "provisioning"):
        verbs = importlib.import_module(f"{package}.__main__").VERBS
        for verb in verbs.values():
            importlib.import_module(verb.module.partition(":")[0])
        working |= {name for name, verb in verbs.items() if verb.environment in WORKING}
        # It runs as __main__.
        del sys.modules[f"{package}.__main__"]
    for module in LATER:
        importlib.import_module(module)
    templates.use_shared()
    heavy = sorted(sys.modules.keys() & set(HEAVY))
    assert not heavy, heavy
    gc.collect()
    gc.freeze()
    sent = next_command(socket.socket(fileno=channel), working)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(sent["environ"])
    time.tzset()
    tempfile.tempdir = None
    os.chdir(sent["cwd"])
    sys.argv = [sent["package"], *sent["words"]]
    runpy.run_module(sent["package"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
