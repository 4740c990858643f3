"""A stage at work: `StageRun` collects its findings and figures, and ends with a report and an exit code.

An error in the middle is put into the report, too (`StageRun.reported`)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from provisioning.base import answer, rendering
from provisioning.base.commands import Fix, session
from provisioning.base.errors import (
    CheckFailed,
    EnvironmentLacking,
    ToolkitError,
    UpstreamError,
    exit_code_of,
)
from provisioning.base.findings import Artifact, Finding, Metric, Outcome, Report, Severity, outcome_of
from provisioning.base.places import Places
from provisioning.base.settings import DEFAULT_TARGET, ROOT, TARGETS, profile_flags
from provisioning.base.units import utc_now

RAN_WITH: dict[str, Metric] = {}
"""What this process ran programs with, by the name of its metric: every report of the process says it."""

RUN = "QNN_CI_RUN"
"""Names the run that a stage is part of: the noxfile and the gate set it where nobody has."""


@dataclass
class StageRun:
    """Collects what a stage finds and times it; `close` writes and shows the report."""

    stage: str
    profile: str
    target: str
    command: str = ""
    """The command of the report; if it is empty, the one that the user typed."""
    findings: list[Finding] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    metrics: dict[str, Metric] = field(default_factory=dict)
    suite_of: dict[str, Path] = field(default_factory=dict)
    """Maps each program to its suite."""
    started: str = field(default_factory=utc_now)
    _clock: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.command = self.command or session(self.stage, *sys.argv[2:])

    def begin(self) -> None:
        """Start the clock again: until now the stage waited for another one."""
        self.started, self._clock = utc_now(), time.monotonic()

    def add(self, rule: str, severity: Severity, subject: str, message: str, fix: str = "") -> None:
        self.findings.append(Finding(rule, severity, subject, message, fix))

    @contextmanager
    def reported(self, reports: Path, rule: str, subject: str = "") -> Iterator[None]:
        """Wrap the work: an error or an interruption becomes a finding in a report that is written.

        `subject` is the stage unless given. Work that ends normally is written by `close`.
        """
        try:
            yield
        except BaseException as error:
            if isinstance(error, ToolkitError):
                error.fix = self._selecting(error.fix)
            trouble = self._trouble_of(error)
            self.add(rule, Severity.ERROR, subject or self.stage, trouble.message, trouble.fix)
            self.finish(Outcome.FAIL if isinstance(error, CheckFailed) else Outcome.ERROR).write(reports)
            raise

    def _trouble_of(self, error: BaseException) -> ToolkitError:
        if isinstance(error, ToolkitError):
            return error
        if isinstance(error, KeyboardInterrupt):
            return ToolkitError("interrupted", fix=self.command)
        return ToolkitError(
            f"{type(error).__name__}: {error}", fix=f"report its output; repeat it with: {self.command}"
        )

    def _selecting(self, fix: str) -> str:
        """The fix for what this stage runs with: its commands would take the defaults."""
        target = self.target.partition(",")[0]
        elsewhere = target in TARGETS and target != DEFAULT_TARGET
        profile = profile_flags(self.profile) if self.profile else []
        flags = profile, ["--target", target] if elsewhere else []
        return fix.selecting(*flags) if isinstance(fix, Fix) and fix.commands else fix

    def finish(
        self, outcome: Outcome | None = None, *, strict: bool = False, provisional: bool = False
    ) -> Report:
        """A provisional report is written in case that none follows: it is in no answer."""
        places = Places.of(self.command, self.suite_of)
        report = Report(
            stage=self.stage,
            profile=self.profile,
            target=self.target,
            outcome=outcome or outcome_of(self.findings, strict=strict),
            started=self.started,
            seconds=round(time.monotonic() - self._clock, 3),
            findings=tuple(
                places.located(replace(finding, fix=self._selecting(finding.fix)))
                for finding in self.findings
            ),
            artifacts=tuple(self.artifacts),
            metrics={**RAN_WITH, **self.metrics},
            command=self.command,
            run=os.environ.get(RUN, ""),
        )
        if not provisional:
            answer.add_report(report)
        return report

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
        (show or rendering.show)(report)
        if lacking:
            return EnvironmentLacking.exit_code
        return exit_code_of(good=report.outcome is Outcome.PASS)


def require_stage(
    program: str, stage: str, flags: Sequence[str], reports: Path, environ: Mapping[str, str], failed: str
) -> None:
    """Run a stage that another one needs the work of. `failed` says in words what is lacking without it: the
    reason, its fix and whether the network was it are as the stage's report has them."""
    import subprocess

    (reports / f"{stage}.json").unlink(missing_ok=True)  # One of an earlier run has other reasons.
    command = [sys.executable, "-m", program, stage, *flags, "--reports", str(reports.absolute())]
    process = subprocess.run(command, cwd=ROOT, env=dict(environ), stdout=subprocess.PIPE, check=False)
    if not process.returncode:
        return
    sys.stderr.write(process.stdout.decode(errors="replace"))
    kind = UpstreamError if process.returncode == UpstreamError.exit_code else EnvironmentLacking
    try:
        findings = Report.read(reports / f"{stage}.json").findings
    except (OSError, ValueError):  # It was killed before it wrote one.
        findings = ()
    for finding in findings:
        if finding.severity is Severity.ERROR:
            raise kind(f"{failed}: {finding.message}", fix=finding.fix)
    raise kind(f"{failed}: exit code {process.returncode} of {stage}, see above", fix=session(stage))
