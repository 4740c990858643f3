"""Render all reports as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

from ci.diagnose.rules import page_of, rule_named
from ci.report.summary import describe_finding
from provisioning.base.findings import Finding, Outcome, Place, Report


def sarif(reports: Sequence[Report]) -> str:
    """Render one run for all reports. A finding without a place in the repository becomes a notification of
    its stage: code scanning refuses results without one."""
    rules = sorted({finding.rule for report in reports for finding in report.findings})
    results: list[object] = []
    notifications: list[tuple[Report, object]] = []
    for report, finding, fingerprint in _fingerprints(reports):
        text = describe_finding(finding) or finding.rule or report.stage or "–"
        content = {"level": finding.severity.value, "message": {"text": text}}
        if finding.place is None:
            notifications.append((report, {"descriptor": {"id": finding.rule}, **content}))
            continue
        results.append(
            {
                "ruleId": finding.rule,
                "ruleIndex": rules.index(finding.rule),
                **content,
                "locations": [_location(finding.place)],
                "partialFingerprints": {"qnnCi/v1": fingerprint},
                "properties": {"stage": report.stage, "profile": report.profile, "target": report.target},
            }
        )
    invocations = []
    for report in reports:
        own = [notification for source, notification in notifications if source is report]
        invocations.append(_invocation(report, own))
    run = {
        "tool": {"driver": {"name": "qnn-ci", "rules": [*map(_rule, rules)]}},
        "columnKind": "unicodeCodePoints",
        "invocations": invocations,
        "results": results,
    }
    return _json_text(
        {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    )


def _location(place: Place) -> dict[str, object]:
    region: dict[str, object] = {"startLine": place.line}
    if place.column:
        region["startColumn"] = place.column
    file = {"uri": quote(place.file, errors="surrogatepass")}
    return {"physicalLocation": {"artifactLocation": file, "region": region}}


def _invocation(report: Report, notifications: Sequence[object]) -> dict[str, object]:
    """A stage as a call of the tool."""
    return {
        "executionSuccessful": report.outcome is not Outcome.ERROR,
        "commandLine": report.command,
        "properties": {"stage": report.stage, "outcome": report.outcome.value},
        "toolExecutionNotifications": notifications,
    }


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
