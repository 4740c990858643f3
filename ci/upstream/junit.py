"""One JUnit case a test, for what shows test results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from ci.engine.workers.parent import tail
from ci.upstream.ledger import Ledger
from ci.upstream.pool import Verdict
from provisioning.base.rendering.junit_xml import clean

MODULE = "executorch.backends.qualcomm.tests.test_qnn_delegate_x86"

LOG_CHARACTERS = 8000
"""Of the log of a test that fails as nobody expected."""


def junit_text(verdicts: Iterable[Verdict], ledger: Ledger, soc: str, logs: Path) -> str:
    """What the ledger names is a skipped case with its cause; a surprise is a failure with its log."""
    suite = ElementTree.Element("testsuite", name="test_delegate")
    figures = {"tests": 0, "failures": 0, "skipped": 0}
    for verdict in sorted(verdicts, key=lambda each: each.test):
        owner, _, name = verdict.test.partition(".")
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"{MODULE}.{owner}", name=name, time=f"{verdict.seconds:.3f}"
        )
        figures["tests"] += 1
        entry = ledger.entry(verdict.test, soc)
        if verdict.outcome != (entry.outcome if entry else "passed"):
            figures["failures"] += 1
            reason = verdict.reason or f"passes, and the ledger has it as {entry.outcome if entry else ''}"
            failure = ElementTree.SubElement(case, "failure", message=clean(reason), type=verdict.outcome)
            failure.text = clean("\n".join(f"{where} {what}".strip() for where, what in verdict.problems))
            log = tail(logs / f"{verdict.test}.log", LOG_CHARACTERS)
            ElementTree.SubElement(case, "system-out").text = clean(log)
        elif entry:
            figures["skipped"] += 1
            ElementTree.SubElement(case, "skipped", message=clean(f"{entry.outcome}: {entry.cause}"))
        if verdict.cached:
            properties = ElementTree.SubElement(case, "properties")
            ElementTree.SubElement(properties, "property", name="cached", value="true")
    for name, figure in figures.items():
        suite.set(name, str(figure))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"
