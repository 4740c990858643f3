"""What became of a piece of work: its facts and files, or how it failed, and the log that says why."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ci.jobs import Line, failed
from ci.plain import Facts
from ci.trouble import MACHINE, Blame, Trouble, of_ending, of_error
from provisioning.base.commands import Fix, joined, session
from provisioning.base.errors import EnvironmentLacking, ToolkitError, UsageError

BY_ITSELF = re.compile(r"ended by SIG(SEGV|ABRT|ILL|FPE|TRAP)\b")


class WorkerDied(Exception):
    """The process of a task ended before it replied, or was ended because no reply came in time."""

    def __init__(
        self,
        kind: Literal["crash", "timeout"],
        how: str,
        *,
        code: int = 0,
        trouble: Trouble | None = None,
    ) -> None:
        super().__init__(f"{kind}: {how}")
        self.kind, self.how, self.code = kind, how, code
        self._trouble = trouble

    def trouble(self, log: Path) -> Trouble | None:
        """What the machine did to it; None if the work is to blame."""
        return self._trouble or of_ending("process", self.code, last_words(log))

    @property
    def is_own_crash(self) -> bool:
        """Whether it crashed by a signal of its own: it would again."""
        return self.kind == "crash" and bool(BY_ITSELF.search(self.how))

    @property
    def as_reply(self) -> dict[str, object]:
        """Of a task of which a part died so: the task has died so."""
        found = self._trouble
        return {"died": self.code, **({"trouble": asdict(found)} if found else {})}

    def sentence(self, log: Path) -> str:
        """How it ended, for a reader who knows nothing of workers, with the last line of its log."""
        if self.kind == "timeout":
            return self.how
        words = last_words(log)
        return f"the process {self.how}" + (f"; its last words: {words[-400:]}" if words else "")

    def explained(self, log: Path) -> tuple[str, str]:
        """The sentence with what is known of its last words, and what to do about them."""
        from ci.diagnose.explain import nearest

        known = nearest(tail(log, 4_000_000))
        return (f"{self.sentence(log)}. {known}", known.fix) if known else (self.sentence(log), "")


class Refused(ToolkitError):
    """The work did not succeed, and its worker says why: a reply with `error` (child.reporting)."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        fix = Fix.read(error["parts"]) if "parts" in error else error["fix"]
        super().__init__(str(error["message"]), fix=fix, exit_code=int(error["exit_code"]))
        self.kind = str(error["kind"])
        self.details = error


def opened_log(log: Path) -> BinaryIO:
    """Raises EnvironmentLacking or UsageError where none can be written."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("wb")
    except OSError as error:
        if trouble := of_error(error):
            raise EnvironmentLacking(trouble.message, fix=trouble.fix) from error
        raise UsageError(
            f"logs cannot be written to {log.parent}: {error.strerror or error}",
            fix="choose another directory",
        ) from error


def last_words(log: Path) -> str:
    """The last line of a process's log that is its own: the rest of faulthandler's text is for readers."""
    lines = tail(log, 20_000).partition("Fatal Python error")[0].strip().splitlines()
    return lines[-1] if lines else ""


def tail(log: Path, characters: int = 200_000) -> str:
    """The end of a log, as text; empty when there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - characters))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Failure:
    """WorkDone without a result; `kind` is the step that failed, and `message` says what happened."""

    kind: str
    message: str
    fix: str = ""
    log: Path | None = None
    blame: Blame = "model"
    exit_code: int = 1
    """Of a command that does this work alone."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the worker said beside these."""

    @classmethod
    def of(cls, trouble: Trouble, log: Path | None = None) -> Failure:
        """What the machine is to blame for."""
        code = EnvironmentLacking.exit_code
        return cls(trouble.kind, trouble.message, trouble.fix, log, "machine", code)

    @property
    def rule(self) -> str:
        """The end of its finding's rule."""
        return MACHINE if self.blame == "machine" else self.kind

    @property
    def of_work(self) -> bool:
        """Whether it says that the same work would fail again, so that a cached pass of it is no longer
        believed. A time-out does not: it depends on the limit."""
        return self.blame != "machine" and self.kind != "timeout"


def failure_of(outcome: WorkerDied | Refused, log: Path) -> Failure:
    """Why a task has no result."""
    if isinstance(outcome, Refused):
        details = outcome.details
        words = outcome.kind, outcome.message, outcome.fix
        return Failure(*words, log, exit_code=outcome.exit_code, details=details)
    if trouble := outcome.trouble(log):
        return Failure.of(trouble, log)
    message, fix = outcome.explained(log)
    if outcome.kind == "timeout":
        return Failure(outcome.kind, message, "give it longer with --timeout", log)
    # What is to be read, such as frames, is in the log.
    return Failure(outcome.kind, message, joined([fix, session("diagnose", log)]), log)


@dataclass(frozen=True, slots=True)
class Result:
    facts: Facts = field(default_factory=dict)
    """As they are cached."""
    folder: Path | None = None
    """Files of the result, or of a failure."""
    failure: Failure | None = None
    cached: bool = False
    asked: tuple[str, ...] = ()
    """The variables that the model's code names, that are set, and that it was not given."""
    record: object = None
    """The facts, as the step reads them; None of a step that reads none."""


def error_follows(failure: Failure) -> Line:
    """Of a command for one model, whose next words are the error."""
    return Line("failed", failure.kind)


def line_of(result: Result) -> Line:
    if result.failure:
        return failed(f"{result.failure.kind}: {result.failure.message}")
    return Line("passed")


VARIES = re.compile(
    r"(?<![\w.])/[\w.+-]+(?:/[\w.+\[\]-]+)*"  # paths
    r"|(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)"  # figures
    r"|(?<=_)\d{9,}"  # names by a hash
    r"|; its last words.*"
)
CODE = re.compile(r"\b(?:err|error|code|status|signal)\W{0,2}$", re.IGNORECASE)
"""Before a figure that is no measurement."""
ONLY_A_TYPE = re.compile(r"(?:[\w .]+: )?[\w.]+:\s*")
WORD = re.compile(r"[\w.:]+")
LENGTH = 160


def first_line(error: str) -> str:
    """The first that says more than the exception's type; empty if there is none."""
    lines = error.strip().splitlines() or [""]
    telling = [line for line in lines if line.strip() and not ONLY_A_TYPE.fullmatch(line)] or lines
    return VARIES.sub(_without_what_varies, telling[0])[:LENGTH]


def _without_what_varies(found: re.Match[str]) -> str:
    return found[0] if CODE.search(found.string[: found.start()]) else "…"


def words_of(reason: str) -> tuple[str, ...]:
    """Equal for equal reasons: a set is printed in another order in each process."""
    return tuple(sorted(WORD.findall(reason)))
