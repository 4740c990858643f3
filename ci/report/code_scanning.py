"""SARIF 2.1.0, for code scanning, and GitLab's code-quality report."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

from provisioning.base.findings import Finding, Outcome, Place, Report, Severity
from provisioning.base.foreign import visible
from provisioning.base.rules import explained, page_of

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
