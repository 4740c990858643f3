"""Run a stage as its own process, keep its output in a log and show it; end it if interrupted, and explain
from its log why it died."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from ci.report.collect import report_in
from provisioning.base.commands import Fix
from provisioning.base.errors import (
    INTERNAL,
    INTERRUPTED,
    STOPPED,
    TERMINATED,
    EnvironmentLacking,
    Terminated,
)
from provisioning.base.files import write_all
from provisioning.base.findings import Finding, Outcome, Report, Severity, unwritable
from provisioning.base.foreign import one_line

if TYPE_CHECKING:
    import subprocess

LACKING = EnvironmentLacking.exit_code
WORST_FIRST = (*STOPPED, INTERNAL, 2, LACKING, 4, 1)
"""The exit codes of a failed stage, the most informative first."""

END_SECONDS = 3.0
"""An interrupted stage has this many seconds to end before each stronger signal."""

LINGER = 0.5
"""Reading goes on for this many seconds after a stage has ended: processes that it started may keep its
output open."""

LOGS = "logs"
"""The folder of reports/ with the output of each stage."""

READ = 1 << 20
"""This many bytes at the end of a log are searched for known failures."""

_PARENT_DEATH_SIGNAL = 1
_prctl = ctypes.CDLL(None).prctl

NOX = "nox > "
"""A line that nox itself prints begins with this."""


def log_of(stage: str, reports: Path) -> Path:
    """Return the log file of a stage, after creating its folder."""
    path = reports / LOGS / f"{stage}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def supervise(
    command: Sequence[str], environ: Mapping[str, str], log: Path, *, echo: int | None = None
) -> int:
    """Run a process to its end and return its exit code. Its output goes to the log and to the descriptor
    `echo`. On an interruption, the process is told to end and gets time to clean up."""
    import subprocess

    reading, output = os.pipe()
    # Unbuffered: what a full disk did not take must not fail again when the log is closed.
    with log.open("wb", buffering=0) as stream:
        process = subprocess.Popen(
            command,
            env=dict(environ),
            stdout=output,
            stderr=output,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  it takes no lock
        )
        os.close(output)
        text = _Text(reading, stream, echo)
        thread = threading.Thread(target=text.read, daemon=True)
        thread.start()
        try:
            return process.wait()
        except KeyboardInterrupt as error:
            _end(process)
            return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
        finally:
            text.ends = time.monotonic() + LINGER
            thread.join()


def _end_with_parent() -> None:
    """Make a stage end as if interrupted when the process that started it is killed."""
    _prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)


@dataclass
class _Text:
    """The output of a stage, read until its end or for a while after its process has ended."""

    pipe: int
    log: FileIO
    echo: int | None
    ends: float = float("inf")

    def read(self) -> None:
        while time.monotonic() < self.ends:
            if select.select([self.pipe], [], [], LINGER / 5)[0]:
                block = os.read(self.pipe, 1 << 16)
                if not block:
                    break
                self._keep(block)
        os.close(self.pipe)

    def _keep(self, block: bytes) -> None:
        with suppress(OSError):  # a full disk ends the log, and not the stage
            write_all(self.log.fileno(), block)
        try:
            if self.echo is not None:
                write_all(self.echo, block)
        except OSError:  # our reader left; the stage and its log go on
            self.echo = None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process. First wait, because a terminal interrupts the stage too; then send stronger and stronger
    signals."""
    from subprocess import TimeoutExpired

    for number in (None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            if number is not None:
                process.send_signal(number)
            process.wait(END_SECONDS)
            return
        except TimeoutExpired:
            continue
        except KeyboardInterrupt:
            process.kill()
            process.wait()
            return


def report_of(file: Path, code: int, stand_in: Report, log: Path) -> Report:
    """Return the stage's own report if it agrees with the exit code, else an error; never a pass. `stand_in`
    replaces a missing or unreadable report."""
    try:
        report = report_in(file)
        if code == 0 and report.outcome is Outcome.PASS:
            return report
        if code == INTERNAL and report.outcome is Outcome.ERROR:
            return report
        if code in WORST_FIRST and code != INTERNAL and report.outcome is not Outcome.PASS:
            return report
        problem = f"its report says {report.outcome.value}"
    except (OSError, ValueError) as error:
        problem = "wrote no report" if isinstance(error, FileNotFoundError) else f"its report: {error}"
        report = stand_in
    finding = death(stand_in.stage, code, log, stand_in.command, f", and {problem}")
    return replace(report, outcome=Outcome.ERROR, findings=(*report.findings, finding))


def death(stage: str, code: int, log: Path, command_line: str, problem: str = "") -> Finding:
    """Explain why a stage ended without a report, by its exit code and its log."""
    from ci.diagnose.logs import read
    from ci.work import how_it_ended, tail, trouble_of_ending

    text = tail(log, READ)
    result = read(text)
    causes = result.explanations
    words, fix = last_words(text)
    trouble = trouble_of_ending("stage", code)
    ending = trouble.message if trouble else how_it_ended(code)
    lines = [f"{ending}{problem}", *([f"its last words: {words:.400}"] if words else []), *map(str, causes)]
    if trouble:
        fix = trouble.fix
    elif causes:
        fix = causes[0].fix
    elif not fix:
        lines.append(f"told by {result.told_by}" if result.told_by else "nothing known matches its log")
        fix = Fix("read {}, and collect {}", log, result.collect) if result.told_by else Fix(f"read {log}")
    return Finding(
        "stage-died", Severity.ERROR, stage, "\n".join(lines), Fix("{}; repeat with: {}", fix, command_line)
    )


def last_words(text: str) -> tuple[str, str]:
    """Return the error and fix at the end of a log (see guard.py), or its last line without a fix.

    For a crash in native code, return Python's message and the innermost frame."""
    lines = [line for line in map(one_line, text.splitlines()) if line and not line.startswith(NOX)]
    crash = next((index for index, line in enumerate(lines) if line.startswith("Fatal Python error:")), None)
    if crash is not None:
        frame = next((line for line in lines[crash:] if line.startswith("File ")), "")
        return f"{lines[crash]} {frame}".rstrip(), ""
    if len(lines) > 1 and lines[-2].startswith("error: ") and lines[-1].startswith("try: "):
        return lines[-2].removeprefix("error: "), lines[-1].removeprefix("try: ")
    return (lines[-1] if lines else ""), ""
