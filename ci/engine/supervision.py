"""A stage as a process of its own: run, listened to, ended, and explained by its log when it died."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci.engine.stage_output import shown_and_logged
from ci.engine.workers.parent import tail
from provisioning.base.diagnosis import explain
from provisioning.base.errors import INTERNAL, INTERRUPTED, EnvironmentLacking
from provisioning.base.findings import Finding, Outcome, Report, Severity, unwritable
from provisioning.base.rendering.text import one_line, plural

LACKING = EnvironmentLacking.exit_code
WORST_FIRST = (INTERRUPTED, INTERNAL, 2, LACKING, 4, 1)
"""The exit codes of a stage that did not pass, the most telling one first."""

PATIENCE = 3.0
"""Seconds that an interrupted stage has before it is told again, and louder."""

LOGS = "logs"
"""The folder of reports/ that keeps what each stage printed."""

READ = 1 << 20
"""As much of the end of a log is looked through for known failures."""

NOX = "nox > "
"""Begins what nox itself says, around what its session does."""

TOLD = 3
"""Known failures told of one stage; the first is nearest to the cause."""


def log_of(stage: str, reports: Path) -> Path:
    """Where the stage's output is kept; the folder is made."""
    path = reports / LOGS / f"{stage}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def supervise(argv: Sequence[str], environ: Mapping[str, str], log: Path) -> int:
    """Run a process to its end and return its exit code; on an interruption end it, with time to tidy up."""
    with shown_and_logged(log) as output:
        process = subprocess.Popen(
            argv,
            env={**environ, **output.environ},
            stdout=output.stdout,
            stderr=output.stderr,
            pass_fds=output.inherited,
        )
        try:
            return process.wait()
        except KeyboardInterrupt:
            _end(process)
            return INTERRUPTED


def report_of(file: Path, code: int, stand_in: Report, log: Path, killed: int) -> Report:
    """The stage's own report if it wrote one that agrees with its exit code; never a pass otherwise.

    `stand_in` takes the place of one that is not there or cannot be read; `killed` is how many programs the
    kernel ended meanwhile for lack of memory.
    """
    try:
        report = Report.read(file)
        if code == 0 and report.outcome is Outcome.PASS:
            return report
        if code == INTERNAL and report.outcome is Outcome.ERROR:
            return with_causes(report, log)
        if code in WORST_FIRST and code != INTERNAL and report.outcome is not Outcome.PASS:
            return with_causes(report, log)
        fault = f"its report says {report.outcome.value}"
    except (OSError, ValueError) as error:
        fault = "wrote no report" if isinstance(error, FileNotFoundError) else f"its report: {error}"
        report = stand_in
    finding = death(stand_in.stage, f"{how_it_ended(code)}, and {fault}", log, stand_in.command, killed)
    return replace(report, outcome=Outcome.ERROR, findings=(*report.findings, finding))


def how_it_ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def death(stage: str, how: str, log: Path, command_line: str, killed: int) -> Finding:
    """What is known of a stage that ended without a report, from its log and from the system."""
    text = tail(log, READ)
    known = explain(text)[:TOLD]
    words, mend = last_words(text)
    says = [how, *([f"its last words: {words:.400}"] if words else []), *map(str, known)]
    if killed:
        says.append(f"the system killed {plural(killed, 'program')} for lack of memory meanwhile")
        mend = "give it more memory, or run with fewer --jobs"
    elif known:
        mend = known[0].fix
    elif not mend:
        says.append("nothing known matches its log")
        mend = f"read {log}"
    return Finding(
        "stage.died", Severity.ERROR, stage, "\n".join(says), f"{mend}; repeat with: {command_line}"
    )


def last_words(text: str) -> tuple[str, str]:
    """The error and the remedy that end a log (see command_line.py), or its last line and no remedy.

    Of a crash in native code it is what Python says of it, and the frame that it names first.
    """
    lines = [line for line in map(one_line, text.splitlines()) if line and not line.startswith(NOX)]
    crash = next((n for n, line in enumerate(lines) if line.startswith("Fatal Python error:")), None)
    if crash is not None:
        frame = next((line for line in lines[crash:] if line.startswith("File ")), "")
        return f"{lines[crash]} {frame}".rstrip(), ""
    if len(lines) > 1 and lines[-2].startswith("error: ") and lines[-1].startswith("try: "):
        return lines[-2].removeprefix("error: "), lines[-1].removeprefix("try: ")
    return (lines[-1] if lines else ""), ""


def with_causes(report: Report, log: Path) -> Report:
    """With a note of each known failure that its log shows and its findings do not explain."""
    said = "\n".join(finding.message for finding in report.findings)
    new = [each for each in explain(tail(log, READ)) if each.cause not in said]
    notes = [
        Finding("stage.known-failure", Severity.NOTE, report.stage, f"{each.text}\n{each}", each.fix)
        for each in new[:TOLD]
    ]
    return replace(report, findings=(*report.findings, *notes))


def memory_kills() -> int:
    """How many processes the kernel has ended for lack of memory; 0 where it does not say."""
    try:
        counters = Path("/proc/vmstat").read_text(encoding="ascii").split()
        return int(counters[counters.index("oom_kill") + 1])
    except (OSError, ValueError):
        return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """A terminal has interrupted the stage as well; if it was only us, tell it, and insist."""
    for number in (None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            if number is not None:
                process.send_signal(number)
            process.wait(PATIENCE)
            return
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            process.kill()
            process.wait()
            return
