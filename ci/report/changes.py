"""What became worse in programs from one folder of reports to another: one small file for a comment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from ci.report.values import LANES, Lane, Row, mapping, number, rows_of
from ci.suite.accepted import Tolerances, load_tolerances
from provisioning.base.documents import Model
from provisioning.base.findings import Report
from provisioning.base.foreign import one_line

MOST_BYTES = 256_000
MOST_CHANGES = 300
MOST_PROGRAMS = 1_000_000
LONGEST = 200
SHARE = 0.01
"""A share of equal elements that is less by so much is less exact."""

What = Literal[
    "passed",
    "ddr_read", "ddr_written", "pte_bytes", "context_bytes", "cpu_operators",
    "sqnr_db", "reference_sqnr_db", "agreement", "top1",
]  # fmt: skip
WORSE: dict[What, str] = {
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

Figure = Annotated[float, Field(ge=-1e18, le=1e18, allow_inf_nan=False)]


class ChangedFigure(Model):
    lane: Lane
    program: Annotated[str, Field(min_length=1, max_length=LONGEST)]
    what: What
    before: Figure
    now: Figure


class Changes(Model):
    """What the job that comments on a pull request takes of its run, and nothing else."""

    schema_: Literal[1] = Field(alias="schema")
    compared: Annotated[int, Field(ge=0, le=MOST_PROGRAMS)]
    not_compared: Annotated[int, Field(ge=0, le=MOST_PROGRAMS)]
    """Programs that are in the reports of one side alone."""
    worse: Annotated[int, Field(ge=0, le=MOST_PROGRAMS)]
    """How many programs."""
    changes: Annotated[tuple[ChangedFigure, ...], Field(max_length=MOST_CHANGES)]
    left_out: Annotated[int, Field(ge=0, le=MOST_PROGRAMS)]
    """For which there was no room."""

    def as_json(self) -> str:
        return self.model_dump_json(by_alias=True, indent=1) + "\n"


def changes_of(reports: Iterable[Report], before: Iterable[Report]) -> Changes:
    """Of all programs in the reports, which may be of several jobs. Each is compared with what `before` has
    of it, in the same stage."""
    earlier = {
        (report.stage, name): row for report in before for name, row in rows_of(report, "programs").items()
    }
    lost = {*earlier}
    tolerances = load_tolerances()
    compared, alone = set[tuple[str, str]](), set[tuple[str, str]]()
    found: dict[tuple[str, str, str], ChangedFigure] = {}
    for report in reports:
        if (lane := LANES.get(report.stage)) is None:
            continue
        for key, row in rows_of(report, "programs").items():
            name = one_line(key)[:LONGEST] or "?"
            lost.discard((report.stage, key))
            earlier_row = earlier.get((report.stage, key))
            if earlier_row is None:
                alone.add((lane, name))
                continue
            compared.add((lane, name))
            for change in _worse(lane, name, figures_of(earlier_row), figures_of(row), tolerances):
                found[lane, name, change.what] = change
    alone |= {(LANES[stage], one_line(key)[:LONGEST] or "?") for stage, key in lost if stage in LANES}
    worst_first = sorted(found.values(), key=rank)
    changes = Changes(
        schema=1,
        compared=len(compared),
        not_compared=len(alone - compared),
        worse=len({(change.lane, change.program) for change in worst_first}),
        changes=tuple(worst_first[:MOST_CHANGES]),
        left_out=len(worst_first[MOST_CHANGES:]),
    )
    while len(changes.as_json().encode()) > MOST_BYTES:
        kept = changes.changes[: len(changes.changes) * 3 // 4]
        out = changes.left_out + len(changes.changes) - len(kept)
        changes = changes.model_copy(update={"changes": kept, "left_out": out})
    return changes


def rank(change: ChangedFigure) -> tuple[int, str, str]:
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
            yield ChangedFigure(lane=lane, program=name, what=what, before=before[what], now=now[what])


def is_worse(what: What, before: float, now: float, tolerances: Tolerances) -> bool:
    if what in FIGURES:
        return now < before - (tolerances.sqnr_margin_db if what.endswith("_db") else SHARE)
    if what in COSTS:
        return now > tolerances.costs[what].most(before)
    return now < before if what == "passed" else now > before
