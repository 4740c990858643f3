"""The outcome of a piece of work: its facts and files, or how it failed, and the log that says why. Only this
module decides when the machine is to blame."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

from ci.work.jobs import Line, failed_line
from ci.work.plain import Facts
from provisioning.base.commands import Fix, join_fixes, session
from provisioning.base.errors import EnvironmentLacking, ToolkitError, UsageError, causes
from provisioning.base.files import OF_MACHINE, disk_error, write_all

__all__ = [
    "MACHINE",
    "Failure",
    "InTrouble",
    "Refused",
    "Result",
    "TaskOutcome",
    "first_line",
    "how_it_ended",
    "line_of",
    "tail",
    "trouble_of_ending",
    "trouble_of_error",
    "trouble_of_text",
    "words_of",
]

T = TypeVar("T")

Blame = Literal["model", "machine"]
"""Says whose fault a failure is. A failure of the machine says nothing about the work: it is never cached or
accepted, removes no cached result, and a command that meets nothing worse ends with exit code 3."""

MACHINE = "machine"
"""The rules of findings that blame the machine end with this word, such as `lowering-machine`."""

Kind = Literal["memory", "disk", "killed", "timeout", "lacking"]

PROBE = 1 << 20
"""A folder that cannot store this many bytes is full. Native code fails there without naming the cause."""

BUSY = 0.5
"""If work used the processor for at least this share of its time limit, the machine did not hold it up."""
IDLE = 0.9
"""If a whole processor was idle for at least this share of the time limit, the machine did not hold the work
up either."""

OVERALL = "the end of the time for all of it"
"""Names the limit in a message if no flag sets it."""

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
    by_kind = next(filter(None, (_trouble_of_cause(cause, places) for cause in chain)), None)
    by_text = next(filter(None, (trouble_of_text(str(cause)) for cause in chain)), None)
    return by_kind or _check_places(by_text, places)


def _check_places(by_text: Trouble | None, places: Iterable[Path]) -> Trouble | None:
    """Return the trouble that a text shows, or that of the disk, which the text does not name."""
    return by_text if by_text and by_text.kind == "memory" else trouble_of_places(places) or by_text


def _trouble_of_cause(cause: BaseException, places: Iterable[Path]) -> Trouble | None:
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


def trouble_of_text(text: str) -> Trouble | None:
    """Return the trouble that an error's text or a log's last lines show."""
    for kind, pattern, fix in TEXTS:
        if match := pattern.search(text):
            begin, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
            line = text[begin : end if end >= 0 else None].strip()
            event = "memory ran out" if kind == "memory" else "a file cannot be written"
            return Trouble(kind, f"{event}: {line[-400:]}", fix)
    return None


def trouble_of_ending(process: str, code: int, text: str = "", places: Iterable[Path] = ()) -> Trouble | None:
    """Return the trouble that a process's exit code (negative: its signal) or `text`, its last words,
    shows."""
    if row := SIGNALS.get(_signal(code)):
        kind, words, fix = row
        return Trouble(kind, f"the {process} {how_it_ended(code)}{words}", fix)
    return _check_places(trouble_of_text(text), places) if code else None


def trouble_of_timeout(
    limit: float, cpu_seconds: float, flag: str = "--timeout", idle_seconds: float = 0.0
) -> Trouble | None:
    """Return the trouble of work that exceeded its time limit; `flag` sets the limit, if any flag does. None
    if the work used that time itself, or waited for something else than the machine.

    `idle_seconds` is how long processors were idle in that time."""
    if cpu_seconds >= BUSY * limit or idle_seconds >= IDLE * limit:
        return None
    message = f"no result after {limit:g} s: it waited, and had the processor for only {cpu_seconds:.1f} s"
    longer = f", or give it longer with {flag}" if flag else ""
    return Trouble("timeout", message, f"run with fewer --jobs{longer}")


def trouble_of_places(places: Iterable[Path]) -> Trouble | None:
    for place in dict.fromkeys(places):
        nearest = next((folder for folder in (place, *place.parents) if folder.is_dir()), None)
        if nearest is None:
            continue
        try:
            with tempfile.TemporaryFile(dir=nearest, buffering=0) as stream:
                write_all(stream.fileno(), b"\0" * PROBE)
        except OSError as error:
            if error.errno in OF_MACHINE and (explanation := disk_error(error, ELSEWHERE, nearest)):
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


class Refused(ToolkitError):
    """Raised if the work did not succeed and its worker says why: the reply has an `error`
    (child.reporting)."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        fix = Fix.read(error["parts"]) if "parts" in error else error["fix"]
        super().__init__(str(error["message"]), fix=fix, exit_code=int(error["exit_code"]))
        self.kind = str(error["kind"])
        self.details = error


