"""Write the renderings of all reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.report.html import html
from provisioning.base.errors import UsageError
from provisioning.base.findings import Report
from provisioning.base.rendering import junit, markdown


def publish(reports: Sequence[Report], directory: Path, environ: Mapping[str, str]) -> list[Path]:
    """Write the page and JUnit beside the reports, and in a job on GitHub its summary."""
    written = {directory / "index.html": html(reports, directory), directory / "junit.xml": junit(reports)}
    for path, text in written.items():
        save(path, text)
    if summary := environ.get("GITHUB_STEP_SUMMARY"):
        save(Path(summary), markdown(reports), append=True)
    return list(written)


def save(path: Path, text: str, *, append: bool = False) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append else "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", remedy="choose another with -o or --reports"
        ) from error
