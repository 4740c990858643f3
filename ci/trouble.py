"""Who is to blame for a failure: the one place that says when it is the machine.

What the machine is to blame for says nothing about the work: it is never cached, forgets nothing that is
cached, is never accepted, and the command that meets nothing worse ends with exit code 3."""

from __future__ import annotations

import errno
import re
import signal
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from provisioning.base.errors import EnvironmentLacking, causes
from provisioning.base.files import OF_MACHINE, disk_error, write_all

Blame = Literal["model", "tool", "machine", "user"]

MACHINE = "machine"
"""The end of the rules of findings that blame the machine: `lowering-machine`."""

Kind = Literal["memory", "disk", "killed", "timeout", "lacking"]

PROBE = 1 << 20
"""A folder that does not take this many bytes is full: native code fails there and names no cause."""

BUSY = 0.5
"""Work that used the processor for this share of its time limit or more was not held up by the machine."""

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
"""What C++ libraries and children print instead of an exception with a number."""

SIGNALS: Mapping[str, tuple[Kind, str, str]] = {
    "SIGKILL": ("killed", ", as the system does when memory runs out", LESS_MEMORY),
    "SIGTERM": ("killed", "", "run it again"),
    "SIGINT": ("killed", "", "run it again"),
    "SIGHUP": ("killed", "", "run it again"),
    "SIGXFSZ": ("disk", ": a file grew beyond the limit of this session", f"{_LIMIT} -f"),
    "SIGXCPU": ("timeout", ": this session's limit of processor time", f"{_LIMIT} -t"),
    "SIGBUS": ("disk", ": a mapped file has no room", f"free space at /dev/shm, or {ELSEWHERE}"),
}
"""Signals that do not come from the program itself."""

_OF_SHELLS = {137: "SIGKILL", 143: "SIGTERM"}


@dataclass(frozen=True, slots=True)
class Trouble:
    kind: Kind
    message: str
    fix: str


class InTrouble(Exception):
    """Ends the work in which the machine is in trouble."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


def of_error(error: BaseException, places: Iterable[Path] = ()) -> Trouble | None:
    """The trouble that an exception, or one that it came from, tells of; None if it blames no machine.

    `places` are the folders that the work wrote to. They tell of an error that does not name its cause."""
    places, known = tuple(places), tuple(causes(error))
    by_kind = next(filter(None, (_of_kind(cause, places) for cause in known)), None)
    by_text = next(filter(None, (of_text(str(cause)) for cause in known)), None)
    if by_kind or (by_text and by_text.kind == "memory"):
        return by_kind or by_text
    # A text does not say which disk.
    return of_places(places) or by_text


def _of_kind(cause: BaseException, places: Iterable[Path]) -> Trouble | None:
    match cause:
        case InTrouble():
            return cause.trouble
        case EnvironmentLacking():
            return Trouble("lacking", cause.message, cause.fix)
        case MemoryError():
            return Trouble("memory", ": ".join(filter(None, ("memory ran out", str(cause)))), LESS_MEMORY)
        case OSError():
            return _of_number(cause, places)
    return None


def _of_number(error: OSError, places: Iterable[Path]) -> Trouble | None:
    if error.errno == errno.ENOMEM:
        return Trouble("memory", f"memory ran out: {error.strerror}", LESS_MEMORY)
    # A file that is not there, or may not be read, is the model's affair.
    if error.errno not in OF_MACHINE:
        return None
    if error.filename is None and (full := of_places(places)):
        return full
    known = disk_error(error, ELSEWHERE)
    return Trouble("disk", known.message, known.fix) if known else None


def of_text(text: str) -> Trouble | None:
    """The trouble that an error's text or a log's last lines tell of."""
    for kind, pattern, fix in TEXTS:
        if match := pattern.search(text):
            begin, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
            line = text[begin : end if end >= 0 else None].strip()
            what = "memory ran out" if kind == "memory" else "a file cannot be written"
            return Trouble(kind, f"{what}: {line[-400:]}", fix)
    return None


def of_ending(process: str, code: int, text: str = "", places: Iterable[Path] = ()) -> Trouble | None:
    """The trouble that a process's exit code (negative: its signal) or `text`, its last words, tells of."""
    if known := SIGNALS.get(_signal(code)):
        kind, words, fix = known
        return Trouble(kind, f"the {process} {how_it_ended(code)}{words}", fix)
    return of_text(text) or of_places(places) if code else None


def of_time(limit: float, used: float, flag: str = "--timeout") -> Trouble | None:
    """The trouble of work that gave no result in its time limit, which `flag` sets; None if it used that time
    itself."""
    if used >= BUSY * limit:
        return None
    message = f"no result after {limit:g} s: it waited, and had the processor for only {used:.1f} s"
    return Trouble("timeout", message, f"run with fewer --jobs, or give it longer with {flag}")


def of_places(places: Iterable[Path]) -> Trouble | None:
    for place in dict.fromkeys(places):
        there = next((folder for folder in (place, *place.parents) if folder.is_dir()), None)
        if there is None:
            continue
        try:
            with tempfile.TemporaryFile(dir=there, buffering=0) as stream:
                write_all(stream.fileno(), b"\0" * PROBE)
        except OSError as error:
            if error.errno in OF_MACHINE and (known := disk_error(error, ELSEWHERE, there)):
                return Trouble("disk", known.message, known.fix)
    return None


def how_it_ended(code: int) -> str:
    """In words that follow the name of the process: `ended with exit code 3`."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {_signal(code)}"


def _signal(code: int) -> str:
    if code >= 0:
        return _OF_SHELLS.get(code, "")
    names = {number.value: number.name for number in signal.Signals}
    return names.get(-code, f"signal {-code}")
