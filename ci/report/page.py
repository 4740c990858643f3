"""Render the page of all reports and the summary of a job with jinja2 templates.

Whatever a template shows is text: it cannot become markup, or hide. The page is one file: style and script
are in it, and its policy lets nothing else load or run."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import re
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ci.diagnose.rules import page_of
from ci.report.collect import show_figure
from ci.report.programs import ReportedProgram, cost_titles, models_of, programs_of
from ci.report.summary import headline, worst
from provisioning.base.findings import Report, Severity
from provisioning.base.foreign import one_line, visible
from provisioning.base.parser import Parser
from provisioning.base.rendering import (
    HARMLESS,
    LOG,
    alike_in_one,
    duration,
    errors_of,
    group_by_severity,
    notable_artifacts,
    plural,
    summary_of,
    verdict,
)
from provisioning.base.units import size

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATES = Path(__file__).with_name("templates")

SHOWN_ERRORS = 8
"""The top shows this many errors; the others are in the table of findings."""
LIMIT = 1024 * 1024 - 4096
"""GitHub refuses a step's summary of more than 1 MiB; some of that is left for other text of the step."""
ROOM_FOR_NOTE = 200
"""The bytes kept for a note that says how much was left out."""
STEERING = re.compile(
    r"[\\`*{}\[\]#!|~$@<>&]"  # marks of Markdown and HTML, mentions and numbers of issues
    r"|(?<![A-Za-z\d])_|_(?![A-Za-z\d])"  # inside a word it is no mark
    r"|:(?=//)|(?<=www)\.|:(?=\w+:)"  # addresses and emojis
    r"|(?<=GH)-",
    re.IGNORECASE,
)
"""Text that Markdown, HTML or GitHub may interpret. It is written as an entity: behind a backslash, `|` ends
a cell in some viewers, and @ and : would still link."""


def html(reports: Sequence[Report], folder: Path | None = None) -> str:
    """Render the page. It links to files below `folder`, where it is written."""
    from ci.suite.figures import FIGURES, LESS_IS_BETTER, cost_rule

    programs = programs_of(reports)
    at_programs = {finding for program in programs for finding in program.findings}
    errors = [finding for finding in errors_of(reports) if finding not in at_programs]
    # An error is shown once: at its program, else at the top, else in the table.
    below = {id(error) for error in errors[SHOWN_ERRORS:]}
    findings = []
    for report in reports:
        shown = [
            finding
            for finding in report.findings
            if finding.severity is not Severity.ERROR or id(finding) in below
        ]
        findings += [(report.stage, finding) for finding in alike_in_one(shown)]
    ranks = list(Severity)
    return _render(
        "report.html.j2",
        reports,
        programs,
        style=(TEMPLATES / "page.css").read_text(encoding="utf-8"),
        script=(TEMPLATES / "page.js").read_text(encoding="utf-8"),
        started=min((report.started for report in reports if report.started), default=""),
        log=LOG,
        href=partial(_href, folder=folder),
        # Float first, then by name.
        schemes=sorted({program.scheme for program in programs}, key=lambda name: (name[:2] != "fp", name)),
        anchors={program.name: program.anchor for program in programs},
        errors=errors,
        shown_errors=SHOWN_ERRORS,
        findings=sorted(findings, key=lambda pair: ranks.index(pair[1].severity)),
        figure_names=FIGURES,
        less_is_better=LESS_IS_BETTER,
        cost_names=cost_titles(),
        cost_rule=cost_rule,
        show_figure=show_figure,
    )


def markdown(reports: Sequence[Report], *, limit: int = LIMIT) -> str:
    """Render the verdict, the models, a table of stages, then their findings, failed ones first; at most
    `limit` bytes."""
    marks = {"pass": "✅", "skipped": "⚪", "fail": "❌", "error": "❌", "did not run": "❌"}
    icons = {Severity.ERROR: "🔴", Severity.WARNING: "🟡", Severity.NOTE: "🔵"}
    worst_first = sorted(reports, key=lambda report: verdict(report) in HARMLESS)
    text = _render(
        "summary.md.j2", reports, programs_of(reports), marks=marks, icons=icons, worst_first=worst_first
    )
    lines = text.splitlines()
    sizes = list(itertools.accumulate(len(line.encode()) + 1 for line in lines))
    if sizes[-1] > limit:
        count = sum(size <= limit - ROOM_FOR_NOTE for size in sizes)
        rows = sum(line.startswith("| ") for line in lines[count:])
        left_out = f"{plural(rows, 'row')} left out" if rows else "The rest is left out"
        note = f"{left_out} for lack of room; the report files have them all."
        lines[count:] = ["", f"**{note}**"]
    return "\n".join(lines) + "\n"


def cell(text: str) -> Markup:
    """Turn any text into the content of a table cell that shows exactly this text."""
    from markupsafe import Markup

    shown = STEERING.sub(lambda sign: f"&#{ord(sign[0])};", visible(text).strip())
    return Markup(shown.replace("\n", "<br>"))


def code(text: str) -> str:
    """Turn any text into code for a comment that shows exactly this text: outside code, GitHub makes mentions
    and links of text, even if it is written as entities."""
    return f"<code>{cell(one_line(text))}</code>"


def _render(name: str, reports: Sequence[Report], programs: Sequence[ReportedProgram], **more: object) -> str:
    template = environment().get_template(name)
    return template.render(
        reports=reports,
        programs=programs,
        models=models_of(reports),
        outcome=worst(reports).value,
        headline=headline(reports),
        **more,
    )


@cache
def environment() -> Environment:
    # Late, because it takes 0.1 s, which a stage that writes no page should not wait for.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    shared = (one_line, plural, size, page_of, verdict, summary_of, duration, group_by_severity)
    filters = (*shared, notable_artifacts, digest, cell)
    environment.filters |= {function.__name__: function for function in filters}
    return environment


def _finalize(value: object) -> object:
    """Make hidden characters of a value visible. Markup stays as it is: it comes from a macro or our own
    files, and its values went through here already."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _href(file: str, folder: Path | None) -> str:
    """A relative link from a page in `folder` to a file below it; empty for a file elsewhere."""
    path = (Parser.user_folder() / file).absolute()
    relative = ".." if folder is None else os.path.relpath(path, folder.absolute())
    return "" if relative.startswith("..") else quote(relative, errors="replace")


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
