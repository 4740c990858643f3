"""The page of all reports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from ci.report.comparison import comparison_section
from ci.report.elements import badge, element, file_link, number_cell, path, short_cell, sortable
from ci.report.lanes import lanes_section
from ci.report.page import asset, page_of
from ci.report.profiles import profiles_section
from ci.report.programs import collected, programs_section
from provisioning.base.findings import Artifact, Finding, Report, Severity
from provisioning.base.rendering.text import (
    LOG,
    NO_MATTER,
    Verdict,
    by_severity,
    duration,
    errors_of,
    headline,
    one_line,
    plural,
    scalar_metrics,
    summary_of,
    verdict,
    worst,
)
from provisioning.base.units import size

SHOWN_ERRORS = 8
"""How many errors the top of the page shows; all are further down."""

SHOWN_ARTIFACTS = 12
"""More are folded."""

SYMBOLS: dict[Verdict, str] = {
    "pass": "✓",
    "fail": "✗",
    "error": "✗",
    "did not run": "✗",
    "skipped": "–",
    "not run": "–",
}


def html(reports: Sequence[Report], folder: Path | None = None) -> str:
    """The page. It links to files below `folder`, where it is written."""
    main = element("main", _verdict(reports, folder), _stages(reports, folder))
    for section in (
        programs_section(reports),
        lanes_section(reports),
        profiles_section(reports),
        comparison_section(reports),
        _findings(reports),
        _artifacts(reports, folder),
        _metrics(reports),
    ):
        if section is not None:
            main.append(section)
    return page_of(f"{worst(reports).value.upper()}: {headline(reports)}", main, script=asset("page.js"))


def _when(started: str) -> str:
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d\+00:00$", r"\1 \2 UTC", started)


def _clock(started: str) -> str:
    """Hours and minutes in UTC; all reports of a run began within a day."""
    return re.sub(r"^.*T(\d\d:\d\d):\d\d\+00:00$", r"\1", started)


def _verdict(reports: Sequence[Report], folder: Path | None) -> Element:
    overall = worst(reports)
    head = headline(reports)
    lines = [element("h1", f"{SYMBOLS[overall.value]} {head[:1].upper()}{head[1:]}")]
    started = min((report.started for report in reports if report.started), default="")
    if started:
        profiles = ", ".join(sorted({report.profile for report in reports if report.profile}))
        about = f", profile {profiles}" if profiles else ""
        when = element("time", _when(started), datetime=started)
        lines.append(element("p", "began ", when, about, class_="soft"))
    for report in reports:
        if verdict(report) not in {"pass", *NO_MATTER}:
            line = element(
                "p", element("strong", report.stage), f" {verdict(report)}: {summary_of(report)}. "
            )
            line.extend([element("span", "Repeat with: ", class_="soft"), element("code", report.command)])
            line.extend(_logs(report, folder, "its log"))
            lines.append(line)
    return element("header", *lines, *_errors(reports), class_=f"verdict {overall.value}")


def _errors(reports: Sequence[Report]) -> Iterator[Element]:
    """The errors themselves: what is wrong and what to type, at the top of the page."""
    errors = errors_of(reports)
    if not errors:
        return
    anchors = _anchors(reports)
    items = []
    for finding in errors[:SHOWN_ERRORS]:
        anchor = anchors.get(finding.subject, "findings")
        item = element(
            "li",
            element("a", one_line(finding.subject) or "it", href=f"#{anchor}"),
            " ",
            element("code", one_line(finding.rule)),
            element("span", finding.message, class_="text message"),
        )
        if finding.remedy:
            item.append(element("span", f"→ {finding.remedy}", class_="remedy text"))
        items.append(item)
    yield element("ul", *items, class_="wrong")
    if more := len(errors) - len(items):
        yield element("p", element("a", f"{plural(more, 'more error')} below", href="#findings"))


def _anchors(reports: Sequence[Report]) -> dict[str, str]:
    """The places of the page that have more about a finding's subject."""
    return {program.name: program.anchor for program in collected(reports)}


def _logs(report: Report, folder: Path | None, shown: str) -> Iterator[Element]:
    """Links to the stage's output, each after a space."""
    for artifact in report.artifacts:
        if artifact.kind == LOG and (link := file_link(artifact.path, folder, shown)) is not None:
            yield element("span", " ", link)


