"""Findings of checks, and the report file that every stage writes.

A `Finding` has a rule, a severity, a subject, a message and a fix. A `Report` has the findings of one stage,
its figures and its files; console, page, JUnit and SARIF are made of it. Its JSON Schema is generated from
these classes."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking, ToolkitError, UsageError
from provisioning.base.files import OF_MACHINE, disk_error, hash_file, replace_text
from provisioning.base.foreign import map_values

SCHEMA: Literal[2] = 2
LARGEST = 1 << 64
"""Nothing that a report has is larger."""
MOST_BYTES = 16 << 20
"""The size limit of a report: another job's may be a stranger's, and reading it takes up to 65 times as much
memory."""

if TYPE_CHECKING:
    Metric: TypeAlias = "int | float | str | bool | list[Metric] | dict[str, Metric] | None"
else:
    # pydantic, which reads reports, follows no recursive alias; JSON has nothing else anyway.
    Metric = Any


class Severity(str, enum.Enum):
    """`error` fails a stage, `warning` fails it under --strict, `note` never does."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Outcome(str, enum.Enum):
    """`fail`: the checked thing is bad. `error`: the check could not be made."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"


_PLACE = re.compile(
    r"(?P<file>(?:[^\s:]*/)?(?:[^\s:/]*\.[A-Za-z_]\w*|BUCK|TARGETS|Dockerfile))"
    r":(?P<line>[1-9][0-9]{0,6})(?::(?P<column>[1-9][0-9]{0,6}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the user's repository, which `file` is relative to."""

    file: str
    line: int = 1
    column: int = 0
    """The column; 0 if only the line is known."""

    @classmethod
    def read(cls, text: str) -> Place | None:
        """Parse FILE:LINE or FILE:LINE:COLUMN."""
        match = _PLACE.fullmatch(text)
        return cls(match["file"], int(match["line"]), int(match["column"] or 0)) if match else None

    def __str__(self) -> str:
        line = f"{self.file}:{self.line}"
        return f"{line}:{self.column}" if self.column else line


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one line of the user's model."""

    file: str
    line: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"in {self.file}:{self.line} write `{self.new}` for `{self.old}`"


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    severity: Severity
    subject: str
    message: str
    fix: str
    place: Place | None = None
    edit: Edit | None = None
    """The change that the fix asks for, where it is one of a single line."""
    command: tuple[str, ...] = ()
    """The command that the fix names, as a list of arguments."""

    def __post_init__(self) -> None:
        if isinstance(self.fix, Fix):
            object.__setattr__(self, "command", self.fix.command)

    @property
    def other_place(self) -> str:
        """The finding's place; empty if the subject says it already."""
        return str(self.place) if self.place and str(self.place) != self.subject else ""


@dataclass(frozen=True, slots=True)
class Artifact:
    kind: str
    path: str
    sha256: str
    size: int

    @classmethod
    def of(cls, kind: str, path: Path) -> Artifact:
        return cls(kind, str(path), hash_file(path), path.stat().st_size)


@dataclass(frozen=True, slots=True)
class Report:
    """One stage's result. Console, JUnit, SARIF and HTML are renderings of it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "strict": True,
        "extra": "forbid",
        "allow_inf_nan": False,
        "json_schema_serialization_defaults_required": True,
    }
    stage: str
    profile: str
    target: str
    outcome: Outcome
    started: str
    seconds: float
    findings: tuple[Finding, ...]
    artifacts: tuple[Artifact, ...]
    metrics: dict[str, Metric]
    command: str
    schema: Literal[2] = SCHEMA
    run: str = ""
    """The same in all reports of one run (QNN_CI_RUN); empty if it is not known."""

    def to_json(self) -> str:
        import json

        return json.dumps(map_values(asdict(self), _finite), indent=2, sort_keys=True, allow_nan=False) + "\n"

    def write(self, directory: Path) -> Path:
        """Replace `<directory>/<stage>.json` atomically."""
        path = directory / f"{self.stage}.json"
        try:
            replace_text(path, self.to_json())
        except OSError as error:
            raise unwritable(path, error) from error
        return path

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read a report. Raises ValueError with the reason for anything that is not one."""
        from pydantic import TypeAdapter, ValidationError

        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"{path}: not a report: more than {MOST_BYTES:,} bytes")
        try:
            report = TypeAdapter(cls).validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            raise ValueError(f"{path}: not a report: {key}: {first['msg']}") from error
        if (number := _absurd_number(asdict(report))) is not None:
            raise ValueError(f"{path}: not a report: the number {str(number)[:20]}")
        return report


def _finite(value: object) -> object:
    """Replace a figure that is no number, or that `read` refuses, by null: the findings say it."""
    is_kept = not isinstance(value, float) or (math.isfinite(value) and abs(value) < LARGEST)
    return value if is_kept else None


def _absurd_number(value: object) -> int | float | None:
    """The first number of a report that nothing measures: one beyond 64 bits."""
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return next((number for number in map(_absurd_number, inner) if number is not None), None)
    return value if isinstance(value, int | float) and not abs(value) < LARGEST else None


def unwritable(path: Path, error: OSError) -> ToolkitError:
    """Return the error for a report, or a file beside it, that cannot be written."""
    message, elsewhere = f"cannot write the report {path}: {error.strerror}", "--reports or QNN_CI_REPORTS"
    if error.errno in OF_MACHINE and (
        trouble := disk_error(error, f"name another disk with {elsewhere}", path)
    ):
        return EnvironmentLacking(message, fix=trouble.fix)
    return UsageError(message, fix=f"name a directory that you may write with {elsewhere}")


def outcome_of(findings: Iterable[Finding], *, strict: bool = False) -> Outcome:
    bad = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    return Outcome.FAIL if any(f.severity in bad for f in findings) else Outcome.PASS


def severity_counts(findings: Iterable[Finding]) -> Mapping[Severity, int]:
    counts = dict.fromkeys(Severity, 0)
    for finding in findings:
        counts[finding.severity] += 1
    return counts
