"""Render all reports for other programs, as JUnit XML and as SARIF for code scanning; and write the files
beside the reports."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ci.diagnose.rules import page_of, rule_named
from ci.report.collect import rows_of
from ci.report.page import environment, html, markdown
from ci.report.summary import describe_finding
from provisioning.base.files import write_named
from provisioning.base.findings import Finding, Outcome, Report, Severity
from provisioning.base.rendering import counts_of, verdict

FIX = "choose another with -o or --reports"


def publish(reports: Sequence[Report], directory: Path, environ: Mapping[str, str]) -> list[Path]:
    """Write the page, JUnit and SARIF beside the reports, and in a job on GitHub its summary."""
    texts = {
        directory / "index.html": html(reports, directory),
        directory / "junit.xml": junit(reports),
        directory / "results.sarif": sarif(reports),
    }
    for path, text in texts.items():
        write_named(path, text, fix=FIX)
    if summary := environ.get("GITHUB_STEP_SUMMARY"):
        write_named(Path(summary), markdown(reports), append=True)
    return list(texts)


# JUnit, as Jenkins, GitLab and GitHub's consumers read it: a suite per stage, a case per finding. Jenkins
# has the strictest schema (junit-10.xsd of its xUnit plugin): it takes no other attribute.

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


# SARIF 2.1.0


def sarif(reports: Sequence[Report]) -> str:
    """Render one run for all reports. A finding without a place in the repository becomes a notification of
    its stage: code scanning refuses results without one."""
    rules = sorted({finding.rule for report in reports for finding in report.findings})
    results: list[object] = []
    notifications: list[tuple[Report, object]] = []
    for report, finding, fingerprint in _fingerprints(reports):
        text = describe_finding(finding) or finding.rule or report.stage or "–"
        content = {"level": finding.severity.value, "message": {"text": text}}
        place = finding.place
        if place is None:
            notifications.append((report, {"descriptor": {"id": finding.rule}, **content}))
            continue
        file = {"uri": quote(place.file, errors="surrogatepass")}
        region = {"startLine": place.line} | ({"startColumn": place.column} if place.column else {})
        results.append(
            {
                "ruleId": finding.rule,
                "ruleIndex": rules.index(finding.rule),
                **content,
                "locations": [{"physicalLocation": {"artifactLocation": file, "region": region}}],
                "partialFingerprints": {"qnnCi/v1": fingerprint},
                "properties": {"stage": report.stage, "profile": report.profile, "target": report.target},
            }
        )
    invocations = []
    for report in reports:
        invocations.append(
            {
                "executionSuccessful": report.outcome is not Outcome.ERROR,
                "commandLine": report.command,
                "properties": {"stage": report.stage, "outcome": report.outcome.value},
                "toolExecutionNotifications": [row for source, row in notifications if source is report],
            }
        )
    run = {
        "tool": {"driver": {"name": "qnn-ci", "rules": [*map(_rule, rules)]}},
        "columnKind": "unicodeCodePoints",
        "invocations": invocations,
        "results": results,
    }
    return _json_text(
        {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    )


def _rule(rule: str) -> dict[str, object]:
    fields: dict[str, object] = {"id": rule}
    if row := rule_named(rule):
        # GitHub asks for both descriptions.
        summary = {"text": row.summary}
        fields |= {"shortDescription": summary, "fullDescription": summary, "help": {"text": row.fix}}
    if page := page_of(rule):
        fields["helpUri"] = page
    return fields


def _fingerprints(reports: Iterable[Report]) -> Iterator[tuple[Report, Finding, str]]:
    """Yield each finding with a digest of its own. The digest stays the same if other lines move the
    finding."""
    counts: Counter[tuple[str, ...]] = Counter()
    for report in reports:
        for finding in report.findings:
            # Not of the line, nor of a program's figures: both change while a problem stays.
            place = finding.place
            subject = finding.subject
            if place and str(place) == finding.subject:
                subject = f"{place.file}\0{finding.message}"
            identity = (report.stage, report.target, finding.rule, subject)
            counts[identity] += 1
            text = "\0".join((*identity, str(counts[identity])))
            yield report, finding, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _json_text(document: object) -> str:
    # Readers of SARIF refuse surrogates, even as escapes.
    return json.dumps(document, indent=2, ensure_ascii=False).encode("utf-8", "replace").decode() + "\n"
