"""Run a stage as its own process, end it when interrupted, and explain its death from its log."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from provisioning.base.commands import Fix
from provisioning.base.errors import INTERNAL, INTERRUPTED, EnvironmentLacking
from provisioning.base.findings import Finding, Outcome, Report, Severity, unwritable
from provisioning.base.foreign import one_line
from provisioning.base.rendering import plural

if TYPE_CHECKING:
    import subprocess

    from ci.gate.stage_output import StageOutput

LACKING = EnvironmentLacking.exit_code
WORST_FIRST = (INTERRUPTED, INTERNAL, 2, LACKING, 4, 1)
"""The exit codes of a failed stage, the most informative first."""

PATIENCE = 3.0
"""How long an interrupted stage has before each stronger signal, in seconds."""

LOGS = "logs"
"""The folder of reports/ that keeps each stage's output."""

READ = 1 << 20
"""How many bytes at the end of a log are searched for known failures."""

NOX = "nox > "
"""The start of a line that nox itself prints."""


def log_of(stage: str, reports: Path) -> Path:
    """The log file of a stage; its folder is created."""
    path = reports / LOGS / f"{stage}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


class StageProcess(Protocol):
    """A subprocess.Popen, or a fork that behaves as one."""

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


def process_of(
    argv: Sequence[str], environ: Mapping[str, str], output: StageOutput
) -> subprocess.Popen[bytes]:
    import subprocess

    return subprocess.Popen(
        argv,
        env={**environ, **output.environ},
        stdout=output.stdout,
        stderr=output.stderr,
        pass_fds=output.inherited,
    )


def supervise(
    start: Callable[[StageOutput], StageProcess],
    log: Path,
    *,
    shown: bool = True,
    meanwhile: Callable[[], object] = lambda: None,
) -> int:
    """Run a process to its end and return its exit code; what it prints is in the log, and shown on demand.
    On an interruption, end it and give it time to clean up."""
    import os

    from ci.gate.stage_output import shown_and_logged

    with (
        Path(os.devnull).open("wb") as nowhere,
        shown_and_logged(log, start, (1, 2) if shown else (nowhere.fileno(),) * 2) as process,
    ):
        try:
            meanwhile()
            return process.wait()
        except KeyboardInterrupt:
            _end(process)
            return INTERRUPTED


def report_of(file: Path, code: int, stand_in: Report, log: Path, killed: int) -> Report:
    """The stage's own report if it agrees with the exit code, else an error; never a pass.

    `stand_in` replaces a missing or unreadable report. `killed` is how many processes the kernel has killed
    meanwhile for lack of memory."""
    from ci.trouble import how_it_ended

    try:
        report = Report.read(file)
        if code == 0 and report.outcome is Outcome.PASS:
            return report
        if code == INTERNAL and report.outcome is Outcome.ERROR:
            return with_causes(report, log)
        if code in WORST_FIRST and code != INTERNAL and report.outcome is not Outcome.PASS:
            return with_causes(report, log)
        problem = f"its report says {report.outcome.value}"
    except (OSError, ValueError) as error:
        problem = "wrote no report" if isinstance(error, FileNotFoundError) else f"its report: {error}"
        report = stand_in
    finding = death(stand_in.stage, f"{how_it_ended(code)}, and {problem}", log, stand_in.command, killed)
    return replace(report, outcome=Outcome.ERROR, findings=(*report.findings, finding))


def death(stage: str, how: str, log: Path, command_line: str, killed: int) -> Finding:
    """Why a stage ended without a report, by its log and the system."""
    from ci.diagnose.explain import read
    from ci.outcome import tail

    text = tail(log, READ)
    found = read(text)
    known = found.explanations
    words, fix = last_words(text)
    lines = [how, *([f"its last words: {words:.400}"] if words else []), *map(str, known)]
    if killed:
        lines.append(f"the system killed {plural(killed, 'program')} for lack of memory meanwhile")
        fix = "give it more memory, or run with fewer --jobs"
    elif known:
        fix = known[0].fix
    elif not fix:
        lines.append(f"told by {found.told_by}" if found.told_by else "nothing known matches its log")
        fix = Fix("read {}, and collect {}", log, found.collect) if found.told_by else Fix(f"read {log}")
    return Finding(
        "stage-died", Severity.ERROR, stage, "\n".join(lines), Fix("{}; repeat with: {}", fix, command_line)
    )


def last_words(text: str) -> tuple[str, str]:
    """The error and fix at the end of a log (see command_line.py), or its last line without a fix.

    For a crash in native code: Python's message, and the innermost frame."""
    lines = [line for line in map(one_line, text.splitlines()) if line and not line.startswith(NOX)]
    crash = next((n for n, line in enumerate(lines) if line.startswith("Fatal Python error:")), None)
    if crash is not None:
        frame = next((line for line in lines[crash:] if line.startswith("File ")), "")
        return f"{lines[crash]} {frame}".rstrip(), ""
    if len(lines) > 1 and lines[-2].startswith("error: ") and lines[-1].startswith("try: "):
        return lines[-2].removeprefix("error: "), lines[-1].removeprefix("try: ")
    return (lines[-1] if lines else ""), ""


def with_causes(report: Report, log: Path) -> Report:
    """Add a note of the first known failure in the log, unless a finding explains it."""
    from ci.diagnose.explain import nearest
    from ci.outcome import tail

    known = nearest(tail(log, READ))
    if known is None or any(known.cause in finding.message for finding in report.findings):
        return report
    note = Finding("stage-known-failure", Severity.NOTE, report.stage, f"{known.text}\n{known}", known.fix)
    return replace(report, findings=(*report.findings, note))


def memory_kills() -> int:
    """How many processes the kernel has killed for lack of memory; 0 if it does not say."""
    try:
        counters = Path("/proc/vmstat").read_text(encoding="ascii").split()
        return int(counters[counters.index("oom_kill") + 1])
    except (OSError, ValueError):
        return 0


def _end(process: StageProcess) -> None:
    """Wait first, because a terminal interrupts the stage too; then send stronger and stronger signals."""
    from subprocess import TimeoutExpired

    for number in (None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            if number is not None:
                process.send_signal(number)
            process.wait(PATIENCE)
            return
        except TimeoutExpired:
            continue
        except KeyboardInterrupt:
            process.kill()
            process.wait()
            return
