"""Workflow commands of GitHub Actions: annotations and folds."""

from __future__ import annotations

from provisioning.base.findings import Finding, Report, Severity
from provisioning.base.foreign import one_line, visible
from provisioning.base.rendering.text import by_severity, plural
from provisioning.base.site import page_of

LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}

PER_LEVEL = 10
"""GitHub shows this many annotations of a level for one step and drops the rest without a word."""


def github_annotations(report: Report) -> str:
    """A command a line; where a level has too many, its last says how many more there are."""
    lines: list[str] = []
    for severity, group in by_severity(report.findings).items():
        level = LEVELS[severity]
        fit = group if len(group) <= PER_LEVEL else group[: PER_LEVEL - 1]
        lines += [_annotation(level, report, finding) for finding in fit]
        if more := len(group) - len(fit):
            lines.append(
                command(
                    level,
                    f"{plural(more, f'more {severity.value}')} in the report of {one_line(report.stage)}",
                    title=one_line(report.stage),
                )
            )
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
