"""A report for people at a terminal: findings by severity, artifacts, figures, and the verdict last."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from provisioning.base.findings import Artifact, Finding, Report, Severity, severity_counts
from provisioning.base.foreign import one_line, visible
from provisioning.base.rendering.text import (
    by_severity,
    duration,
    errors_of,
    headline,
    notable_artifacts,
    plural,
    scalar_metrics,
    summary_of,
    verdict,
    worst,
)
from provisioning.base.units import aligned, seconds, size, wrapped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

VERDICT_COLUMNS = 15
LONG = 10_000
"""Columns of a line that no terminal's width breaks."""

SHOWN = 40
"""Findings of one severity shown; the report file has them all."""

STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
VERDICTS = {
    "pass": ("✓ PASS", "bold green"),
    "fail": ("✗ FAIL", "bold red"),
    "error": ("✗ ERROR", "bold red"),
    "did not run": ("✗ DID NOT RUN", "bold red"),
    "skipped": ("– SKIPPED", "bold yellow"),
    "not run": ("– NOT RUN", "dim"),
}


def console(report: Report, *, colour: bool = False, width: int = 100) -> str:
    """The report as text of `width` columns, ending in a verdict that is one line however long."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for severity, group in by_severity(report.findings).items():
        parts.append(Text(plural(len(group), severity.value), style=f"bold {STYLES[severity]}"))
        parts += [_finding(finding, width) for finding in group[:SHOWN]]
        if len(group) > SHOWN:
            parts.append(Text(f"  … and {len(group) - SHOWN:,} more in {report.stage}.json", style="dim"))
        parts.append(Text())
    if artifacts := notable_artifacts(report):
        parts += [_artifacts(artifacts), Text()]
    if metrics := scalar_metrics(report):
        parts += [_metrics(metrics, width), Text()]
    return rendered(Group(*parts, _verdict(report)), colour=colour, width=width)


def stage_line(report: Report, names: int, *, colour: bool = False) -> str:
    """The stage's verdict, its time and what was found; its name takes the columns of the longest."""
    from rich.text import Text

    word, style = VERDICTS[verdict(report)]
    about = "" if verdict(report) == "pass" else summary_of(report)
    line = Text(f"{word:<{VERDICT_COLUMNS}}", style=style, no_wrap=True, overflow="ignore")
    text = f"{report.stage:<{names}}  {duration(report):>10}  {about}".rstrip()
    line.append(text, style="not bold default")
    return rendered(line, colour=colour, width=LONG)


def conclusion(
    reports: Sequence[Report], more: str, *, colour: bool = False, width: int = 100, errors: int = 0
) -> str:
    """Some of the errors, a line on what is less than an error, where `more` shows it, and the verdict."""
    from rich.console import Group
    from rich.text import Text

    counts = severity_counts(finding for report in reports for finding in report.findings)
    less = [
        plural(count, kind.value) for kind, count in counts.items() if count and kind is not Severity.ERROR
    ]
    notes = [Text(f"{', '.join(less)}: {more}", style="dim", no_wrap=True, overflow="ignore")]
    parts = [*_errors(reports, width, errors), *(notes if less else []), _of_all(reports)]
    return rendered(Group(*parts), colour=colour, width=width)


def overview(reports: Sequence[Report], *, colour: bool = False, width: int = 100, errors: int = 0) -> str:
    """All stages in a table, their artifacts, some of the errors, and the verdict."""
    from rich.console import Group
    from rich.text import Text

    rows: list[tuple[str | Text, ...]] = [
        (report.stage, Text(*VERDICTS[verdict(report)]), summary_of(report), duration(report))
        for report in reports
    ]
    parts: list[RenderableType] = [
        table(("stage", "verdict", "found", "time"), rows, right=frozenset({3})),
        Text(),
    ]
    if artifacts := [artifact for report in reports for artifact in notable_artifacts(report)]:
        parts += [_artifacts(artifacts), Text()]
    parts += [*_errors(reports, width, errors), _of_all(reports)]
    return rendered(Group(*parts), colour=colour, width=width)


def _errors(reports: Sequence[Report], width: int, most: int) -> list[RenderableType]:
    from rich.text import Text

    wrong = errors_of(reports) if most else []
    parts = [_finding(finding, width) for finding in wrong[:most]]
    if len(wrong) > most:
        parts.append(Text(f"  … and {plural(len(wrong) - most, 'more error')}", style="dim"))
    return [*parts, Text()] if wrong else []


