"""JUnit XML as Jenkins, GitLab and GitHub's consumers read it: a suite per stage, a case per finding."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from provisioning.base.findings import Finding, Outcome, Report, Severity
from provisioning.base.rendering.text import counted, one_line, verdict

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
    for report in reports:
        top.append(_suite(report))
    _count(top, top)
    top.set("time", f"{sum(report.seconds for report in reports):.3f}")
    ElementTree.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(top, encoding="unicode") + "\n"


def clean(text: str) -> str:
    """The text without what XML cannot hold."""
    return re.sub(_NOT_XML, "\N{REPLACEMENT CHARACTER}", text)


def _suite(report: Report) -> ElementTree.Element:
    suite = ElementTree.Element(
        "testsuite",
        name=clean(report.stage),
        time=f"{report.seconds:.3f}",
        timestamp=_timestamp(report.started),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name in ("profile", "target", "command"):
        ElementTree.SubElement(properties, "property", name=name, value=clean(getattr(report, name)))
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
        ElementTree.SubElement(suite, "system-out").text = clean(text)
    _count(suite, suite)
    return suite


def _stage(suite: ElementTree.Element, report: Report) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=clean(report.stage), name="stage", time=f"{report.seconds:.3f}"
    )
    if kind := STAGE_RESULT[verdict(report)]:
        message = f"{report.stage}: {verdict(report)}: {counted(report)}"
        ElementTree.SubElement(case, kind, message=clean(message)).text = clean(
            f"repeat with: {report.command}"
        )


def _passed(suite: ElementTree.Element, report: Report) -> None:
    programs = report.metrics.get("programs")
    for name, row in programs.items() if isinstance(programs, dict) else ():
        if isinstance(row, dict) and row.get("verdict") == "pass":
            took = 0 if row.get("cached") else row.get("seconds")
            known = isinstance(took, int | float) and 0 <= took < 1e9
            case = {"classname": clean(report.stage), "name": clean(one_line(name))}
            ElementTree.SubElement(suite, "testcase", case, time=f"{took if known else 0:.3f}")


def _case(suite: ElementTree.Element, report: Report, finding: Finding, kind: str) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=clean(f"{report.stage}.{finding.rule}"),
        name=clean(one_line(finding.subject) or finding.rule),
        time="0",
    )
    body = ElementTree.SubElement(case, kind, message=clean(one_line(finding.message)))
    if kind != "skipped":
        body.set("type", clean(finding.rule))
    body.text = clean("\n".join(part for part in (finding.message, finding.remedy) if part))


def _count(element: ElementTree.Element, into: ElementTree.Element) -> None:
    into.set("tests", str(len(element.findall(".//testcase"))))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        into.set(attribute, str(len(element.findall(f".//testcase/{tag}"))))


def _timestamp(started: str) -> str:
    """Consumers want ISO 8601 in UTC without an offset."""
    return clean(re.sub(r"(\+00:00|Z)$", "", started))
