"""The page's section on QNN builds or executorch versions side by side: the report of `compare`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from ci.report.elements import Bar, badge, bars, element
from ci.report.values import Row, entries, mapping, number
from provisioning.base.findings import Metric, Report
from provisioning.base.units import size

STAGE = "compare"
ORDER = ("worse", "better", "same")
BADGES = {"worse": "fail", "better": "pass", "same": "not-run"}
COSTS = {
    "context_bytes": "context",
    "pte_bytes": ".pte",
    "ddr_read": "DDR read",
    "cpu_seconds": "CPU seconds of compiling",
}


def comparison_section(reports: Sequence[Report]) -> Element | None:
    """None if builds were not compared."""
    report = next((each for each in reports if each.stage == STAGE), None)
    programs = mapping(report.metrics.get("comparison")) if report else {}
    if report is None or not programs:
        return None
    base = str(report.metrics.get("base"))
    section = element("section", element("h2", f"What changes beside {_title(base)}"), id="builds")
    order = _words(report.metrics.get("order")) or [base]
    verdicts = mapping(report.metrics.get("verdicts"))
    for build, counts in sorted(verdicts.items(), key=lambda each: _place(each[0], order)):
        words = ", ".join(f"{mapping(counts).get(verdict, 0)} {verdict}" for verdict in ORDER)
        section.append(element("p", f"{_title(build)}: {words}", class_="soft"))
    rows = {
        name: {
            build: mapping(mapping(row)[build])
            for build in sorted(mapping(row), key=lambda build: _place(build, order))
        }
        for name, row in programs.items()
    }
    for name in sorted(rows, key=lambda name: (ORDER.index(_worst(rows[name])), name)):
        section.append(_program(name, rows[name], base))
    return section


def _program(name: str, builds: Mapping[str, Row], base: str) -> Element:
    worst = _worst(builds)
    summary = element("summary", _judgement(worst), f" {name}")
    whole = element("details", summary, class_="program", **({"open": "open"} if worst == "worse" else {}))
    for build, row in builds.items():
        if (error := row.get("error")) and not row.get("figures"):
            whole.append(element("p", f"{_title(build)}: {error}", class_="fail"))
        if changes := _words(row.get("differences")):
            whole.append(element("p", f"{_title(build)}: {'; '.join(changes)}"))
    whole.extend(
        bars("SQNR against float", _bars_of(builds, base, "figures", "sqnr_db", "dB"), one_scale=True)
    )
    for key, title in COSTS.items():
        unit = "s" if key == "cpu_seconds" else ""
        whole.extend(bars(title, _bars_of(builds, base, "costs", key, unit), one_scale=True))
    return whole


def _bars_of(builds: Mapping[str, Row], base: str, group: str, key: str, unit: str) -> Iterator[Bar]:
    """One bar for each build; the mark is the first build's value."""
    mark = _number(builds[base], group, key)
    for build, row in builds.items():
        value = _number(row, group, key)
        if value is not None:
            text = f"{value:.1f} {unit}" if unit else size(int(value))
            yield Bar(_title(build), value, mark, text, key not in _words(row.get("worse")))


def _title(name: str) -> str:
    return name if name.startswith("executorch ") else f"QNN {name}"


def _place(build: str, order: Sequence[str]) -> int:
    return order.index(build) if build in order else len(order)


def _judgement(verdict: str) -> Element:
    mark = badge(BADGES[verdict])
    mark.text = verdict
    return mark


def _worst(builds: Mapping[str, Row]) -> str:
    judgements = {row.get("judgement") for row in builds.values()}
    return next((verdict for verdict in ORDER if verdict in judgements), "same")


def _number(row: Row, group: str, key: str) -> float | None:
    return number(mapping(row.get(group)), key)


def _words(value: Metric) -> list[str]:
    return [str(each) for each in entries(value)]
