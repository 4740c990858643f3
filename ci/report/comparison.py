"""The page's section on QNN builds or executorch versions side by side: the report of `compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ci.report.bars import Bar, bar_of, longest_of
from ci.report.values import Row, entries, in_unit, mapping, number
from provisioning.base.findings import Metric, Report

STAGE = "compare"
ORDER = ("worse", "better", "same")
FIGURES = {
    "sqnr_db": "SQNR against float",
    "context_bytes": "context",
    "pte_bytes": ".pte",
    "ddr_read": "DDR read",
    "cpu_seconds": "CPU seconds of compiling",
}


@dataclass(frozen=True, slots=True)
class ComparedProgram:
    name: str
    judgement: str
    builds: Sequence[tuple[str, str, str]]
    """The title, the error and the changes of each build."""
    figures: Mapping[str, Sequence[Bar]]


@dataclass(frozen=True, slots=True)
class BuildComparison:
    base: str
    counts: Mapping[str, str]
    programs: Sequence[ComparedProgram]


def comparison_of(reports: Sequence[Report]) -> BuildComparison | None:
    """None if builds were not compared."""
    report = next((report for report in reports if report.stage == STAGE), None)
    programs = mapping(report.metrics.get("comparison")) if report else {}
    if report is None or not programs:
        return None
    base = str(report.metrics.get("base"))
    order = _words(report.metrics.get("order")) or [base]
    compared = [_program(name, _in_order(row, order), base) for name, row in programs.items()]
    counts = {
        _title(build): ", ".join(f"{row.get(word, 0)} {word}" for word in ORDER)
        for build, row in _in_order(report.metrics.get("verdicts"), order).items()
    }
    return BuildComparison(
        _title(base),
        counts,
        sorted(compared, key=lambda entry: (ORDER.index(entry.judgement), entry.name)),
    )


def _in_order(builds: Metric, order: Sequence[str]) -> dict[str, Row]:
    rows = mapping(builds)
    names = sorted(rows, key=lambda build: order.index(build) if build in order else len(order))
    return {build: mapping(rows[build]) for build in names}


def _program(name: str, builds: Mapping[str, Row], base: str) -> ComparedProgram:
    judgements = {row.get("judgement") for row in builds.values()}
    about = [
        (
            _title(build),
            "" if row.get("figures") else str(row.get("error") or ""),
            "; ".join(_words(row.get("differences"))),
        )
        for build, row in builds.items()
    ]
    worst = next((word for word in ORDER if word in judgements), "same")
    figures = {title: _bars(builds, base, key) for key, title in FIGURES.items()}
    return ComparedProgram(name, worst, about, figures)


def _bars(builds: Mapping[str, Row], base: str, key: str) -> list[Bar]:
    """One bar for each build, all of one scale; the mark is the first build's value."""
    group = "figures" if key == "sqnr_db" else "costs"
    values = {build: number(mapping(row.get(group)), key) for build, row in builds.items()}
    return [
        bar_of(
            _title(build),
            value,
            in_unit(key, value),
            good=key not in _words(builds[build].get("worse")),
            marks=[(values.get(base), 0.6)],
            longest=longest_of(*values.values()),
        )
        for build, value in values.items()
        if value is not None
    ]


def _title(name: str) -> str:
    return name if name.startswith("executorch ") else f"QNN {name}"


def _words(value: Metric) -> list[str]:
    return [str(entry) for entry in entries(value)]