def opened_log(log: Path) -> BinaryIO:
    """Open the log for writing. Raises EnvironmentLacking or UsageError if it cannot be written."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("wb")
    except OSError as error:
        if trouble := trouble_of_error(error):
            raise EnvironmentLacking(trouble.message, fix=trouble.fix) from error
        raise UsageError(
            f"logs cannot be written to {log.parent}: {error.strerror or error}",
            fix="choose another directory",
        ) from error


def last_words(log: Path) -> str:
    """The last line of a process's log that the process itself wrote; faulthandler's text after it is left
    out."""
    lines = tail(log, 20_000).partition("Fatal Python error")[0].strip().splitlines()
    return lines[-1] if lines else ""


def tail(log: Path, characters: int = 200_000) -> str:
    """The end of a log as text; empty if there is no log."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - characters))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""


_OWN_CRASH = re.compile(r"the process was ended by SIG(SEGV|ABRT|ILL|FPE|TRAP)\b")


@dataclass(frozen=True, slots=True)
class Failure:
    """Work without a result; `kind` is the step that failed, and `message` says what happened."""

    kind: str
    message: str
    fix: str = ""
    log: Path | None = None
    blame: Blame = "model"
    exit_code: int = 1
    """The exit code of a command that does only this work."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further details from the worker."""
    exported: bool = True
    """Whether the model had a graph before the work failed."""
    ending: str = ""
    """How its process ended before it replied, unless the machine is to blame for that."""

    @classmethod
    def of(cls, trouble: Trouble, log: Path | None = None) -> Failure:
        """Make the failure of work that the machine is to blame for."""
        code = EnvironmentLacking.exit_code
        return cls(trouble.kind, trouble.message, trouble.fix, log, "machine", code)

    @classmethod
    def refused(cls, refused: Refused, log: Path) -> Failure:
        words = refused.kind, refused.message, refused.fix
        return cls(*words, log, exit_code=refused.exit_code, details=refused.details)

    @classmethod
    def from_end(cls, code: int, log: Path, places: Iterable[Path]) -> Failure:
        """Make the failure of work whose process ended before it replied. The message suits a reader who
        knows nothing of workers."""
        words = last_words(log)
        if trouble := trouble_of_places(places) or trouble_of_ending("process", code, words):
            return cls.of(trouble, log)
        ending = f"the process {how_it_ended(code)}" + (f"; its last words: {words[-400:]}" if words else "")
        message, fix = _explain_log(ending, log)
        # What is to be read, such as frames, is in the log.
        return cls("crash", message, join_fixes([fix, session("diagnose", log)]), log, ending=ending)

    @classmethod
    def late(cls, limit: float, cpu_seconds: float, flag: str, log: Path, idle_seconds: float) -> Failure:
        """Make the failure of work that exceeded its time limit. `flag` sets the limit, if any flag does."""
        if trouble := trouble_of_timeout(limit, cpu_seconds, flag, idle_seconds):
            return cls.of(trouble, log)
        sentence, fix = f"no result after {limit:g} s ({flag or OVERALL})", ""
        if cpu_seconds < BUSY * limit:
            sentence += f": it computed for {cpu_seconds:.1f} s, and waited while a processor was free"
            fix = "find what the model's code waits for: an answer, a lock, a server, a sleep"
        message, _ = _explain_log(sentence, log)
        longer = f"give it longer with {flag}" if flag else ""
        return cls("timeout", message, join_fixes([fix, longer], "; or "), log)

    @property
    def rule(self) -> str:
        """The last part of its finding's rule."""
        return MACHINE if self.blame == "machine" else self.kind

    @property
    def is_own_crash(self) -> bool:
        """Whether its process crashed by a signal of its own, so that it would crash again. The last words
        may name the signal of another process."""
        return bool(_OWN_CRASH.match(self.ending))

    @property
    def is_repeatable(self) -> bool:
        """Whether the same work would fail again, so that a cached pass of it is dropped. A time-out does not
        show that: it depends on the limit."""
        return self.blame != "machine" and self.kind != "timeout"


