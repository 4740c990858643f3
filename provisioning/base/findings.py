"""Findings of checks, and the report file that every stage writes."""

from __future__ import annotations

import datetime as dt
import enum
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar

from provisioning.base.commands import as_here, typed
from provisioning.base.errors import CheckFailed, EnvironmentLacking, ToolkitError, UsageError
from provisioning.base.files import hash_file, replace_text

SCHEMA = 1

RUN = "QNN_CI_RUN"
"""Names the run that a stage is part of: the noxfile and the gate set it where nobody has."""

T = TypeVar("T")
Metric: TypeAlias = "int | float | str | bool | list[Metric] | dict[str, Metric] | None"


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


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    severity: Severity
    subject: str
    message: str
    remedy: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", as_here(self.message))
        object.__setattr__(self, "remedy", as_here(self.remedy))


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
    schema: int = SCHEMA
    run: str = ""
    """The same in all reports of one run (QNN_CI_RUN); empty if it is not known."""

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    def write(self, directory: Path) -> Path:
        """Replace `<directory>/<stage>.json` atomically."""
        path = directory / f"{self.stage}.json"
        try:
            replace_text(path, self.as_json())
        except OSError as error:
            raise unwritable(path, error) from error
        return path

    @classmethod
    def read(cls, path: Path) -> Report:
        """Raises ValueError with the reason for anything that is not a report."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(data, dict) or data.get("schema") != SCHEMA:
                found = data.get("schema") if isinstance(data, dict) else data
                raise ValueError(f"expected schema {SCHEMA}, found {found!r}")
            data["outcome"] = Outcome(data["outcome"])
            data["findings"] = tuple(
                _typed(Finding, {**finding, "severity": Severity(finding["severity"])})
                for finding in data["findings"]
            )
            data["artifacts"] = tuple(_typed(Artifact, artifact) for artifact in data["artifacts"])
            return _typed(cls, data)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path}: not a report: {what}") from error


def unwritable(path: Path, error: OSError) -> UsageError:
    """The error for a report, or a file beside it, that cannot be written."""
    return UsageError(
        f"cannot write the report {path}: {error.strerror}",
        remedy="name a directory that you may write with --reports or QNN_CI_REPORTS",
    )


def _typed(kind: type[T], data: dict[str, object]) -> T:
    """The dataclass of these values. Their types are checked, because renderings trust them."""
    typed = kind(**data)
    expected = {"seconds": (int, float), "size": (int,), "schema": (int,), "metrics": (dict,)}
    for name, value in data.items():
        if name in ("findings", "artifacts"):
            continue
        types = expected.get(name, (str,))
        if not isinstance(value, types) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}")
    return typed


def outcome_of(findings: Iterable[Finding], *, strict: bool = False) -> Outcome:
    bad = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    return Outcome.FAIL if any(f.severity in bad for f in findings) else Outcome.PASS


@dataclass
class StageRun:
    """Collects what a stage finds and times it; `close` writes and shows the report."""

    stage: str
    profile: str
    target: str
    command: str
    findings: list[Finding] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    metrics: dict[str, Metric] = field(default_factory=dict)
    started: str = field(
        default_factory=lambda: dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    )
    _clock: float = field(default_factory=time.monotonic)

    @classmethod
    def as_typed(cls, stage: str, profile: str, target: str) -> StageRun:
        """For a session, with the arguments that the user typed."""
        return cls(stage, profile, target, typed(f"nox -s {stage} --", sys.argv[2:]))

    def add(self, rule: str, severity: Severity, subject: str, message: str, remedy: str = "") -> None:
        self.findings.append(Finding(rule, severity, subject, message, remedy))

    @contextmanager
    def reported(self, reports: Path, rule: str, subject: str = "") -> Iterator[None]:
        """Wrap the work: an error or an interruption becomes a finding in a report that is written.

        `subject` is the stage unless given. Work that ends normally is written by `close`.
        """
        try:
            yield
        except BaseException as error:
            shown = self._shown(error)
            self.add(rule, Severity.ERROR, subject or self.stage, shown.message, shown.remedy)
            self.finish(Outcome.FAIL if isinstance(error, CheckFailed) else Outcome.ERROR).write(reports)
            raise

    def _shown(self, error: BaseException) -> ToolkitError:
        if isinstance(error, ToolkitError):
            return error
        if isinstance(error, KeyboardInterrupt):
            return ToolkitError("interrupted", remedy=self.command)
        return ToolkitError(
            f"{type(error).__name__}: {error}", remedy=f"report what it printed; repeat with: {self.command}"
        )

    def finish(self, outcome: Outcome | None = None, *, strict: bool = False) -> Report:
        return Report(
            stage=self.stage,
            profile=self.profile,
            target=self.target,
            outcome=outcome or outcome_of(self.findings, strict=strict),
            started=self.started,
            seconds=round(time.monotonic() - self._clock, 3),
            findings=tuple(self.findings),
            artifacts=tuple(self.artifacts),
            metrics=dict(self.metrics),
            command=self.command,
            run=os.environ.get(RUN, ""),
        )

    def close(
        self,
        reports: Path,
        *,
        strict: bool = False,
        show: Callable[[Report], None] | None = None,
        lacking: bool = False,
    ) -> int:
        """Write the report, show it and return the exit code; `show` replaces the terminal's rendering.

        `lacking`: nothing is wrong but what the environment lacks."""
        report = self.finish(Outcome.ERROR if lacking else None, strict=strict)
        report.write(reports)
        from provisioning.base.rendering import terminal

        (show or terminal.show)(report)
        if lacking:
            return EnvironmentLacking.exit_code
        return 0 if report.outcome is Outcome.PASS else 1


def severity_counts(findings: Iterable[Finding]) -> Mapping[Severity, int]:
    counts = dict.fromkeys(Severity, 0)
    for finding in findings:
        counts[finding.severity] += 1
    return counts
