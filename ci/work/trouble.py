"""Decide when the machine is to blame that work failed: memory or a disk that is full, a kill from outside, a
process that had no processor. Only this module decides it.

What shows it is an exception, a text that a library printed, how a process ended, or how long it took. Each
of these has a function. A failure of the machine says nothing about the work: it is never cached or accepted,
removes no cached result, and a command that meets nothing worse ends with exit code 3.
"""

from __future__ import annotations

import errno
import re
import signal
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from provisioning.base.errors import EnvironmentLacking, causes
from provisioning.base.files import OF_MACHINE, disk_error, write_all

__all__ = [
    "InTrouble",
    "how_it_ended",
    "trouble_of_ending",
    "trouble_of_error",
    "trouble_of_text",
]

Kind = Literal["memory", "disk", "killed", "timeout", "lacking"]

PROBE = 1 << 20
"""A folder that cannot store this many bytes is full. Native code fails there without naming the cause."""

BUSY = 0.5
"""If work used the processor for at least this share of its time limit, the machine did not hold it up."""
IDLE = 0.9
"""If a whole processor was idle for at least this share of the time limit, the machine did not hold the work
up either."""

ELSEWHERE = "choose another disk with TMPDIR, --store or --reports"
LESS_MEMORY = "run with fewer --jobs, make the model smaller, or give the machine more memory"
_LIMIT = "allow more with ulimit"

TEXTS: tuple[tuple[Kind, re.Pattern[str], str], ...] = (
    (
        "memory",
        re.compile(
            r"\bMemoryError\b|bad[_ ]alloc|out of memory|can(?:'t|not) allocate memory"
            r"|Failed to allocate memory|not enough memory",
            re.IGNORECASE,
        ),
        LESS_MEMORY,
    ),
    ("memory", re.compile("can't start new thread"), f"run with fewer --jobs, or {_LIMIT} -u"),
    (
        "disk",
        re.compile(
            r"No space left on device|Disk quota exceeded|Read-only file system|Input/output error"
            r"|Too many open files|File too large|Failed to write context cache file"
        ),
        f"free some space, or {ELSEWHERE}",
    ),
)
"""C++ libraries and child processes print these texts instead of raising an exception with a number."""

SIGNALS: Mapping[str, tuple[Kind, str, str]] = {
    "SIGKILL": ("killed", ", as the system does when memory runs out", LESS_MEMORY),
    "SIGTERM": ("killed", "", "run it again"),
    "SIGINT": ("killed", "", "run it again"),
    "SIGHUP": ("killed", "", "run it again"),
    "SIGXFSZ": ("disk", ": a file grew beyond the limit of this session", f"{_LIMIT} -f"),
    "SIGXCPU": ("timeout", ": this session's limit of processor time", f"{_LIMIT} -t"),
    "SIGBUS": ("disk", ": a mapped file has no room", f"free space at /dev/shm, or {ELSEWHERE}"),
}
"""These signals do not come from the program itself."""

_OF_SHELLS = {137: "SIGKILL", 143: "SIGTERM"}


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with the machine, and what helps."""

    kind: Kind
    message: str
    fix: str


class InTrouble(Exception):
    """Ends the work if the machine is in trouble."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


def trouble_of_error(error: BaseException, places: Iterable[Path] = ()) -> Trouble | None:
    """Return the trouble that an exception, or one of its causes, shows; None if it does not blame the
    machine.

    `places` are the folders that the work wrote to. They are checked if an error does not name its cause."""
    places, chain = tuple(places), tuple(causes(error))
    for cause in chain:
        if trouble := _trouble_of_cause(cause, places):
            return trouble
    return _trouble_of_texts([str(cause) for cause in chain], places)


def _trouble_of_cause(cause: BaseException, places: Iterable[Path]) -> Trouble | None:
    """Return the trouble that the type of an exception, or its number, shows."""
    match cause:
        case InTrouble():
            return cause.trouble
        case EnvironmentLacking():
            return Trouble("lacking", cause.message, cause.fix)
        case MemoryError():
            return Trouble("memory", ": ".join(filter(None, ("memory ran out", str(cause)))), LESS_MEMORY)
        case OSError():
            return _trouble_of_errno(cause, places)
    return None


