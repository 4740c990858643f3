"""A stage in a fork of the gate: what stages import, which takes longer than to answer from the cache, is
imported once for all of them."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import io
import os
import runpy
import signal
import sys
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing.context import ForkProcess
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ci.gate.stage_output import StageOutput

OURS = ("ci", "provisioning")


class Fork(ForkProcess):
    """With the words of subprocess.Popen."""

    def wait(self, timeout: float | None = None) -> int:
        self.join(timeout)
        if self.exitcode is None:
            raise TimeoutExpired(self.name, timeout or 0.0)
        return self.exitcode

    def send_signal(self, sig: int) -> None:
        if self.pid and self.exitcode is None:
            os.kill(self.pid, sig)


def import_ahead(modules: Iterable[str]) -> None:
    """What cannot be imported, the stage itself says."""
    for module in modules:
        with suppress(ImportError):
            importlib.import_module(module)
    # A search for garbage would copy these pages in each fork.
    gc.freeze()


def fork_of(program: str, words: Sequence[str], output: StageOutput) -> Fork:
    """As `python -u -X faulthandler -m PROGRAM WORDS` would run. Fork before there are threads."""
    fork = Fork(target=_run, args=[program, words, output], name=words[0])
    fork.start()
    return fork


def _run(program: str, words: Sequence[str], output: StageOutput) -> None:
    for descriptor in output.ours:
        os.close(descriptor)
    for name, number, theirs in (("stdout", 1, output.stdout), ("stderr", 2, output.stderr)):
        os.dup2(theirs, number)
        before = getattr(sys, name)
        raw = io.FileIO(number, "w", closefd=False)
        stream = io.TextIOWrapper(raw, before.encoding, before.errors, write_through=True)
        setattr(sys, name, stream)
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(output.environ)
    forget_files()
    sys.argv = [sys.argv[0], *words]
    # That the gate may have imported it.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    runpy.run_module(program, run_name="__main__", alter_sys=True)


def forget_files() -> None:
    """What the gate has read may have changed since: nothing but its imports stays."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in OURS:
            for value in vars(module).values():
                if clear := getattr(value, "cache_clear", None):
                    clear()