def _of_all(reports: Sequence[Report]) -> Text:
    from rich.text import Text

    word, style = VERDICTS[worst(reports).value]
    total = seconds(sum(report.seconds for report in reports))
    return Text.assemble((word, style), f"  {headline(reports)}, {total}", no_wrap=True, overflow="ignore")


def show(report: Report, stream: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """Print the report in the way this terminal supports."""
    stream = stream or sys.stdout
    colour, width = wants_colour(stream, environ), terminal_width(environ)
    write(console(report, colour=colour, width=width), stream)


def write(text: str, stream: TextIO) -> None:
    """Print; characters that the stream's encoding lacks become `?` instead of a traceback.

    If the reader has closed the pipe, the work goes on and the exit code stays the same."""
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """NO_COLOR and FORCE_COLOR decide; otherwise a terminal, or GitHub's log, which shows colours."""
    if environ.get("NO_COLOR"):
        return False
    if (environ.get("FORCE_COLOR") or "0") != "0" or environ.get("GITHUB_ACTIONS") == "true":
        return True
    return stream.isatty() and environ.get("TERM") != "dumb"


def terminal_width(environ: Mapping[str, str] = os.environ) -> int:
    """The terminal's columns, within what reads well; logs get 120."""
    columns = environ.get("COLUMNS", "")
    width = (
        int(columns) if columns.isdecimal() and int(columns) else shutil.get_terminal_size((120, 24)).columns
    )
    return min(max(width, 40), 160)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, right: frozenset[int] = frozenset()
) -> RenderableType:
    """A plain table with light rules; every cell is taken as it is, never as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for index, name in enumerate(columns):
        grid.add_column(Text(name), justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(visible(cell)) if isinstance(cell, str) else cell for cell in row))
    return grid


def rendered(renderable: RenderableType, *, colour: bool, width: int) -> str:
    console = _console(colour, width)
    console.print(renderable, crop=False)
    text = console.file.getvalue() if isinstance(console.file, io.StringIO) else ""
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _console(colour: bool, width: int) -> Console:
    from rich.console import Console

    return Console(
        file=io.StringIO(),
        width=width,
        color_system="standard" if colour else None,
        force_terminal=colour,
        no_color=not colour,
        legacy_windows=False,
        _environ={},
    )


def _finding(finding: Finding, width: int) -> Text:
    """What it is about, its message and its fix. No word is broken: a path or a command can be pasted."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ignore")
    text.append(f"  {one_line(finding.rule)}", style=STYLES[finding.severity])
    text.append(f"  {one_line(finding.subject)}", style="bold")
    if finding.beside:
        text.append(f"  {one_line(finding.beside)}")
    for line in visible(finding.message).strip().splitlines():
        text.append("\n" + "\n".join(wrapped(line, width, "    ", "    ")))
    for number, line in enumerate(visible(finding.fix).strip().splitlines()):
        text.append("\n    " + ("  " if number else "→ "), style="green")
        text.append("\n".join(wrapped(line, width, " " * 6, " " * 6))[6:])
    return text


def readable(text: str, stream: TextIO) -> str:
    """On a terminal, lines of its width, none broken within a word; elsewhere the same text."""
    if not stream.isatty():
        return text
    lines: list[str] = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines += wrapped(line.lstrip(), terminal_width(), indent, indent) or [""]
    return "".join(f"{line}\n" for line in lines)


def _verdict(report: Report) -> Text:
    from rich.text import Text

    word, style = VERDICTS[verdict(report)]
    about = ", ".join(visible(part) for part in (report.profile, report.target) if part)
    return Text.assemble(
        (word, style),
        "  ",
        (visible(report.stage), "bold"),
        f"{f' ({about})' if about else ''}: {summary_of(report)}, {duration(report)}",
        no_wrap=True,
        overflow="ignore",
    )


def _artifacts(artifacts: Sequence[Artifact]) -> RenderableType:
    from rich.text import Text

    rows = [(one_line(a.kind), size(a.size), a.sha256[:12], one_line(a.path)) for a in artifacts]
    lines = aligned([("artifact", "size", "sha256", "path"), *rows])
    # A path that is longer than the line stays one word, to be pasted.
    return Text("\n".join(lines), no_wrap=True, overflow="ignore")


def _metrics(metrics: Mapping[str, str], width: int) -> RenderableType:
    from rich.text import Text

    line = " · ".join(f"{visible(name)} {value}" for name, value in metrics.items())
    return Text("\n".join(wrapped(line, width, "", "")), style="dim", no_wrap=True, overflow="ignore")
