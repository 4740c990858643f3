"""The page of all reports and the summary of a job, by jinja2 templates, and what both show.

What a template shows is always text: it cannot become markup, nor hide. The page is one file: style and
script are in it, and its policy lets nothing else load or run.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ci.diagnose.rules import page_of
from ci.report.collect import (
    LANES,
    ORDER,
    Row,
    entries,
    in_unit,
    mapping,
    number,
    of_models,
    rows_of,
    verdict_of,
    word,
)
from ci.report.summary import headline, worst
from provisioning.base.command_line import Parser
from provisioning.base.findings import Finding, Report, Severity
from provisioning.base.foreign import one_line, visible
from provisioning.base.rendering import (
    HARMLESS,
    LOG,
    by_severity,
    duration,
    errors_of,
    notable_artifacts,
    plural,
    summary_of,
    verdict,
)
from provisioning.base.units import in_decibels, size

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATES = Path(__file__).with_name("templates")

# Programs, in one form for all lanes

LANES_OF_PAGE = {**LANES, "check": "check"}
STAGES = {"executorch": ("test_lowering", "test_emulator")}
"""By lane: the stage that compiles its programs, and the one that runs them. Others have one for both."""
COSTS = {
    "ddr_read": "DDR read",
    "ddr_written": "DDR written",
    "ddr_spilled": "spilled",
    "ddr_filled": "filled",
    "pte_bytes": ".pte",
    "context_bytes": "context",
    "cpu_seconds": "CPU time of compiling",
    "bytes": "size of the binaries",
}
SHOWN_OPERATORS = 6


@dataclass(frozen=True, slots=True)
class ShownFigure:
    name: str
    text: str
    good: bool = True
    """False for one that its threshold or its baseline refuses."""


@dataclass(frozen=True, slots=True)
class ProgramView:
    lane: str
    name: str
    case: str
    scheme: str
    label: str
    """The program's name in the cell of its case and scheme."""
    verdict: str
    brief: str
    findings: Collection[Finding]
    partition: Sequence[ShownFigure]
    """The graph in order: what runs on the HTP, and what runs on the CPU in between."""
    figures: Mapping[str, Sequence[ShownFigure]]
    """By title."""
    slices: Sequence[str]
    commands: Sequence[str]

    @property
    def anchor(self) -> str:
        return f"{self.lane}-{quote(self.name, errors='replace')}"


def programs_of(reports: Iterable[Report]) -> list[ProgramView]:
    """The programs of all lanes in the suite's order."""
    rows: dict[tuple[str, str], dict[str, Row]] = {}
    findings: dict[tuple[str, str], dict[tuple[str, str], Finding]] = {}
    for report in reports:
        if not (lane := LANES_OF_PAGE.get(report.stage)):
            continue
        for name, values in rows_of(report, "programs").items():
            rows.setdefault((lane, name), {})[report.stage] = values
        for finding in report.findings:
            # Two stages report a program that was not compiled; show it once.
            same = findings.setdefault((lane, finding.subject), {})
            same.setdefault((finding.rule, finding.message), finding)
    return [
        _program(lane, name, row, findings.get((lane, name), {}).values())
        for (lane, name), row in rows.items()
    ]


def _program(lane: str, name: str, rows: Mapping[str, Row], findings: Collection[Finding]) -> ProgramView:
    first = next(iter(rows.values()))
    compiled, ran = (rows.get(stage, {}) for stage in STAGES.get(lane, (*rows, *rows)))
    scheme = word(first, "scheme") or word(first, "precision")
    label = f"{word(first, 'soc')} {word(first, 'run').removeprefix(scheme).lstrip('-')}".strip()
    other_build = word(compiled, "baseline_build_id")
    figures = {
        "Accuracy on the emulator": [*_accuracy(ran), *_on_text(mapping(ran.get("figures")))],
        "Each part alone: SQNR against float": [*_parts(ran)],
        f"Cost (the baseline is of QNN {other_build})" if other_build else "Cost": [
            *_costs(compiled, {finding.rule for finding in findings})
        ],
    }
    return ProgramView(
        lane,
        name,
        word(first, "case") or name,
        scheme,
        f"{label} ONNX" if lane == "onnx" else label,
        verdict_of(*rows.values()),
        ", ".join(_brief(compiled, ran, rows.values())),
        findings,
        [_part(row) for row in map(mapping, entries(compiled.get("partition")))],
        {title: shown for title, shown in figures.items() if shown},
        [entry for entry in entries(ran.get("slices")) if isinstance(entry, str)],
        [command for row in rows.values() if (command := word(row, "command"))],
    )


def _brief(compiled: Row, ran: Row, rows: Iterable[Row]) -> Iterator[str]:
    if "delegates" in compiled:
        yield plural(int(number(compiled, "delegates") or 0), "delegate")
        yield f"{int(number(compiled, 'cpu_operators') or 0)} on the CPU"
    yield from filter(None, [word(ran, "through")])
    figures = mapping(ran.get("figures"))
    if (sqnr := number(figures, "sqnr_db")) is not None:
        yield in_unit("sqnr_db", sqnr)
    if (share := number(figures, "agreement")) is not None:
        yield f"{share:.6g} equal"
    if all(row.get("cached") for row in rows):
        yield "cached"


