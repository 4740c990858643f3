"""JUnit XML with one case for each test, for services that show test results."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree

from ci.engine.workers.parent import tail
from ci.lanes.upstream.judge import Judge
from ci.lanes.upstream.verdict import UpstreamVerdict
from provisioning.base.rendering.junit_xml import document, testcase

LOG_CHARACTERS = 8000
"""Of the log of an unexpected failure."""


def junit_text(verdicts: Iterable[UpstreamVerdict], judge: Judge, suite: str, module: str) -> str:
    """A test that the ledger names is a skipped case with its cause; a surprise is a failure with its log."""
    root = ElementTree.Element("testsuite", name=suite)
    for verdict in sorted(verdicts, key=lambda row: row.test):
        owner, _, name = verdict.test.rpartition(".")
        case = testcase(root, f"{module}.{owner}", name, verdict.seconds)
        entry = judge.ledger.entry(verdict.test, judge.soc)
        if judge.is_surprise(verdict):
            reason = "; ".join(text for text, _ in judge.changes(verdict)) or verdict.reason
            if entry and verdict.outcome == "passed":
                reason = f"passes, and the ledger has it as {entry.outcome}"
            failure = ElementTree.SubElement(case, "failure", message=reason, type=verdict.outcome)
            failure.text = "\n".join(f"{where} {error}".strip() for where, error in verdict.problems)
            log = tail(judge.logs / f"{verdict.test}.log", LOG_CHARACTERS)
            ElementTree.SubElement(case, "system-out").text = log
        elif entry or verdict.outcome != "passed":
            why = f"{entry.outcome}: {entry.cause}" if entry else f"{verdict.outcome}: {verdict.reason}"
            ElementTree.SubElement(case, "skipped", message=why)
        if verdict.cached:
            properties = ElementTree.SubElement(case, "properties")
            ElementTree.SubElement(properties, "property", name="cached", value="true")
    return document(root)
