"""Words and numbers that every rendering shares."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Literal

from provisioning.base.findings import Artifact, Finding, Report, Severity, severity_counts
from provisioning.base.foreign import one_line
from provisioning.base.units import seconds, size

Verdict = Literal["pass", "fail", "error", "did not run", "skipped", "not run"]

NO_MATTER: frozenset[Verdict] = frozenset({"skipped", "not run"})
"""Verdicts of stages that were not to run now."""

DID_NOT_RUN = "report-did-not-run"
"""The finding of a report that stands in for a stage that never ran; a note if the user skipped it."""

NOT_ASKED = "report-not-asked"
"""The finding of a report that stands in for a stage that this run left out."""

EARLIER_RUN = "report-earlier-run"
"""The finding of a report from an earlier run than the newest on the page."""

LOG = "log"
"""The kind of artifact that has a stage's output."""


def verdict(report: Report) -> Verdict:
    for finding in report.findings:
        if finding.rule == DID_NOT_RUN:
            return "skipped" if finding.severity is Severity.NOTE else "did not run"
        if finding.rule == NOT_ASKED:
            return "not run"
    return report.outcome.value


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def counted(report: Report) -> str:
    """`2 errors, 1 warning`; `nothing found` when there is nothing."""
    counts = severity_counts(report.findings)
    return ", ".join(plural(count, kind.value) for kind, count in counts.items() if count) or "nothing found"


def summary_of(report: Report) -> str:
    """The findings in numbers, or the reason why the stage did not look."""
    reasons = [finding.message for finding in report.findings if finding.rule in (DID_NOT_RUN, NOT_ASKED)]
    if reasons:
        return one_line(reasons[0])
    earlier = [finding.message for finding in report.findings if finding.rule == EARLIER_RUN]
    rest = counted(replace(report, findings=tuple(f for f in report.findings if f.rule != EARLIER_RUN)))
    return "; ".join([rest, *map(one_line, earlier)])


def errors_of(reports: Iterable[Report]) -> list[Finding]:
    """All errors in order, each once."""
    errors: dict[Hashable, Finding] = {}
    for report in reports:
        for finding in report.findings:
            if finding.severity is Severity.ERROR and finding.rule != DID_NOT_RUN:
                errors.setdefault(identity(report, finding), finding)
    return list(errors.values())


def identity(report: Report, finding: Finding) -> Hashable:
    """Equal for two reports of one error: of one program, or of one line of the suite's file."""
    if finding.place and finding.subject == report.stage:
        return finding.place, finding.message
    return finding.rule, finding.subject, finding.message


def notable_artifacts(report: Report) -> list[Artifact]:
    """Artifacts worth a row; a stage's log only if the stage did not pass."""
    passed = verdict(report) in {"pass", *NO_MATTER}
    return [artifact for artifact in report.artifacts if not (passed and artifact.kind == LOG)]


def duration(report: Report) -> str:
    return "–" if verdict(report) in {"did not run", *NO_MATTER} else seconds(report.seconds)


def by_severity(findings: Iterable[Finding]) -> dict[Severity, list[Finding]]:
    """Worst first; severities without findings are left out."""
    groups: dict[Severity, list[Finding]] = {severity: [] for severity in Severity}
    for finding in findings:
        groups[finding.severity].append(finding)
    return {severity: group for severity, group in groups.items() if group}


def scalar_metrics(report: Report) -> dict[str, str]:
    """The metrics that fit in a line, in the report's order."""
    shown: dict[str, str] = {}
    for name, value in report.metrics.items():
        if isinstance(value, bool):
            shown[name] = "yes" if value else "no"
        elif isinstance(value, int):
            shown[name] = size(value) if name.endswith("bytes") else f"{value:,}"
        elif isinstance(value, float):
            shown[name] = seconds(value) if name.endswith("seconds") else f"{value:.4g}"
        elif isinstance(value, str):
            shown[name] = one_line(value)
    return shown