def _part(row: Row) -> ShownFigure:
    count = plural(int(number(row, "count") or 0), "operator")
    where = word(row, "where")
    counts = mapping(row.get("operators"))
    operators = sorted(counts, key=lambda name: (-(number(counts, name) or 0), name))
    listed = [
        f"{name.removeprefix('aten.').removesuffix('.default')} × {counts[name]}"
        for name in operators[:SHOWN_OPERATORS]
    ]
    if more := len(operators) - len(listed):
        listed.append(f"and {plural(more, 'kind')} more")
    return ShownFigure(f"{where.upper()}: {count}", ", ".join(listed), good=where != "cpu")


def _accuracy(row: Row) -> Iterator[ShownFigure]:
    from ci.suite.accuracy import FIGURES, LESS_IS_BETTER

    figures, thresholds = mapping(row.get("figures")), mapping(row.get("thresholds"))
    for key, name in FIGURES.items():
        value, mark = number(figures, key), number(thresholds, key)
        if value is None:
            continue
        if mark is None:
            yield ShownFigure(name, in_unit(key, value))
        elif key in LESS_IS_BETTER:
            yield ShownFigure(name, f"{in_unit(key, value)} (at most {in_unit(key, mark)})", value <= mark)
        else:
            yield ShownFigure(name, f"{in_unit(key, value)} (at least {in_unit(key, mark)})", value >= mark)


def _on_text(figures: Row) -> Iterator[ShownFigure]:
    """How a language model reads held-out text, with the standard errors."""
    for reader, values in figures.items():
        for key, figure in mapping(values).items():
            value, error = number(mapping(figure), "value"), number(mapping(figure), "error")
            if value is not None:
                text = f"{value:.4g}" if error is None else f"{value:.4g} ± {error:.2g}"
                yield ShownFigure(f"{reader}: {key}".replace("_", " "), text)


def _parts(row: Row) -> Iterator[ShownFigure]:
    for layer in map(mapping, entries(row.get("parts"))):
        if (value := number(layer, "db")) is None:
            continue
        least, cpu = number(layer, "least_db"), number(layer, "cpu_db")
        text = f"{word(layer, 'output')} {in_decibels(value)}"
        text += "" if least is None else f" (at least {least:.1f})"
        text += "" if cpu is None else f", {cpu:.1f} on the CPU"
        yield ShownFigure(word(layer, "name"), text, good=least is None or value >= least)


def _costs(row: Row, rules: Collection[str]) -> Iterator[ShownFigure]:
    """The stage decides which cost is bad, because it knows the tolerances."""
    from ci.suite.accuracy import cost_rule

    values, agreed = mapping(row.get("costs")), mapping(row.get("baseline"))
    for key, title in COSTS.items():
        value, mark = number(values, key), number(agreed, key)
        if value is None:
            value = number(row, key)
        if value is None or (not value and not mark):
            continue
        text = in_unit(key, value) + _beside(key, value, mark)
        yield ShownFigure(title, text, good=cost_rule(key) not in rules)


def _beside(key: str, value: float, agreed: float | None) -> str:
    if agreed is None:
        return " (no baseline)"
    change = f"{100 * (value - agreed) / agreed:+.1f} %" if agreed else ""
    return " (as agreed)" if value == agreed else f" ({change or 'more'}, baseline {in_unit(key, agreed)})"


# What was done of one model


@dataclass(frozen=True, slots=True)
class ModelView:
    verb: str
    name: str
    verdict: str
    when: str
    command: str
    said: Sequence[str]

    @property
    def brief(self) -> str:
        """The first line with a figure in dB, as people ask for it first; else the first line."""
        return next((line for line in self.said if " dB" in line), next(iter(self.said), "nothing"))


def models_of(reports: Sequence[Report]) -> list[ModelView]:
    """The latest first."""
    models = [
        ModelView(
            report.stage,
            name,
            verdict_of(row),
            word(row, "when"),
            word(row, "command"),
            [line for line in entries(row.get("said")) if isinstance(line, str)],
        )
        for report in filter(of_models, reports)
        for name, row in rows_of(report, "models").items()
    ]
    return sorted(models, key=lambda model: model.when, reverse=True)


# The page, and the summary of a job

SHOWN_ERRORS = 8
"""At the top; the others are in the table of findings."""
LIMIT = 1024 * 1024 - 4096
"""GitHub refuses a step's summary of more than 1 MiB; some is left for what else the step writes."""
ROOM_FOR_NOTE = 200
"""Bytes that are kept for saying how much was left out."""
# All ASCII punctuation may be escaped in Markdown; a backslash before a letter would be shown.
_PUNCTUATION = re.compile(r"[\\`*_{}\[\]()#+\-.!|~$@:/]")