TaskOutcome = dict[str, object] | Failure
"""A task's reply, or why it has none."""


def reply_of(code: int, reply: Path) -> dict[str, Any]:
    """Return the reply that a process wrote, or its exit code under `died` if it failed or wrote none."""
    if code or not reply.is_file():
        return {"died": code}
    document: dict[str, Any] = json.loads(reply.read_text(encoding="utf-8"))
    return document


def task_outcome(document: dict[str, Any], log: Path, places: Iterable[Path]) -> TaskOutcome:
    """Turn the document that a task sent into its outcome. `places` are the folders that it wrote to."""
    if "trouble" in document:
        return Failure.of(Trouble(**document["trouble"]), log)
    if "died" in document:
        return Failure.from_end(document["died"], log, places)
    return Failure.refused(Refused(document["error"]), log) if "error" in document else document


def _explain_log(sentence: str, log: Path) -> tuple[str, str]:
    """Add to the sentence what is known about the last words of a log; also return the fix."""
    from ci.diagnose.logs import nearest

    explanation = nearest(tail(log, 4_000_000))
    return (f"{sentence}. {explanation}", explanation.fix) if explanation else (sentence, "")


@dataclass(frozen=True, slots=True)
class Result:
    facts: Facts = field(default_factory=dict)
    """The facts, as they are cached."""
    folder: Path | None = None
    """The folder with the files of the result, or of a failure."""
    failure: Failure | None = None
    cached: bool = False
    variables: tuple[str, ...] = ()
    """The variables that the model's code names and that are set, but that it did not receive."""
    record: object = None
    """The facts as the step's record; None if the step reads none."""

    def read(self, kind: type[T]) -> T:
        """Return the record; `kind` is the type of the step's replies."""
        assert isinstance(self.record, kind)
        return self.record


def line_of(result: Result) -> Line:
    """The line of a job. For a failure it only shows the kind: the error follows, or is in the report."""
    return failed_line(result.failure.kind) if result.failure else Line("done")


VARIES = re.compile(
    r"(?<![\w.])/[\w.+-]+(?:/[\w.+\[\]-]+)*"  # paths
    r"|(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)"  # figures
    r"|(?<=_)\d{9,}"  # names by a hash
    r"|; its last words.*"
)
CODE = re.compile(r"\b(?:err|error|code|status|signal)\W{0,2}$", re.IGNORECASE)
"""Matches the text before a number that is an error code and no measurement."""
ONLY_A_TYPE = re.compile(r"(?:[\w .]+: )?[\w.]+:\s*")
WORD = re.compile(r"[\w.:]+")
LENGTH = 160


def first_line(error: str) -> str:
    """The first line that says more than the exception's type, without what varies; empty if there is
    none."""
    lines = error.strip().splitlines() or [""]
    sentences = [line for line in lines if line.strip() and not ONLY_A_TYPE.fullmatch(line)] or lines
    return VARIES.sub(_drop_varying, sentences[0])[:LENGTH]


def _drop_varying(match: re.Match[str]) -> str:
    return match[0] if CODE.search(match.string[: match.start()]) else "…"


def words_of(reason: str) -> tuple[str, ...]:
    """The words of a reason in sorted order: two equal reasons may print a set in a different order."""
    return tuple(sorted(WORD.findall(reason)))