def _stages(reports: Sequence[Report], folder: Path | None) -> Element:
    columns = [
        ("Stage", ""),
        ("Verdict", ""),
        ("Profile", ""),
        ("Target", ""),
        ("Began", ""),
        ("Found", ""),
        ("Time", "number"),
    ]
    rows = [
        element(
            "tr",
            element("th", report.stage, scope="row"),
            element("td", badge(verdict(report), SYMBOLS[verdict(report)])),
            short_cell(report.profile, "profile"),
            short_cell(report.target, "target"),
            short_cell(_clock(report.started), "began"),
            element("td", summary_of(report), *_logs(report, folder, "log")),
            number_cell(duration(report), report.seconds, "time"),
        )
        for report in reports
    ]
    shown = sortable("stages", "What ran, in order", columns, rows)
    return element("section", element("h2", "Stages"), shown)


def _findings(reports: Sequence[Report]) -> Element | None:
    reports = [report for report in reports if verdict(report) != "not run"]
    rows: list[Element] = []
    ranks = {severity: rank for rank, severity in enumerate(Severity)}
    every = [(report, finding) for report in reports for finding in report.findings]
    anchors = _anchors(reports)
    for report, finding in sorted(every, key=lambda pair: ranks[pair[1].severity]):
        rows.append(_finding(report, finding, ranks[finding.severity], anchors.get(finding.subject)))
    if not rows:
        return None
    columns = [("Severity", ""), ("Stage", ""), ("Rule", ""), ("Subject", ""), ("Message and remedy", "")]
    caption = f"{plural(len(rows), 'finding')}, worst first"
    return element(
        "section",
        element("h2", "Findings"),
        _filters(reports),
        sortable("findings", caption, columns, rows),
    )


def _finding(report: Report, finding: Finding, rank: int, anchor: str | None) -> Element:
    subject = path(finding.subject)
    message = element("td", element("span", finding.message, class_="text"))
    if finding.remedy:
        message.append(element("span", f"→ {finding.remedy}", class_="remedy text"))
    return element(
        "tr",
        element("td", badge(finding.severity.value), data_key=str(rank)),
        short_cell(report.stage, "stage"),
        element("td", element("code", one_line(finding.rule)), class_="short", data_label="rule"),
        element("td", element("a", subject, href=f"#{anchor}") if anchor else subject, class_="subject"),
        message,
        data_severity=finding.severity.value,
        data_stage=report.stage,
    )


def _filters(reports: Sequence[Report]) -> Element:
    """The filters, hidden until the script runs that implements them."""
    groups = by_severity(finding for report in reports for finding in report.findings)
    stages = [report.stage for report in reports if report.findings]
    boxes = [
        element(
            "label",
            element("input", type="checkbox", value=severity.value, checked="checked"),
            f" {plural(len(group), severity.value)}",
        )
        for severity, group in groups.items()
    ]
    options = [element("option", "all stages", value="")]
    options += [element("option", stage, value=stage) for stage in dict.fromkeys(stages)]
    return element(
        "form",
        element(
            "input", type="search", name="words", placeholder="Filter by words", aria_label="Filter by words"
        ),
        element("select", *options, name="stage", aria_label="Stage"),
        *boxes,
        element("output", id="shown", class_="soft"),
        class_="filters",
        hidden="hidden",
    )


def _artifacts(reports: Sequence[Report], folder: Path | None) -> Element | None:
    every: list[tuple[Report, Artifact]] = [(report, a) for report in reports for a in report.artifacts]
    if not every:
        return None
    columns = [("Kind", ""), ("Stage", ""), ("Path", ""), ("Size", "number"), ("SHA-256", "")]
    rows = [
        element(
            "tr",
            element("th", artifact.kind, scope="row"),
            short_cell(report.stage, "stage"),
            element("td", _file(artifact.path, folder), class_="subject"),
            number_cell(size(artifact.size), artifact.size, "size"),
            element("td", element("code", artifact.sha256)),
        )
        for report, artifact in every
    ]
    summary = f"{plural(len(rows), 'artifact')}, {size(sum(artifact.size for _, artifact in every))}"
    whole = element(
        "details",
        element("summary", summary),
        sortable("artifacts", "Files that the stages wrote", columns, rows),
    )
    if len(rows) <= SHOWN_ARTIFACTS:
        whole.set("open", "open")
    return element("section", element("h2", "Artifacts"), whole)


def _file(file: str, folder: Path | None) -> Element:
    shown = path(file)
    link = file_link(file, folder, shown)
    return shown if link is None else link


def _metrics(reports: Sequence[Report]) -> Element | None:
    section = element("section", element("h2", "Figures"))
    for report in reports:
        if metrics := scalar_metrics(report):
            rows = [
                part
                for name, value in metrics.items()
                for part in (element("dt", name), element("dd", value))
            ]
            section.extend([element("h3", report.stage), element("dl", *rows)])
    return section if len(section) > 1 else None