@dataclass(frozen=True, slots=True)
class Page:
    """All that both show."""

    reports: Sequence[Report]
    outcome: str
    headline: str
    programs: list[ProgramView]
    """The worst first."""
    cases: Mapping[str, Sequence[ProgramView]]
    schemes: Sequence[str]
    models: list[ModelView]
    errors: Sequence[Finding]
    """Those that stand at no program."""


def page_of_reports(reports: Sequence[Report]) -> Page:
    programs = programs_of(reports)
    cases: dict[str, list[ProgramView]] = {}
    for program in programs:
        cases.setdefault(program.case, []).append(program)
    at_programs = {finding for program in programs for finding in program.findings}
    return Page(
        reports,
        worst(reports).value,
        headline(reports),
        sorted(programs, key=lambda program: (ORDER.index(program.verdict), program.name)),
        dict(sorted(cases.items(), key=lambda case: all(program.verdict == "pass" for program in case[1]))),
        # Float first, then by name.
        sorted({program.scheme for program in programs}, key=lambda name: (not name.startswith("fp"), name)),
        models_of(reports),
        [finding for finding in errors_of(reports) if finding not in at_programs],
    )


def html(reports: Sequence[Report], folder: Path | None = None) -> str:
    """The page. It links to files below `folder`, where it is written."""
    page = page_of_reports(reports)
    ranks = {severity: rank for rank, severity in enumerate(Severity)}
    # An error is shown once: at its program, else at the top, else in the table.
    below = {id(error) for error in page.errors[SHOWN_ERRORS:]}
    findings = [
        (report.stage, finding)
        for report in reports
        for finding in report.findings
        if finding.severity is not Severity.ERROR or id(finding) in below
    ]
    return _render(
        "report.html.j2",
        page,
        style=(TEMPLATES / "page.css").read_text(encoding="utf-8"),
        script=(TEMPLATES / "page.js").read_text(encoding="utf-8"),
        started=min((report.started for report in reports if report.started), default=""),
        log=LOG,
        href=partial(_href, folder=folder),
        shown_errors=SHOWN_ERRORS,
        anchors={program.name: program.anchor for program in page.programs},
        findings=sorted(findings, key=lambda pair: ranks[pair[1].severity]),
        ranks=ranks,
        severities=by_severity(finding for _, finding in findings),
    )


def markdown(reports: Sequence[Report], *, limit: int = LIMIT) -> str:
    """Verdict, models, a table of stages, then their findings, failed ones first; at most `limit` bytes."""
    marks = {"pass": "✅", "skipped": "⚪", "fail": "❌", "error": "❌", "did not run": "❌"}
    icons = {Severity.ERROR: "🔴", Severity.WARNING: "🟡", Severity.NOTE: "🔵"}
    worst_first = sorted(reports, key=lambda report: verdict(report) in HARMLESS)
    page = page_of_reports(reports)
    text = _render("summary.md.j2", page, marks=marks, icons=icons, worst_first=worst_first)
    lines = text.splitlines()
    sizes = list(itertools.accumulate(len(line.encode()) + 1 for line in lines))
    if sizes[-1] > limit:
        shown = sum(size <= limit - ROOM_FOR_NOTE for size in sizes)
        rows = sum(line.startswith("| ") for line in lines[shown:])
        left_out = f"{plural(rows, 'row')} left out" if rows else "The rest is left out"
        note = f"{left_out} for lack of room; the report files have them all."
        lines[shown:] = ["", f"**{note}**"]
    return "\n".join(lines) + "\n"


def cell(text: str) -> Markup:
    """Any text as the content of a table cell that shows exactly it."""
    from markupsafe import Markup

    lines = visible(text).strip().split("\n")
    # An entity, not a backslash: `\|` ends a cell in some viewers, and @ and : would still link.
    return Markup("<br>").join(
        Markup(_PUNCTUATION.sub(lambda match: f"&#{ord(match.group())};", escape(line, quote=False)))
        for line in lines
    )


def code(text: str) -> str:
    """The same in a line of code, for comments: elsewhere GitHub makes mentions and links of text, also where
    it is written as entities."""
    return f"<code>{cell(one_line(text))}</code>"


# Templates


def _render(template: str, page: Page, **more: object) -> str:
    shared = {field.name: getattr(page, field.name) for field in fields(page)}
    return environment().get_template(template).render(**shared, **more)


@cache
def environment() -> Environment:
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
    shared = (one_line, plural, size, page_of, verdict, summary_of, duration, by_severity)
    filters = (*shared, notable_artifacts, digest, cell)
    environment.filters |= {function.__name__: function for function in filters}
    return environment


def _shown(value: object) -> object:
    """Markup is of a macro or of our own files, and holds what went through here already."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _href(file: str, folder: Path | None) -> str:
    """A relative link from a page in `folder` to a file below it; empty for a file elsewhere."""
    whole = (Parser.user_folder() / file).absolute()
    relative = ".." if folder is None else os.path.relpath(whole, folder.absolute())
    return "" if relative.startswith("..") else quote(relative, errors="replace")


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
