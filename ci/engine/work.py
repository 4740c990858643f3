"""What became of a program's work: its facts and files, or how it failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.engine.progress import Line, failed
from ci.engine.trouble import MACHINE, Blame, Trouble
from provisioning.base.errors import EnvironmentLacking


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


@dataclass(frozen=True, slots=True)
class Result:
    facts: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    """Files of the result, or of a failure."""
    failure: Failure | None = None
    cached: bool = False
    seconds: float = 0.0
    why: str = ""
    """Why the work was done; empty if the result was remembered."""
    not_remembered: str = ""
    """Why the memo did not keep it."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """The variables that the model's code names, that are set, and that it was not given."""


def line_of(result: Result) -> Line:
    if result.failure:
        return failed(f"{result.failure.kind}: {result.failure.message}")
    return Line("passed")
