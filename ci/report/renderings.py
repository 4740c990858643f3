"""All reports in the forms that others read: a job summary in GitHub's Markdown, JUnit XML, SARIF for code
scanning, and GitLab's code quality."""

from __future__ import annotations

import hashlib
import html
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import quote
from xml.etree import ElementTree

from ci.diagnose.rules import explained, page_of
from ci.report.summary import headline, models_in, worst
from ci.report.values import Row, in_unit, mapping, number, rows_of, rows_of_models
from provisioning.base.findings import Finding, Outcome, Place, Report, Severity
from provisioning.base.foreign import one_line, visible
from provisioning.base.rendering import (
    NO_MATTER,
    by_severity,
    counted,
    duration,
    notable_artifacts,
    plural,
    scalar_metrics,
    summary_of,
    verdict,
)
from provisioning.base.units import size

# Markdown

LIMIT = 1024 * 1024 - 4096
"""GitHub refuses a step's summary of more than 1 MiB; some is left for what else the step writes."""

ROOM_FOR_NOTE = 200
"""Bytes that are kept for saying how much was left out."""

MARKS = {"pass": "✅", "fail": "❌", "error": "❌", "did not run": "❌", "skipped": "⚪", "not run": "⚪"}
SEVERITY_MARKS = {Severity.ERROR: "🔴", Severity.WARNING: "🟡", Severity.NOTE: "🔵"}

# All ASCII punctuation may be escaped in Markdown; a backslash before a letter would be shown.
_PUNCTUATION = re.compile(r"[\\`*_{}\[\]()#+\-.!|~$@:/]")


def markdown(reports: Sequence[Report], *, limit: int = LIMIT) -> str:
    """Verdict, models, a table of stages, then their findings, failed ones first; at most `limit` bytes."""
    lines = list(_lines(reports))
    sizes = list(itertools.accumulate(len(line.encode()) + 1 for line in lines))
    if sizes[-1] > limit:
        shown = sum(size <= limit - ROOM_FOR_NOTE for size in sizes)
        rows = sum(line.startswith("| ") for line in lines[shown:])
        left_out = f"{plural(rows, 'row')} left out" if rows else "The rest is left out"
        note = f"{left_out} for lack of room; the report files have them all."
        lines[shown:] = ["", f"**{note}**"]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Any text as the content of a table cell that shows exactly it."""
    lines = visible(text).strip().split("\n")
    return "<br>".join(_PUNCTUATION.sub(_entity, html.escape(line, quote=False)) for line in lines)


def code(text: str) -> str:
    """The same in a line of code, for comments: elsewhere GitHub makes mentions and links of text, also where
    it is written as entities."""
    return f"<code>{cell(one_line(text))}</code>"


def _entity(match: re.Match[str]) -> str:
    # An entity, not a backslash: `\|` ends a cell in some viewers, and @ and : would still link.
    return f"&#{ord(match.group())};"


def _lines(reports: Sequence[Report]) -> Iterator[str]:
    yield f"## {MARKS[worst(reports).value]} {headline(reports)}"
    yield ""
    yield from _models(reports)
    yield "| stage | verdict | profile | target | found | time |"
    yield "| --- | --- | --- | --- | --- | ---: |"
    for report in reports:
        word = verdict(report)
        cells = (
            cell(report.stage),
            f"{MARKS[word]} {word}",
            cell(report.profile),
            cell(report.target),
            cell(summary_of(report)),
            duration(report),
        )
        yield f"| {' | '.join(cells)} |"
    for report in sorted(reports, key=lambda report: verdict(report) in {"pass", *NO_MATTER}):
        yield from _details(report)


FIGURES = {
    "sqnr_db": "SQNR",
    "agreement": "equal elements",
    "top1": "top-1",
    "cpu_operators": "operators on the CPU",
    "pte_bytes": ".pte",
    "context_bytes": "context",
    "ddr_read": "DDR read",
    "ddr_written": "DDR written",
}
"""What is said of a model here."""


def _models(reports: Sequence[Report]) -> Iterator[str]:
    """The models that failed first, each with its figures."""
    passed, rows = models_in(reports), rows_of_models(reports)
    if not rows:
        return
    yield "| | model | figures |"
    yield "| --- | --- | --- |"
    for name in sorted(rows, key=lambda name: passed[name]):
        figures = {key: value for row in rows[name] for key, value in _numbers(row).items()}
        shown = [f"{FIGURES[key]} {in_unit(key, figures[key])}" for key in FIGURES if key in figures]
        cells = (MARKS["pass" if passed[name] else "fail"], cell(name), cell(", ".join(shown)))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _numbers(row: Row) -> dict[str, float]:
    """The figures of a program's row, which may have any form."""
    tables = (row, mapping(row.get("figures")), mapping(row.get("costs")))
    return {key: value for table in tables for key in FIGURES if (value := number(table, key)) is not None}