def _trouble_of_errno(error: OSError, places: Iterable[Path]) -> Trouble | None:
    if error.errno == errno.ENOMEM:
        return Trouble("memory", f"memory ran out: {error.strerror}", LESS_MEMORY)
    # A file that is not there, or may not be read, is the model's affair.
    if error.errno not in OF_MACHINE:
        return None
    if error.filename is None and (full := trouble_of_places(places)):
        return full
    explanation = disk_error(error, ELSEWHERE)
    return Trouble("disk", explanation.message, explanation.fix) if explanation else None


def _trouble_of_texts(texts: Sequence[str], places: Iterable[Path]) -> Trouble | None:
    """Return the trouble that one of the texts shows, or that of a disk, which texts do not name."""
    trouble = next(filter(None, map(trouble_of_text, texts)), None)
    if trouble and trouble.kind == "memory":
        return trouble
    return trouble_of_places(places) or trouble


def trouble_of_text(text: str) -> Trouble | None:
    """Return the trouble that an error's text or a log's last lines show."""
    for kind, pattern, fix in TEXTS:
        if match := pattern.search(text):
            event = "memory ran out" if kind == "memory" else "a file cannot be written"
            return Trouble(kind, f"{event}: {_line_around(text, match)[-400:]}", fix)
    return None


def _line_around(text: str, match: re.Match[str]) -> str:
    begin, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    return text[begin : end if end >= 0 else None].strip()


def trouble_of_ending(process: str, code: int, text: str = "", places: Iterable[Path] = ()) -> Trouble | None:
    """Return the trouble that a process's exit code (negative: its signal) or `text`, its last words,
    shows."""
    if row := SIGNALS.get(_signal(code)):
        kind, words, fix = row
        return Trouble(kind, f"the {process} {how_it_ended(code)}{words}", fix)
    return _trouble_of_texts([text], places) if code else None


def trouble_of_timeout(
    limit: float, cpu_seconds: float, flag: str = "--timeout", idle_seconds: float = 0.0
) -> Trouble | None:
    """Return the trouble of work that exceeded its time limit; `flag` sets the limit, if any flag does. None
    if the work used that time itself, or waited for something else than the machine.

    `idle_seconds` is how long processors were idle in that time."""
    if has_computed(limit, cpu_seconds) or idle_seconds >= IDLE * limit:
        return None
    message = f"no result after {limit:g} s: it waited, and had the processor for only {cpu_seconds:.1f} s"
    longer = f", or give it longer with {flag}" if flag else ""
    return Trouble("timeout", message, f"run with fewer --jobs{longer}")


def has_computed(limit: float, cpu_seconds: float) -> bool:
    """Whether work that exceeded its time limit used that time itself."""
    return cpu_seconds >= BUSY * limit


def trouble_of_places(places: Iterable[Path]) -> Trouble | None:
    """Try to write into each folder, or into the nearest one above that exists; return the first trouble."""
    for place in dict.fromkeys(places):
        folder = next((folder for folder in (place, *place.parents) if folder.is_dir()), None)
        if folder and (trouble := _trouble_of_writing(folder)):
            return trouble
    return None


def _trouble_of_writing(folder: Path) -> Trouble | None:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as stream:
            write_all(stream.fileno(), b"\0" * PROBE)
    except OSError as error:
        if error.errno in OF_MACHINE and (explanation := disk_error(error, ELSEWHERE, folder)):
            return Trouble("disk", explanation.message, explanation.fix)
    return None


def how_it_ended(code: int) -> str:
    """Describe the end in words that follow the name of the process: `ended with exit code 3`."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {_signal(code)}"


def _signal(code: int) -> str:
    if code >= 0:
        return _OF_SHELLS.get(code, "")
    names = {number.value: number.name for number in signal.Signals}
    return names.get(-code, f"signal {-code}")
