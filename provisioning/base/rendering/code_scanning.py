"""SARIF 2.1.0, for code scanning, and GitLab's code-quality report."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from provisioning.base.command_line import Parser
from provisioning.base.findings import Finding, Outcome, Report, Severity
from provisioning.base.foreign import visible
from provisioning.base.rendering.text import place_of
from provisioning.base.rules import explained
from provisioning.base.site import page_of

QUALITY = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.NOTE: "info"}
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}

_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)", re.ASCII)
_IN_REPOSITORY = re.compile(
    r"(?:\.github|ci|docker|docs|manifests|provisioning|tests)/[^\s:]+|noxfile\.py|pyproject\.toml"
)


def sarif(reports: Sequence[Report]) -> str:
    """One run over all reports."""
    used = sorted({finding.rule for report in reports for finding in report.findings})
    index = {rule: position for position, rule in enumerate(used)}
    run = {
        "tool": {"driver": {"name": "qnn-ci", "rules": [*map(_rule, used)]}},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(report) for report in reports],
        "results": [
            _result(report, finding, index[finding.rule]) for report in reports for finding in report.findings
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
    """GitLab's format. Every finding has a relative path, a line and a fingerprint that no other has."""
    seen: Counter[str] = Counter()
    issues = []
    for report in reports:
        for finding in report.findings:
            place = place_of(finding.subject)
            path, line = _place(report, finding)
            # Without the line: it changes while a problem stays.
            what = (place[0], finding.message) if place else (finding.subject, finding.message)
            identity = "\0".join((report.stage, report.target, finding.rule, *what))
            seen[identity] += 1
            identity += f"\0{seen[identity]}"
            text = f"{finding.message} ({finding.subject})" if not place else finding.message
            issues.append(
                {
                    "description": visible(text) or finding.rule,
                    "check_name": finding.rule or report.stage or "qnn-ci",
                    "fingerprint": hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest(),
                    "severity": QUALITY[finding.severity],
                    "location": {"path": visible(path), "lines": {"begin": line}},
                }
            )
    return json.dumps(issues, indent=2, ensure_ascii=False).encode("utf-8", "replace").decode() + "\n"


def _place(report: Report, finding: Finding) -> tuple[str, int]:
    """A file of the repository, which is all that can be shown, and a line: the subject's, its case's in its
    suite, or the first of the workflow; on no runner, of the profile."""
    if place := place_of(finding.subject):
        return place
    if _IN_REPOSITORY.fullmatch(finding.subject) and ".." not in finding.subject.split("/"):
        return finding.subject, 1
    suites = list(_suites_of(report))
    name = re.escape(finding.subject.partition("/")[0])
    case = re.compile(rf"\s*\[+\s*case\s*\.\s*[\"']?{name}[\"']?\s*[.\]]")
    for suite in suites:
        with contextlib.suppress(OSError, ValueError):
            for number, line in enumerate(suite.read_text(encoding="utf-8").splitlines(), 1):
                if case.match(line):
                    return _in_repository(suite), number
    if suites:
        return _in_repository(suites[0]), 1
    # OWNER/REPOSITORY/.github/workflows/NAME.yml@REF
    workflow = "/".join(os.environ.get("GITHUB_WORKFLOW_REF", "").partition("@")[0].split("/")[2:])
    return workflow or f"manifests/profiles/{report.profile}.toml", 1


def _suites_of(report: Report) -> Iterator[Path]:
    """The suites that a stage ran, by the paths that the user typed."""
    with contextlib.suppress(ValueError):
        for word, after in itertools.pairwise(shlex.split(report.command)):
            if word == "--suite":
                yield Path(os.path.normpath(Parser.user_folder() / after))


def _in_repository(suite: Path) -> str:
    """The path from the top of the suite's repository. Where another machine made the report, and wrote it
    with a path from a checkout beside it, from that one's top."""
    top = next((folder for folder in suite.parents if (folder / ".git").exists()), None)
    relative = os.path.relpath(suite, top or Parser.user_folder())
    if top is None and relative.startswith("../"):
        relative = "/".join(relative.replace("../", "").split("/")[1:])
    return relative


def _invocation(report: Report) -> dict[str, object]:
    fields: dict[str, object] = {
        "executionSuccessful": report.outcome is not Outcome.ERROR,
        "commandLine": report.command,
        "properties": {"stage": report.stage, "outcome": report.outcome.value},
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


def _result(report: Report, finding: Finding, rule_index: int) -> dict[str, object]:
    message = visible("\n".join(part for part in (finding.message, finding.fix) if part))
    place = place_of(finding.subject)
    # Line numbers change while a problem stays, and one line can have several problems.
    what = (place[0], finding.message) if place else (finding.subject,)
    identity = "\0".join((report.stage, report.target, finding.rule, *what))
    path, line = _place(report, finding)
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": LEVELS[finding.severity],
        "message": {"text": message or finding.rule or report.stage or "–"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(path, errors="surrogatepass")},
                    "region": {"startLine": line},
                },
                "logicalLocations": [{"fullyQualifiedName": visible(f"{report.stage}/{finding.subject}")}],
            }
        ],
        "partialFingerprints": {
            "qnnCi/v1": hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
        },
        "properties": {"stage": report.stage, "profile": report.profile, "target": report.target},
    }
