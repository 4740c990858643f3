"""A stage as a fork of the gate, and its output: shown, kept in a log, with bars by its events on a terminal.

What stages import takes longer than to answer from the cache, so it is imported once for all of them.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import io
import json
import os
import re
import runpy
import select
import shutil
import signal
import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path
from subprocess import TimeoutExpired
from typing import IO, Any, TypeVar

from provisioning.base.progress import CHANNEL, Screen, channel_value, display_for
from provisioning.base.rendering import wants_colour

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


P = TypeVar("P")

LINGER = 0.5
"""How long to read on after a stage has ended: processes that it started may keep its output open."""

LARGEST = 32 << 20
"""A larger log keeps its colours."""

_COLOURS = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


@dataclass(frozen=True, slots=True)
class StageOutput:
    """How to start the stage's process."""

    stdout: int
    stderr: int
    inherited: tuple[int, ...]
    ours: tuple[int, ...]
    """What is read of it: a fork must close them."""
    environ: Mapping[str, str]


@contextmanager
def shown_and_logged(
    log: Path, start: Callable[[StageOutput], P], shown: tuple[int, int] = (1, 2)
) -> Iterator[P]:
    """Start one process with these outputs, before any thread; after the context its log is complete."""
    display = display_for(sys.stderr)
    screen = display if isinstance(display, Screen) else None
    same = os.path.sameopenfile(*shown)
    channels = [_Text(descriptor, screen) for descriptor in shown[: 1 if same else 2]]
    readers: list[_Reader] = [*channels, *([_Events(screen)] if screen else [])]
    environ: dict[str, str] = {}
    if screen:
        environ[CHANNEL] = channel_value(readers[-1].theirs)
    if os.isatty(shown[0]):
        environ["COLUMNS"] = os.environ.get("COLUMNS") or str(shutil.get_terminal_size().columns)
        if wants_colour(sys.stdout):
            environ["FORCE_COLOR"] = "1"
    ended, end = os.pipe()
    with log.open("wb") as stream:
        copying = threading.Thread(target=_copy, args=[readers, stream, ended], daemon=True)
        inherited = tuple(reader.theirs for reader in readers[len(channels) :])
        ours = (*(reader.ours for reader in readers), end)
        output = StageOutput(channels[0].theirs, channels[-1].theirs, inherited, ours, environ)
        try:
            process = start(output)
            copying.start()
            yield process
        finally:
            for reader in readers:
                os.close(reader.theirs)
            os.close(end)
            if copying.is_alive():
                copying.join()
            os.close(ended)
            if screen:
                screen.clear()
    if "FORCE_COLOR" in environ and log.stat().st_size <= LARGEST:
        log.write_bytes(_COLOURS.sub(b"", log.read_bytes()))


class _Reader(ABC):
    """One pipe: `theirs` is the stage's end, `ours` is read."""

    def __init__(self) -> None:
        self.ours, self.theirs = os.pipe()
        self.rest = b""
        """The start of a line that is not complete yet."""

    def lines(self, block: bytes) -> list[bytes]:
        *lines, self.rest = (self.rest + block).split(b"\n")
        return lines

    @abstractmethod
    def take(self, block: bytes, log: IO[bytes]) -> None: ...

    def finish(self) -> None:
        """Drop an incomplete event."""
        self.rest = b""


class _Text(_Reader):
    """The stage's standard output or standard error."""

    def __init__(self, shown: int, screen: Screen | None) -> None:
        super().__init__()
        self.shown: int | None = shown
        self.screen = screen if os.isatty(shown) else None

    def take(self, block: bytes, log: IO[bytes]) -> None:
        with suppress(OSError):  # a full disk ends the log, and not the stage
            log.write(block)
            log.flush()
        if self.screen and self.screen.drawing:
            for line in self.lines(block):
                self.screen.print(line.decode("utf-8", "replace"))
        else:
            self.show(self.rest + block)
            self.rest = b""

    def finish(self) -> None:
        if self.screen and self.screen.drawing and self.rest:
            self.screen.print(self.rest.decode("utf-8", "replace"))
        else:
            self.show(self.rest)

    def show(self, block: bytes) -> None:
        view = memoryview(block)
        while view and self.shown is not None:
            try:
                view = view[os.write(self.shown, view) :]
            except BlockingIOError:
                select.select([], [self.shown], [])
            except OSError:  # our reader left; the stage and its log go on
                self.shown = None


class _Events(_Reader):
    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self.screen = screen

    def take(self, block: bytes, log: IO[bytes]) -> None:
        for line in self.lines(block):
            event: dict[str, Any] = json.loads(line)
            if "log" in event:
                with suppress(OSError):
                    log.write(f"{event['log']}\n".encode())
                    log.flush()
            elif "remove" in event:
                self.screen.remove(event["remove"])
            else:
                self.screen.bar(**event)


def _copy(readers: list[_Reader], log: IO[bytes], ended: int) -> None:
    waiting = {reader.ours: reader for reader in readers}
    watched, deadline = [ended], float("inf")
    while waiting and (rest := deadline - time.monotonic()) > 0:
        ready = select.select([*waiting, *watched], [], [], None if watched else rest)[0]
        if ended in ready:
            watched, deadline = [], time.monotonic() + LINGER
        for descriptor in ready:
            if descriptor == ended:
                continue
            if block := os.read(descriptor, 1 << 16):
                waiting[descriptor].take(block, log)
            else:
                del waiting[descriptor]
    for reader in readers:
        reader.finish()
        os.close(reader.ours)