def _details(report: Report) -> Iterator[str]:
    metrics, artifacts = scalar_metrics(report), notable_artifacts(report)
    if not (report.findings or artifacts or metrics) or verdict(report) in {"did not run", *NO_MATTER}:
        # The table shows all of a stage that did not run.
        return
    yield ""
    yield f"### {cell(report.stage)}"
    if report.findings:
        yield ""
        yield "| | rule | subject | what | fix |"
        yield "| --- | --- | --- | --- | --- |"
        for severity, group in by_severity(report.findings).items():
            for f in group:
                rule, *cells = map(cell, (f.rule, f"{f.subject}\n{f.beside}".strip(), f.message, f.fix))
                page = page_of(f.rule)
                shown = [SEVERITY_MARKS[severity], f"[{rule}]({page})" if page else rule, *cells]
                yield f"| {' | '.join(shown)} |"
    if artifacts:
        yield ""
        yield "| artifact | path | size | sha256 |"
        yield "| --- | --- | ---: | --- |"
        for a in artifacts:
            yield f"| {cell(a.kind)} | {cell(a.path)} | {size(a.size)} | {cell(a.sha256[:12])} |"
    if metrics:
        yield ""
        yield " · ".join(f"{cell(name)} **{cell(value)}**" for name, value in metrics.items())
    if verdict(report) not in {"pass", *NO_MATTER} and report.command:
        yield ""
        yield f"Repeat with: <code>{cell(report.command)}</code>"


# JUnit, as Jenkins, GitLab and GitHub's consumers read it: a suite per stage, a case per finding. Jenkins
# has the strictest schema (junit-10.xsd of its xUnit plugin): it takes no other attribute.

STAGE_RESULT = {
    "pass": "",
    "fail": "failure",
    "error": "error",
    "did not run": "error",
    "skipped": "skipped",
    "not run": "skipped",
}

# XML 1.0 cannot hold these characters, not even escaped. It takes 15 ms to compile.
_NOT_XML = "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


def junit(reports: Sequence[Report]) -> str:
    """One `testsuite` per stage.

    Its first case is the stage itself, so that an empty suite still says pass or fail; then there is one for
    each program that is as it should be, where the stage did programs. Errors are failures
    (or errors, where the check itself could not be made); warnings and what was skipped are skipped cases,
    which consumers show and never count as passed; notes are the suite's output.
    """
    top = ElementTree.Element("testsuites", name="qnn-ci")
    top.extend(_suite(report) for report in reports)
    top.set("time", f"{sum(report.seconds for report in reports):.3f}")
    return document(top)


def document(top: ElementTree.Element) -> str:
    """The text of a tree, with the counts of its suites and without characters that XML cannot hold."""
    for element in top.iter():
        element.text = _clean(element.text or "") or None
        for name, value in element.items():
            element.set(name, _clean(value))
        if element.tag in ("testsuites", "testsuite"):
            element.set("tests", str(len(element.findall(".//testcase"))))
            for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
                if element.tag == "testsuite" or name != "skipped":
                    element.set(name, str(len(element.findall(f".//testcase/{tag}"))))
    ElementTree.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(top, encoding="unicode") + "\n"


def testcase(
    suite: ElementTree.Element, classname: str, name: str, seconds: float = 0
) -> ElementTree.Element:
    time = f"{seconds:.3f}"
    return ElementTree.SubElement(suite, "testcase", classname=classname, name=name, time=time)


def _clean(text: str) -> str:
    return re.sub(_NOT_XML, "\N{REPLACEMENT CHARACTER}", visible(text))


def _suite(report: Report) -> ElementTree.Element:
    time, timestamp = f"{report.seconds:.3f}", _timestamp(report.started)
    suite = ElementTree.Element("testsuite", name=report.stage, time=time, timestamp=timestamp)
    properties = ElementTree.SubElement(suite, "properties")
    for name in ("profile", "target", "command"):
        ElementTree.SubElement(properties, "property", name=name, value=getattr(report, name))
    _stage(suite, report)
    _passed(suite, report)
    broken = "error" if report.outcome is Outcome.ERROR else "failure"
    for finding in report.findings:
        if finding.severity is Severity.ERROR:
            _case(suite, report, finding, broken)
        elif finding.severity is Severity.WARNING:
            _case(suite, report, finding, "skipped")
    notes = [f for f in report.findings if f.severity is Severity.NOTE]
    if notes:
        text = "\n".join(f"{f.rule}: {one_line(f.subject)}: {one_line(f.message)}" for f in notes)
        ElementTree.SubElement(suite, "system-out").text = text
    return suite


def _stage(suite: ElementTree.Element, report: Report) -> None:
    case = testcase(suite, report.stage, "stage", report.seconds)
    if kind := STAGE_RESULT[verdict(report)]:
        message = f"{report.stage}: {verdict(report)}: {counted(report)}"
        ElementTree.SubElement(case, kind, message=message).text = f"repeat with: {report.command}"


