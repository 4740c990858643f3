"""Write all renderings of the reports beside them: the page, JUnit XML, SARIF for code scanning, and the
summary of a job on GitHub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.report.junit import junit
from ci.report.page import html, markdown
from ci.report.sarif import sarif
from provisioning.base.files import write_named
from provisioning.base.findings import Report

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
