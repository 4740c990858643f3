"""Write the renderings of all reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.report.html import html
from provisioning.base.files import write_named
from provisioning.base.findings import Report
from provisioning.base.rendering.job_summary import markdown
from provisioning.base.rendering.junit_xml import junit

FIX = "choose another with -o or --reports"


def publish(reports: Sequence[Report], directory: Path, environ: Mapping[str, str]) -> list[Path]:
    """Write the page and JUnit beside the reports, and in a job on GitHub its summary."""
    written = {directory / "index.html": html(reports, directory), directory / "junit.xml": junit(reports)}
    for path, text in written.items():
        write_named(path, text, fix=FIX)
    if summary := environ.get("GITHUB_STEP_SUMMARY"):
        write_named(Path(summary), markdown(reports), append=True)
    return list(written)
