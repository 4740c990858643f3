"""JUnit XML with one case for each test, for services that show test results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from xml.etree import ElementTree

from ci.engine.workers.parent import tail
from ci.upstream.judge import Judge
from ci.upstream.ledger import Verdict
from provisioning.base.rendering.junit_xml import clean

LOG_CHARACTERS = 8000
"""Of the log of an unexpected failure."""


def junit_text(verdicts: Iterable[Verdict], judge: Judge, suite: str, module: str) -> str:
    """A test that the ledger names is a skipped case with its cause; a surprise is a failure with its log."""
    root = ElementTree.Element("testsuite", name=suite)
    counts = Counter({"tests": 0, "failures": 0, "skipped": 0})
    for verdict in sorted(verdicts, key=lambda each: each.test):
        owner, _, name = verdict.test.rpartition(".")
        case = ElementTree.SubElement(
            root, "testcase", classname=f"{module}.{owner}", name=name, time=f"{verdict.seconds:.3f}"
        )
        counts["tests"] += 1
        entry = judge.ledger.entry(verdict.test, judge.soc)
        if judge.is_surprise(verdict):
            counts["failures"] += 1
            reason = "; ".join(text for text, _ in judge.changes(verdict)) or verdict.reason
            if entry and verdict.outcome == "passed":
                reason = f"passes, and the ledger has it as {entry.outcome}"
            failure = ElementTree.SubElement(case, "failure", message=clean(reason), type=verdict.outcome)
            failure.text = clean("\n".join(f"{where} {error}".strip() for where, error in verdict.problems))
            log = tail(judge.logs / f"{verdict.test}.log", LOG_CHARACTERS)
            ElementTree.SubElement(case, "system-out").text = clean(log)
        elif entry:
            counts["skipped"] += 1
            ElementTree.SubElement(case, "skipped", message=clean(f"{entry.outcome}: {entry.cause}"))
        if verdict.cached:
            properties = ElementTree.SubElement(case, "properties")
            ElementTree.SubElement(properties, "property", name="cached", value="true")
    for name, count in counts.items():
        root.set(name, str(count))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
