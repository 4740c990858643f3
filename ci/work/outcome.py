"""The outcome of a piece of work: its facts and files (`Result`), or why it has none (`Failure`).

A worker replies with one JSON document. If its process ended without a reply, or if time was up, how it ended
takes the reply's place. `task_outcome` tells these apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from ci.work.jobs import Line, failed_line
from ci.work.logs import last_words, tail
from ci.work.plain import Facts
from ci.work.trouble import (
    Trouble,
    has_computed,
    how_it_ended,
    trouble_of_ending,
    trouble_of_places,
    trouble_of_timeout,
)
from provisioning.base.commands import Fix, join_fixes, session
from provisioning.base.errors import EnvironmentLacking, ToolkitError

__all__ = ["MACHINE", "Failure", "Refused", "Result", "TaskOutcome", "line_of"]

T = TypeVar("T")

Blame = Literal["model", "machine"]
"""Says whose fault a failure is."""

MACHINE = "machine"
"""The rules of findings that blame the machine end with this word, such as `lowering-machine`."""

OVERALL = "the end of the time for all of it"
"""Names the limit in a message if no flag sets it."""


class Refused(ToolkitError):
    """Raised if the work did not succeed and its worker says why: the reply has an `error`
    (child.reporting)."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        fix = Fix.read(error["parts"]) if "parts" in error else error["fix"]
        super().__init__(str(error["message"]), fix=fix, exit_code=int(error["exit_code"]))
        self.kind = str(error["kind"])
        self.details = error


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
        ending = f"the process {how_it_ended(code)}"
        if words:
            ending += f"; its last words: {words[-400:]}"
        message, fix = _explain_log(ending, log)
        # What is to be read, such as frames, is in the log.
        return cls("crash", message, join_fixes([fix, session("diagnose", log)]), log, ending=ending)

    @classmethod
    def late(cls, limit: float, cpu_seconds: float, flag: str, log: Path, idle_seconds: float) -> Failure:
        """Make the failure of work that exceeded its time limit. `flag` sets the limit, if any flag does."""
        if trouble := trouble_of_timeout(limit, cpu_seconds, flag, idle_seconds):
            return cls.of(trouble, log)
        sentence, fix = f"no result after {limit:g} s ({flag or OVERALL})", ""
        if not has_computed(limit, cpu_seconds):
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
