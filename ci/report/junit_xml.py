"""JUnit XML as Jenkins, GitLab and GitHub's consumers read it: a suite per stage, a case per finding.

Jenkins has the strictest schema (junit-10.xsd of its xUnit plugin): it takes no other attribute.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from provisioning.base.findings import Finding, Outcome, Report, Severity
from provisioning.base.foreign import one_line, visible
from provisioning.base.rendering.text import counted, verdict

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
    programs = report.metrics.get("programs")
    for name, row in programs.items() if isinstance(programs, dict) else ():
        if isinstance(row, dict) and row.get("verdict") == "pass":
            took = 0 if row.get("cached") else row.get("seconds")
            seconds = took if isinstance(took, int | float) and 0 <= took < 1e9 else 0
            testcase(suite, report.stage, one_line(name), seconds)


def _case(suite: ElementTree.Element, report: Report, finding: Finding, kind: str) -> None:
    case = testcase(suite, f"{report.stage}.{finding.rule}", one_line(finding.subject) or finding.rule)
    body = ElementTree.SubElement(case, kind, message=one_line(finding.message))
    if kind != "skipped":
        body.set("type", finding.rule)
    body.text = "\n".join(filter(None, (finding.beside, finding.message, finding.fix)))


def _timestamp(started: str) -> str:
    """Consumers want ISO 8601 in UTC without an offset."""
    return re.sub(r"(\+00:00|Z)$", "", started)
