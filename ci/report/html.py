"""One self-contained page of all reports.

Built as a tree of elements, so that no text of a report can become markup; style and script are inlined, and
the page's own policy allows nothing else to load or run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from provisioning.findings import Artifact, Finding, Report, Severity
from provisioning.rendering.text import (
    Verdict,
    by_severity,
    duration,
    found,
    headline,
    one_line,
    plural,
    scalar_metrics,
    size,
    verdict,
    visible,
    worst,
)

SYMBOLS: dict[Verdict, str] = {"pass": "✓", "fail": "✗", "error": "✗", "did not run": "✗", "skipped": "–"}


def html(reports: Sequence[Report]) -> str:
    """The page, as text of a file that needs no other."""
    style, script = (_asset(name) for name in ("page.css", "page.js"))
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    head = _element(
        "head",
        _element("meta", charset="utf-8"),
        _element("meta", http_equiv="Content-Security-Policy", content=policy),
        _element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _element("title", f"{worst(reports).value.upper()}: {headline(reports)}"),
        _element("style", style),
    )
    main = _element("main", _verdict(reports), _stages(reports))
    for section in (_findings(reports), _artifacts(reports), _metrics(reports)):
        if section is not None:
            main.append(section)
    body = _element("body", main, _element("script", script))
    page = _element("html", head, body, lang="en")
    return "<!DOCTYPE html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _element(tag: str, *children: Element | str, **attributes: str) -> Element:
    """`class_` and `data_key` stand for class and data-key."""
    made = Element(tag, {name.rstrip("_").replace("_", "-"): visible(v) for name, v in attributes.items()})
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            made.append(child)
            last = child
        elif last is None:
            made.text = (made.text or "") + visible(child)
        else:
            last.tail = (last.tail or "") + visible(child)
    return made


def _badge(word: str, symbol: str = "") -> Element:
    return _element("span", f"{symbol} {word}".strip(), class_=f"badge {word.replace(' ', '-')}")


def _table(
    identity: str, caption: str, columns: Sequence[tuple[str, str]], rows: Iterable[Element]
) -> Element:
    head = _element("tr", *(_element("th", name, scope="col", **_class(kind)) for name, kind in columns))
    table = _element(
        "table",
        _element("caption", caption),
        _element("thead", head),
        _element("tbody", *rows),
        id=identity,
        class_="sortable stack",
    )
    return _element("div", table, class_="scroll")


def _class(kind: str) -> dict[str, str]:
    return {"class_": kind} if kind else {}


def _number(text: str, key: float, label: str) -> Element:
    return _element("td", text, class_="number", data_key=f"{key:.6f}", data_label=label)


def _short(text: str, label: str) -> Element:
    return _element("td", text, class_="short", data_label=label)


def _path(text: str) -> Element:
    """Breaks after slashes and dots rather than anywhere."""
    code = _element("code")
    for piece in re.split(r"(?<=[/.])(?=\w)", one_line(text)):
        if len(code) or code.text:
            code.append(_element("wbr"))
            code[-1].tail = piece
        else:
            code.text = piece
    return code


def _when(started: str) -> str:
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d\+00:00$", r"\1 \2 UTC", started)


def _verdict(reports: Sequence[Report]) -> Element:
    overall = worst(reports)
    head = headline(reports)
    lines = [_element("h1", f"{SYMBOLS[overall.value]} {head[:1].upper()}{head[1:]}")]
    started = min((report.started for report in reports if report.started), default="")
    if started:
        lines.append(
            _element("p", "started ", _element("time", _when(started), datetime=started), class_="soft")
        )
    for report in reports:
        if verdict(report) not in ("pass", "skipped"):
            line = _element("p", _element("strong", report.stage), f" {verdict(report)}: {found(report)}. ")
            line.extend([_element("span", "Repeat with: ", class_="soft"), _element("code", report.command)])
            lines.append(line)
    return _element("header", *lines, class_=f"verdict {overall.value}")


def _stages(reports: Sequence[Report]) -> Element:
    columns = [
        ("Stage", ""),
        ("Verdict", ""),
        ("Profile", ""),
        ("Target", ""),
        ("Found", ""),
        ("Time", "number"),
    ]
    rows = [
        _element(
            "tr",
            _element("th", report.stage, scope="row"),
            _element("td", _badge(verdict(report), SYMBOLS[verdict(report)])),
            _short(report.profile, "profile"),
            _short(report.target, "target"),
            _element("td", found(report)),
            _number(duration(report), report.seconds, "time"),
        )
        for report in reports
    ]
    return _element(
        "section", _element("h2", "Stages"), _table("stages", "What ran, in order", columns, rows)
    )


def _findings(reports: Sequence[Report]) -> Element | None:
    rows: list[Element] = []
    ranks = {severity: rank for rank, severity in enumerate(Severity)}
    every = [(report, finding) for report in reports for finding in report.findings]
    for report, finding in sorted(every, key=lambda pair: ranks[pair[1].severity]):
        rows.append(_finding(report, finding, ranks[finding.severity]))
    if not rows:
        return None
    columns = [("Severity", ""), ("Stage", ""), ("Rule", ""), ("Subject", ""), ("What, and what to do", "")]
    caption = f"{plural(len(rows), 'finding')}, worst first"
    return _element(
        "section",
        _element("h2", "Findings"),
        _filters(reports),
        _table("findings", caption, columns, rows),
    )


def _finding(report: Report, finding: Finding, rank: int) -> Element:
    says = _element("td", _element("span", finding.message, class_="text"))
    if finding.remedy:
        says.append(_element("span", f"→ {finding.remedy}", class_="remedy text"))
    return _element(
        "tr",
        _element("td", _badge(finding.severity.value), data_key=str(rank)),
        _short(report.stage, "stage"),
        _element("td", _element("code", one_line(finding.rule)), class_="short", data_label="rule"),
        _element("td", _path(finding.subject), class_="subject"),
        says,
        data_severity=finding.severity.value,
        data_stage=report.stage,
    )


def _filters(reports: Sequence[Report]) -> Element:
    """Hidden until the script that makes them work has run."""
    groups = by_severity(finding for report in reports for finding in report.findings)
    stages = [report.stage for report in reports if report.findings]
    boxes = [
        _element(
            "label",
            _element("input", type="checkbox", value=severity.value, checked="checked"),
            f" {plural(len(group), severity.value)}",
        )
        for severity, group in groups.items()
    ]
    options = [_element("option", "all stages", value="")]
    options += [_element("option", stage, value=stage) for stage in dict.fromkeys(stages)]
    return _element(
        "form",
        _element(
            "input", type="search", name="words", placeholder="Filter by words", aria_label="Filter by words"
        ),
        _element("select", *options, name="stage", aria_label="Stage"),
        *boxes,
        _element("output", id="shown", class_="soft"),
        class_="filters",
        hidden="hidden",
    )


def _artifacts(reports: Sequence[Report]) -> Element | None:
    every: list[tuple[Report, Artifact]] = [(report, a) for report in reports for a in report.artifacts]
    if not every:
        return None
    columns = [("Kind", ""), ("Stage", ""), ("Path", ""), ("Size", "number"), ("SHA-256", "")]
    rows = [
        _element(
            "tr",
            _element("th", artifact.kind, scope="row"),
            _short(report.stage, "stage"),
            _element("td", _path(artifact.path), class_="subject"),
            _number(size(artifact.size), artifact.size, "size"),
            _element("td", _element("code", artifact.sha256)),
        )
        for report, artifact in every
    ]
    caption = f"{plural(len(rows), 'artifact')}, {size(sum(artifact.size for _, artifact in every))}"
    return _element("section", _element("h2", "Artifacts"), _table("artifacts", caption, columns, rows))


def _metrics(reports: Sequence[Report]) -> Element | None:
    section = _element("section", _element("h2", "Figures"))
    for report in reports:
        if metrics := scalar_metrics(report):
            rows = [
                part
                for name, value in metrics.items()
                for part in (_element("dt", name), _element("dd", value))
            ]
            section.extend([_element("h3", report.stage), _element("dl", *rows)])
    return section if len(section) > 1 else None
