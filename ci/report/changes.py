"""What became worse in programs from one folder of reports to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.report.renderings import cell
from ci.report.values import LANES, Lane, Row, in_unit, mapping, number, rows_of
from ci.suite.accepted import Tolerances, load_tolerances
from provisioning.base.findings import Report
from provisioning.base.foreign import one_line

MOST_ROWS = 300
"""Of a job's summary."""

SHARE = 0.01
"""A share of equal elements that is less by so much is less exact."""

WORSE = {
    "passed": "passes no more:",
    "cpu_operators": "left HTP: operators on the CPU",
    "sqnr_db": "less exact: SQNR",
    "reference_sqnr_db": "less exact: SQNR against the quantized model",
    "agreement": "less exact: equal elements",
    "top1": "less exact: top-1",
    "ddr_read": "slower: DDR read",
    "ddr_written": "slower: DDR written",
    "pte_bytes": "larger: .pte",
    "context_bytes": "larger: context",
}
"""The worst first."""

FIGURES = ("sqnr_db", "reference_sqnr_db", "agreement", "top1")
COSTS = ("ddr_read", "ddr_written", "pte_bytes", "context_bytes")
"""What repeats exactly, or nearly. Seconds depend on the machine."""
PLACES = ("cpu_operators",)


@dataclass(frozen=True, slots=True)
class ChangedFigure:
    lane: Lane
    program: str
    what: str
    before: float
    now: float

    @property
    def values(self) -> tuple[str, str]:
        """Before and now, in the unit of the figure."""
        return in_unit(self.what, self.before), in_unit(self.what, self.now)


@dataclass(frozen=True, slots=True)
class Changes:
    compared: int
    """How many programs."""
    not_compared: int
    """Programs that are in the reports of one side alone."""
    worse: int
    """How many programs."""
    changes: tuple[ChangedFigure, ...]

    def summary(self, before: object) -> str:
        return (
            f"{self.worse} of {self.compared} programs are worse than in {before},"
            f" {self.not_compared} are not in both"
        )

    def markdown(self, before: object) -> str:
        """For a job's summary on GitHub."""
        lines = ["## What became worse", "", cell(self.summary(before)), ""]
        if self.changes:
            lines += ["| lane | program | what | before | now |", "| --- | --- | --- | ---: | ---: |"]
        for change in self.changes[:MOST_ROWS]:
            cells = (change.lane, change.program, WORSE[change.what], *change.values)
            lines.append(f"| {' | '.join(map(cell, cells))} |")
        if more := len(self.changes[MOST_ROWS:]):
            lines += ["", f"And {more:,} more."]
        return "\n".join([*lines, ""])


def reports_of_programs(folder: Path) -> list[Report]:
    """Those in the folder, by which programs can be compared."""
    files = (folder / f"{stage}.json" for stage in LANES)
    return [Report.read(file) for file in files if file.is_file()]


def changes_of(reports: Iterable[Report], before: Iterable[Report]) -> Changes:
    """Each program is compared with what `before` has of it, in the same stage."""
    now, earlier = _programs(reports), _programs(before)
    both = [key for key in now if key in earlier]
    tolerances = load_tolerances()
    found: dict[tuple[str, str, str], ChangedFigure] = {}
    for stage, name in both:
        key = stage, name
        for change in _worse(LANES[stage], name, earlier[key], now[key], tolerances):
            found[change.lane, name, change.what] = change
    compared = {(LANES[stage], name) for stage, name in both}
    alone = {(LANES[stage], name) for stage, name in now.keys() ^ earlier.keys()} - compared
    return Changes(
        compared=len(compared),
        not_compared=len(alone),
        worse=len({(change.lane, change.program) for change in found.values()}),
        changes=tuple(sorted(found.values(), key=_rank)),
    )


def _programs(reports: Iterable[Report]) -> dict[tuple[str, str], dict[str, float]]:
    """By stage and name: what of a program is compared."""
    return {
        (report.stage, one_line(name)): figures_of(row)
        for report in reports
        for name, row in rows_of(report, "programs").items()
    }


def _rank(change: ChangedFigure) -> tuple[int, str, str]:
    """The worst first."""
    return list(WORSE).index(change.what), change.lane, change.program


def figures_of(row: Row) -> dict[str, float]:
    """Of a program's row: what is compared."""
    numbers = {"passed": float(row.get("verdict") == "pass")}
    figures, costs = mapping(row.get("figures")), mapping(row.get("costs"))
    for values, names in ((figures, FIGURES), (costs, COSTS), (row, PLACES)):
        for name in names:
            value = number(values, name)
            if value is not None:
                numbers[name] = value
    return numbers


def _worse(
    lane: Lane, name: str, before: Mapping[str, float], now: Mapping[str, float], tolerances: Tolerances
) -> Iterator[ChangedFigure]:
    for what in WORSE:
        if what in before and what in now and is_worse(what, before[what], now[what], tolerances):
            yield ChangedFigure(lane, name, what, before[what], now[what])


def is_worse(what: str, before: float, now: float, tolerances: Tolerances) -> bool:
    if what in FIGURES:
        return now < before - (tolerances.sqnr_margin_db if what.endswith("_db") else SHARE)
    if what in COSTS:
        return now > tolerances.costs[what].most(before)
    return now < before if what == "passed" else now > before
