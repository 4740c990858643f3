"""The page of all reports, by jinja2 templates; and the renderings that are written beside the reports.

What a template shows is always text: it cannot become markup, nor hide. The page is one file: style and
script are in it, and its policy lets nothing else load or run.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ci.diagnose.rules import page_of
from ci.report.programs import TEXT_FIGURES, models_of, programs_of
from ci.report.renderings import junit, markdown
from ci.report.summary import headline, worst
from provisioning.base.command_line import Parser
from provisioning.base.files import write_named
from provisioning.base.findings import Report, Severity
from provisioning.base.foreign import one_line, visible
from provisioning.base.rendering import (
    LOG,
    NO_MATTER,
    by_severity,
    duration,
    errors_of,
    plural,
    scalar_metrics,
    summary_of,
    verdict,
)
from provisioning.base.units import size

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATES = Path(__file__).with_name("templates")
FIX = "choose another with -o or --reports"
SHOWN_ERRORS = 8
"""At the top; the others are in the table of findings."""
SYMBOLS = {"pass": "✓", "fail": "✗", "error": "✗", "did not run": "✗", "skipped": "–", "not run": "–"}


def html(reports: Sequence[Report], folder: Path | None = None) -> str:
    """The page. It links to files below `folder`, where it is written."""
    programs = programs_of(reports)
    shown = programs.worst_first if programs else ()
    stages = [report for report in reports if verdict(report) != "not run"]
    ranks = {severity: rank for rank, severity in enumerate(Severity)}
    # An error is shown once: at its program, else at the top, else in the table.
    at_programs = {finding for program in shown for finding in program.findings}
    errors = [finding for finding in errors_of(reports) if finding not in at_programs]
    findings = [
        (report.stage, finding)
        for report in stages
        for finding in report.findings
        if finding.severity is not Severity.ERROR or any(finding is error for error in errors[SHOWN_ERRORS:])
    ]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            style=(TEMPLATES / "page.css").read_text(encoding="utf-8"),
            script=(TEMPLATES / "page.js").read_text(encoding="utf-8"),
            reports=reports,
            outcome=worst(reports).value,
            headline=headline(reports),
            started=min((report.started for report in reports if report.started), default=""),
            symbols=SYMBOLS,
            no_matter=NO_MATTER,
            log=LOG,
            href=partial(_href, folder=folder),
            errors=errors[:SHOWN_ERRORS],
            more_errors=len(errors[SHOWN_ERRORS:]),
            models=models_of(reports),
            anchors={program.name: program.anchor for program in shown},
            programs=programs,
            figure_names=list(TEXT_FIGURES.values()),
            findings=sorted(findings, key=lambda pair: ranks[pair[1].severity]),
            ranks=ranks,
            severities=by_severity(finding for _, finding in findings),
        )
    )


def _href(file: str, folder: Path | None) -> str:
    """A relative link from a page in `folder` to a file below it; empty for a file elsewhere."""
    whole = (Parser.user_folder() / file).absolute()
    relative = ".." if folder is None else os.path.relpath(whole, folder.absolute())
    return "" if relative.startswith("..") else quote(relative, errors="replace")


@cache
def _environment() -> Environment:
    # Late, because it takes 0.1 s, which a stage that writes no page should not wait for.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    shared = (one_line, plural, size, page_of, verdict, summary_of, duration, scalar_metrics)
    filters = (*shared, breakable, digest, day, minute)
    environment.filters |= {function.__name__: function for function in filters}
    return environment


def _shown(value: object) -> object:
    """Markup is of a macro or of our own files, and holds what went through here already."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def breakable(text: str, after: str) -> Markup:
    """A name in which a line may break only after these characters."""
    from markupsafe import Markup

    return Markup("<wbr>").join(re.split(rf"(?<=[{after}])(?=\w)", one_line(text)))


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def day(started: str) -> str:
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d\+00:00$", r"\1 \2 UTC", started)


def minute(started: str) -> str:
    """Hours and minutes: all reports of a run began within a day."""
    return re.sub(r"^.*T(\d\d:\d\d):\d\d\+00:00$", r"\1", started)


def publish(reports: Sequence[Report], directory: Path, environ: Mapping[str, str]) -> list[Path]:
    """Write the page and JUnit beside the reports, and in a job on GitHub its summary."""
    written = {directory / "index.html": html(reports, directory), directory / "junit.xml": junit(reports)}
    for path, text in written.items():
        write_named(path, text, fix=FIX)
    if summary := environ.get("GITHUB_STEP_SUMMARY"):
        write_named(Path(summary), markdown(reports), append=True)
    return list(written)
