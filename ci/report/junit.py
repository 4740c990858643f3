"""Render all reports as JUnit XML, as Jenkins, GitLab and GitHub's consumers read it: a suite for each stage,
a case for each finding.

Jenkins has the strictest schema (junit-10.xsd of its xUnit plugin): it takes no other attribute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ci.report.collect import rows_of
from ci.report.page import environment
from provisioning.base.findings import Outcome, Report, Severity
from provisioning.base.rendering import counts_of, verdict

STAGE_RESULT = {"pass": "", "fail": "failure", "error": "error", "did not run": "error", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class JunitCase:
    """A JUnit test case."""

    classname: str
    name: str
    seconds: float = 0.0
    result: str = ""
    """The element that says how it ended, if it did not pass."""
    message: str = ""
    text: str = ""


def junit(reports: Sequence[Report]) -> str:
    """Render one `testsuite` for each stage.

    Its first case is the stage itself, so that an empty suite still passes or fails. If the stage worked on
    programs, each one that is as it should be has a case. Errors are failures, or errors if the check itself
    could not be made. Warnings, and what was skipped, are skipped cases, which consumers show and never count
    as passed. Notes are the suite's output."""
    suites = [(report, list(_cases(report))) for report in reports]
    return environment().get_template("junit.xml.j2").render(suites=suites)


def _cases(report: Report) -> Iterator[JunitCase]:
    result = STAGE_RESULT[verdict(report)]
    message = f"{report.stage}: {verdict(report)}: {counts_of(report)}"
    yield JunitCase(report.stage, "stage", report.seconds, result, message, f"repeat with: {report.command}")
    for name, row in rows_of(report, "programs").items():
        if row.passed:
            yield JunitCase(report.stage, name, 0.0 if row.cached else row.seconds or 0.0)
    failure = "error" if report.outcome is Outcome.ERROR else "failure"
    results = {Severity.ERROR: failure, Severity.WARNING: "skipped"}
    for finding in report.findings:
        if finding.severity in results:
            yield JunitCase(
                f"{report.stage}.{finding.rule}",
                finding.subject or finding.rule,
                result=results[finding.severity],
                message=finding.message,
                text="\n".join(filter(None, (finding.other_place, finding.message, finding.fix))),
            )