def _passed(suite: ElementTree.Element, report: Report) -> None:
    for name, row in rows_of(report, "programs").items():
        if row.get("verdict") == "pass":
            seconds = None if row.get("cached") else number(row, "seconds")
            testcase(suite, report.stage, one_line(name), seconds or 0)


def _case(suite: ElementTree.Element, report: Report, finding: Finding, kind: str) -> None:
    case = testcase(suite, f"{report.stage}.{finding.rule}", one_line(finding.subject) or finding.rule)
    body = ElementTree.SubElement(case, kind, message=one_line(finding.message))
    if kind != "skipped":
        body.set("type", finding.rule)
    body.text = "\n".join(filter(None, (finding.beside, finding.message, finding.fix)))


def _timestamp(started: str) -> str:
    """Consumers want ISO 8601 in UTC without an offset."""
    return re.sub(r"(\+00:00|Z)$", "", started)


# SARIF 2.1.0, and GitLab's code quality

QUALITY = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.NOTE: "info"}
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}

_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)", re.ASCII)


def sarif(reports: Sequence[Report]) -> str:
    """One run over all reports. What has no place in the repository is a notification of its stage: code
    scanning refuses results without one."""
    used = sorted({finding.rule for report in reports for finding in report.findings})
    index = {rule: position for position, rule in enumerate(used)}
    run = {
        "tool": {"driver": {"name": "qnn-ci", "rules": [*map(_rule, used)]}},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(report) for report in reports],
        "results": [
            _result(report, finding, finding.place, index[finding.rule])
            for report in reports
            for finding in report.findings
            if finding.place
        ],
    }
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    # Readers of SARIF refuse surrogates, even as escapes.
    return json.dumps(document, indent=2, ensure_ascii=False).encode("utf-8", "replace").decode() + "\n"


def code_quality(reports: Sequence[Report]) -> str:
    """GitLab's format, which needs a place. Each finding has a fingerprint of its own."""
    seen: Counter[str] = Counter()
    issues = []
    for report in reports:
        for finding in report.findings:
            if not (place := finding.place):
                continue
            identity = _identity(report, finding, place)
            seen[identity] += 1
            identity += f"\0{seen[identity]}"
            text = finding.message if _is_place(finding) else f"{finding.message} ({finding.subject})"
            issues.append(
                {
                    "description": visible(text) or finding.rule,
                    "check_name": finding.rule or report.stage or "qnn-ci",
                    "fingerprint": _digest(identity),
                    "severity": QUALITY[finding.severity],
                    "location": {"path": visible(place.file), "lines": {"begin": place.line}},
                }
            )
    return json.dumps(issues, indent=2, ensure_ascii=False).encode("utf-8", "replace").decode() + "\n"


def _is_place(finding: Finding) -> bool:
    return Place.read(finding.subject) is not None


def _identity(report: Report, finding: Finding, place: Place) -> str:
    # Line numbers change while a problem stays, and one line can have several problems.
    what = (place.file, finding.message) if _is_place(finding) else (finding.subject,)
    return "\0".join((report.stage, report.target, finding.rule, *what))


def _digest(identity: str) -> str:
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()


def _invocation(report: Report) -> dict[str, object]:
    fields: dict[str, object] = {
        "executionSuccessful": report.outcome is not Outcome.ERROR,
        "commandLine": report.command,
        "properties": {"stage": report.stage, "outcome": report.outcome.value},
        "toolExecutionNotifications": [
            {
                "descriptor": {"id": finding.rule},
                "level": LEVELS[finding.severity],
                "message": {"text": _message(report, finding)},
            }
            for finding in report.findings
            if not finding.place
        ],
    }
    if _UTC.fullmatch(report.started):
        fields["startTimeUtc"] = report.started.replace("+00:00", "Z")
    return fields


def _rule(rule: str) -> dict[str, object]:
    fields: dict[str, object] = {"id": rule}
    if known := explained(rule):
        # GitHub asks for both descriptions.
        summary = {"text": known.summary}
        fields |= {
            "shortDescription": summary,
            "fullDescription": summary,
            "help": {"text": known.fix},
        }
    if page := page_of(rule):
        fields["helpUri"] = page
    return fields


def _message(report: Report, finding: Finding) -> str:
    text = visible("\n".join(part for part in (finding.message, finding.fix) if part))
    return text or finding.rule or report.stage or "–"


def _result(report: Report, finding: Finding, place: Place, rule_index: int) -> dict[str, object]:
    region = {"startLine": place.line} | ({"startColumn": place.column} if place.column else {})
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": LEVELS[finding.severity],
        "message": {"text": _message(report, finding)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(place.file, errors="surrogatepass")},
                    "region": region,
                },
                "logicalLocations": [{"fullyQualifiedName": visible(f"{report.stage}/{finding.subject}")}],
            }
        ],
        "partialFingerprints": {"qnnCi/v1": _digest(_identity(report, finding, place))},
        "properties": {"stage": report.stage, "profile": report.profile, "target": report.target},
    }
