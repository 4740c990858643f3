"""Workflow commands of GitHub Actions: annotations and folds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from provisioning.base.findings import Finding, Report, Severity
from provisioning.base.foreign import one_line, visible
from provisioning.base.rendering.text import identity, plural
from provisioning.base.rules import page_of

LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}

MOST = 10
"""Of a job: GitHub shows so many of a level for one step, and drops the rest without a word."""


def github_annotations(reports: Iterable[Report]) -> str:
    """A command a line: the worst ten findings, each once. The last says how many more there are."""
    ranks = list(Severity)
    found: dict[Hashable, tuple[Report, Finding]] = {}
    for report in reports:
        for finding in report.findings:
            found.setdefault(identity(report, finding), (report, finding))
    worst_first = sorted(found.values(), key=lambda pair: ranks.index(pair[1].severity))
    shown = worst_first if len(worst_first) <= MOST else worst_first[: MOST - 1]
    lines = [_annotation(LEVELS[finding.severity], report, finding) for report, finding in shown]
    if left := worst_first[len(shown) :]:
        level = LEVELS[left[0][1].severity]
        lines.append(command(level, f"{plural(len(left), 'more finding')} in the job's summary"))
    return "".join(f"{line}\n" for line in lines)


def command(name: str, message: str = "", **properties: str) -> str:
    """One workflow command: `::error title=…::message`."""
    property_list = ",".join(f"{key}={_property(value)}" for key, value in properties.items() if value)
    return f"::{name}{' ' if property_list else ''}{property_list}::{_data(message)}"


def _annotation(level: str, report: Report, finding: Finding) -> str:
    says = f"{finding.subject}: {finding.message}" if finding.subject else finding.message
    if finding.fix:
        says += f"\n→ {finding.fix}"
    if page := page_of(finding.rule):
        says += f"\n{page}"
    title = one_line(f"{report.stage}: {finding.rule}")
    place = finding.place
    where = {"file": place.file, "line": str(place.line), "col": str(place.column or "")} if place else {}
    return command(level, visible(says), **{name: visible(text) for name, text in where.items()}, title=title)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
