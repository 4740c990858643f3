"""A job summary in GitHub's Markdown."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator, Sequence

from ci.report.values import Row, in_unit, mapping, number, rows_of
from provisioning.base.findings import Report, Severity
from provisioning.base.foreign import one_line, visible
from provisioning.base.rendering.text import (
    NO_MATTER,
    by_severity,
    duration,
    headline,
    models_in,
    notable_artifacts,
    plural,
    scalar_metrics,
    summary_of,
    verdict,
    worst,
)
from provisioning.base.rules import page_of
from provisioning.base.units import size

LIMIT = 1024 * 1024 - 4096
"""GitHub refuses a step's summary of more than 1 MiB; some is left for what else the step writes."""

ROOM_FOR_NOTE = 200
"""Bytes that are kept for saying how much was left out."""

MARKS = {"pass": "✅", "fail": "❌", "error": "❌", "did not run": "❌", "skipped": "⚪", "not run": "⚪"}
SEVERITY_MARKS = {Severity.ERROR: "🔴", Severity.WARNING: "🟡", Severity.NOTE: "🔵"}

# All ASCII punctuation may be escaped in Markdown; a backslash before a letter would be shown.
_PUNCTUATION = re.compile(r"[\\`*_{}\[\]()#+\-.!|~$@:/]")


def markdown(reports: Sequence[Report], *, limit: int = LIMIT) -> str:
    """Verdict, models, a table of stages, then their findings, failed ones first; at most `limit` bytes."""
    lines = list(_lines(reports))
    sizes = list(itertools.accumulate(len(line.encode()) + 1 for line in lines))
    if sizes[-1] > limit:
        shown = sum(size <= limit - ROOM_FOR_NOTE for size in sizes)
        rows = sum(line.startswith("| ") for line in lines[shown:])
        left_out = f"{plural(rows, 'row')} left out" if rows else "The rest is left out"
        note = f"{left_out} for lack of room; the report files have them all."
        lines[shown:] = ["", f"**{note}**"]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Any text as the content of a table cell that shows exactly it."""
    lines = visible(text).strip().split("\n")
    return "<br>".join(_PUNCTUATION.sub(_entity, html.escape(line, quote=False)) for line in lines)


def code(text: str) -> str:
    """The same in a line of code, for comments: elsewhere GitHub makes mentions and links of text, also where
    it is written as entities."""
    return f"<code>{cell(one_line(text))}</code>"


def _entity(match: re.Match[str]) -> str:
    # An entity, not a backslash: `\|` ends a cell in some viewers, and @ and : would still link.
    return f"&#{ord(match.group())};"


def _lines(reports: Sequence[Report]) -> Iterator[str]:
    yield f"## {MARKS[worst(reports).value]} {headline(reports)}"
    yield ""
    yield from _models(reports)
    yield "| stage | verdict | profile | target | found | time |"
    yield "| --- | --- | --- | --- | --- | ---: |"
    for report in reports:
        word = verdict(report)
        cells = (
            cell(report.stage),
            f"{MARKS[word]} {word}",
            cell(report.profile),
            cell(report.target),
            cell(summary_of(report)),
            duration(report),
        )
        yield f"| {' | '.join(cells)} |"
    for report in sorted(reports, key=lambda report: verdict(report) in {"pass", *NO_MATTER}):
        yield from _details(report)


FIGURES = {
    "sqnr_db": "SQNR",
    "agreement": "equal elements",
    "top1": "top-1",
    "cpu_operators": "operators on the CPU",
    "pte_bytes": ".pte",
    "context_bytes": "context",
    "ddr_read": "DDR read",
    "ddr_written": "DDR written",
}
"""What is said of a model here."""


def _models(reports: Sequence[Report]) -> Iterator[str]:
    """The models that failed first, each with its figures."""
    passed = models_in(reports)
    rows: dict[str, list[Row]] = {name: [] for name in passed}
    for report in reports:
        for table in ("programs", "models"):
            for name, row in rows_of(report, table).items():
                rows[name].append(row)
    if not rows:
        return
    yield "| | model | figures |"
    yield "| --- | --- | --- |"
    for name in sorted(rows, key=lambda name: passed[name]):
        figures = {key: value for row in rows[name] for key, value in _numbers(row).items()}
        shown = [f"{FIGURES[key]} {in_unit(key, figures[key])}" for key in FIGURES if key in figures]
        cells = (MARKS["pass" if passed[name] else "fail"], cell(name), cell(", ".join(shown)))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _numbers(row: Row) -> dict[str, float]:
    """The figures of a program's row, which may have any form."""
    tables = (row, mapping(row.get("figures")), mapping(row.get("costs")))
    return {key: value for table in tables for key in FIGURES if (value := number(table, key)) is not None}


def _details(report: Report) -> Iterator[str]:
    metrics, artifacts = scalar_metrics(report), notable_artifacts(report)
    if not (report.findings or artifacts or metrics) or verdict(report) in {"did not run", *NO_MATTER}:
        # The table shows all of a stage that did not run.
        return
    yield ""
    yield f"### {cell(report.stage)}"
    if report.findings:
        yield ""
        yield "| | rule | subject | what | fix |"
        yield "| --- | --- | --- | --- | --- |"
        for severity, group in by_severity(report.findings).items():
            for f in group:
                rule, *cells = map(cell, (f.rule, f"{f.subject}\n{f.beside}".strip(), f.message, f.fix))
                page = page_of(f.rule)
                shown = [SEVERITY_MARKS[severity], f"[{rule}]({page})" if page else rule, *cells]
                yield f"| {' | '.join(shown)} |"
    if artifacts:
        yield ""
        yield "| artifact | path | size | sha256 |"
        yield "| --- | --- | ---: | --- |"
        for a in artifacts:
            yield f"| {cell(a.kind)} | {cell(a.path)} | {size(a.size)} | {cell(a.sha256[:12])} |"
    if metrics:
        yield ""
        yield " · ".join(f"{cell(name)} **{cell(value)}**" for name, value in metrics.items())
    if verdict(report) not in {"pass", *NO_MATTER} and report.command:
        yield ""
        yield f"Repeat with: <code>{cell(report.command)}</code>"
