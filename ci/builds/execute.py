"""Running a build's commands: all they say in a log, progress as they go, the first error explained."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from ci.builds.cmake import first_error
from ci.builds.plan import Command
from provisioning.base.diagnosis import causes
from provisioning.base.errors import CheckFailed, EnvironmentLacking

_NINJA = re.compile(r"\[(\d+)/(\d+)\] ")
_KILLED = re.compile(
    r"Killed signal terminated program|fatal error: Killed|LLVM ERROR: out of memory|bad_alloc"
)
_FULL = "No space left on device"


class Ticker:
    """One line on a terminal; elsewhere a line for each tenth of the way."""

    def __init__(self, title: str, out: TextIO | None = None) -> None:
        self._title = title
        self._out = out or sys.stderr
        self._live = self._out.isatty()
        self._tenth = -1
        self._total = 0

    def step(self, done: int, total: int) -> None:
        """Smaller totals are those of projects that are built inside this one."""
        if total < self._total:
            return
        self._total = total
        if self._live:
            self._out.write(f"\r\x1b[K{self._title}: {done} of {total}")
        elif total and done * 10 // total != self._tenth:
            self._tenth = done * 10 // total
            self._out.write(f"{self._title}: {done} of {total}\n")
        self._out.flush()

    def end(self, text: str) -> None:
        self._out.write(("\r\x1b[K" if self._live else "") + f"{text}\n")
        self._out.flush()


def execute(command: Command, log: Path, environ: Mapping[str, str], *, jobs: int) -> None:
    """Raises CheckFailed with the first error, or EnvironmentLacking when memory or disk ran out."""
    ticker = Ticker(command.title)
    begun = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", errors="replace") as out:
        out.write(f"$ {command}\n")
        out.flush()
        start = out.tell()
        code = _stream(command, out, environ, ticker)
    ticker.end(f"{command.title}: {'done' if code == 0 else 'failed'} in {time.monotonic() - begun:.1f} s")
    if code != 0:
        with log.open(encoding="utf-8", errors="replace") as written:
            written.seek(start)
            raise fault(command, code, written.read(), log, jobs)


def fault(command: Command, code: int, text: str, log: Path, jobs: int) -> CheckFailed | EnvironmentLacking:
    if _FULL in text:
        return EnvironmentLacking(
            f"{command.title}: the disk is full",
            remedy="free some space, or build elsewhere with --build-dir",
        )
    if _KILLED.search(text):
        return EnvironmentLacking(
            f"{command.title}: a compiler was killed for lack of memory, with {jobs} at once",
            remedy=f"--jobs {max(1, jobs // 2)}",
        )
    error = first_error(text)
    return CheckFailed(
        f"{command.title} failed with exit code {code}:\n{error}{causes(error)}", remedy=f"read {log}"
    )


def _stream(command: Command, out: TextIO, environ: Mapping[str, str], ticker: Ticker) -> int:
    with subprocess.Popen(
        command.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environ),
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                out.write(line)
                if found := _NINJA.match(line):
                    ticker.step(int(found.group(1)), int(found.group(2)))
        except BaseException:
            # CMake would leave Ninja, and Ninja its compilers, at work.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            raise
        return process.wait()
