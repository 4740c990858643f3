"""Find what became worse in programs from one folder of reports to another.

`report --against FOLDER` prints it, and a job of a pull request writes it as one small file (`Changes`), of
which another job with more rights makes a comment. That job trusts nothing in the file: every field has
bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ci.lanes.registry import lanes_by_stage, lanes_with_suites
from ci.report.collect import ReportRow, report_in, rows_of
from ci.suite.accepted import Tolerances, load_tolerances
from provisioning.base.documents import Model
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Report
from provisioning.base.foreign import one_line

MOST_BYTES = 288_000
"""A file of this many bytes has room for the most changes with the longest names."""
MOST_CHANGES = 300
MOST_PROGRAMS = 1_000_000
LONGEST = 200
SHARE = 0.01
"""A share of equal elements counts as worse if it fell by at least this much."""

What = Literal[
    "passed",
    "ddr_read", "ddr_written", "pte_bytes", "context_bytes", "cpu_operators",
    "sqnr_db", "reference_sqnr_db", "agreement", "top1", "emulator_sqnr_db", "emulator_agreement",
]  # fmt: skip
WORSE: dict[What, str] = {
    "passed": "passes no more:",
    "cpu_operators": "left HTP: operators on the CPU",
    "sqnr_db": "less exact: SQNR",
    "reference_sqnr_db": "less exact: SQNR against the quantized model",
    "agreement": "less exact: equal elements",
    "emulator_sqnr_db": "farther from the emulator: SQNR",
    "emulator_agreement": "farther from the emulator: equal elements",
    "top1": "less exact: top-1",
    "ddr_read": "slower: DDR read",
    "ddr_written": "slower: DDR written",
    "pte_bytes": "larger: .pte",
    "context_bytes": "larger: context",
}
"""The kinds of change, worst first. All of them repeat exactly, or nearly: seconds, which depend on the
machine, are not compared."""

Figure = Annotated[float, Field(ge=-1e20, le=1e20, allow_inf_nan=False)]
"""Any number that a report can hold."""


def _is_a_lane(name: str) -> str:
    if name not in {row.head.name for row in lanes_with_suites()}:
        raise ValueError("the name of a lane")
    return name


LaneName = Annotated[
    str,
    AfterValidator(_is_a_lane),
    Field(json_schema_extra={"enum": [row.head.name for row in lanes_with_suites()]}),
]


class ChangedFigure(Model):
    lane: LaneName
    program: Annotated[str, Field(min_length=1, max_length=LONGEST)]
    what: What
    before: Figure
    now: Figure


class Changes(Model):
    """All that the job that comments on a pull request takes from its run."""

    schema_: Literal[1] = Field(alias="schema")
    compared: Annotated[int, Field(ge=0, le=MOST_PROGRAMS)]
    not_compared: Annotated[int, Field(ge=0, le=MOST_PROGRAMS)]
    """The number of programs that are in the reports of only one side."""
    worse: Annotated[int, Field(ge=0, le=MOST_PROGRAMS)]
    """The number of programs that became worse."""
    changes: Annotated[tuple[ChangedFigure, ...], Field(max_length=MOST_CHANGES)]
    left_out: Annotated[int, Field(ge=0, le=MOST_PROGRAMS)]
    """The number of changes for which there was no room."""

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, indent=1) + "\n"


def changes_of(reports: Iterable[Report], before: Iterable[Report]) -> Changes:
    """Compare each program in the reports, which may come from several jobs, with the same stage and program
    in `before`."""
    now, earlier = _programs_in(reports), _programs_in(before)
    lanes = {stage: head.name for stage, head in lanes_by_stage().items()}
    # Two stages may judge one program: it counts once a lane.
    compared = {(lanes[stage], name) for stage, name in now.keys() & earlier.keys()}
    alone = {(lanes[stage], name) for stage, name in now.keys() ^ earlier.keys()} - compared
    tolerances = load_tolerances()
    changes = {
        (change.lane, change.program, change.what): change
        for (stage, name), figures in now.items()
        if (stage, name) in earlier
        for change in _worse_figures(lanes[stage], name, earlier[stage, name], figures, tolerances)
    }
    worst_first = sorted(changes.values(), key=rank)
    return Changes(
        schema=1,
        compared=len(compared),
        not_compared=len(alone),
        worse=len({(change.lane, change.program) for change in worst_first}),
        changes=tuple(worst_first[:MOST_CHANGES]),
        left_out=len(worst_first[MOST_CHANGES:]),
    )


def _programs_in(reports: Iterable[Report]) -> dict[tuple[str, str], dict[str, float]]:
    """The figures of each program, by stage and name."""
    return {
        (report.stage, one_line(name)[:LONGEST] or "?"): figures_of(row)
        for report in reports
        if report.stage in lanes_by_stage()
        for name, row in rows_of(report, "programs").items()
    }


def reports_in(folder: Path, counterpart: Path) -> list[Report]:
    """Read the reports of programs in a folder and in those below it. Reports in `counterpart`, the folder
    that they are compared with, are left out: one of the two may be below the other."""
    root, peer = folder.resolve(), counterpart.resolve()
    subfolder = peer if peer != root and peer.is_relative_to(root) else None
    files = [file for stage in lanes_by_stage() for file in sorted(root.rglob(f"{stage}.json"))]
    try:
        return [report_in(file) for file in files if not (subfolder and file.is_relative_to(subfolder))]
    except ValueError as error:
        raise CheckFailed(str(error), fix="run its stage again, or read the log of its job") from error


def rank(change: ChangedFigure) -> tuple[int, str, str]:
    """Sort changes by this, the worst first."""
    return list(WORSE).index(change.what), change.lane, change.program


def figures_of(row: ReportRow) -> dict[str, float]:
    """The figures of a program's row that are compared."""
    from_emulator = {f"emulator_{name}": value for name, value in row.against_emulator.items()}
    figures = {
        **row.figures,
        **from_emulator,
        **row.costs,
        "cpu_operators": row.cpu_operators,
        "passed": float(row.passed),
    }
    return {key: value for key in WORSE if isinstance(value := figures.get(key), int | float)}


def _worse_figures(
    lane: str, name: str, before: Mapping[str, float], now: Mapping[str, float], tolerances: Tolerances
) -> Iterator[ChangedFigure]:
    for key in WORSE:
        if key in before and key in now and is_worse(key, before[key], now[key], tolerances):
            yield ChangedFigure(lane=lane, program=name, what=key, before=before[key], now=now[key])


def is_worse(key: What, before: float, now: float, tolerances: Tolerances) -> bool:
    if cost := tolerances.costs.get(key):
        return now > cost.most(before)
    if key == "cpu_operators":
        return now > before
    return now < before - (tolerances.sqnr_margin_db if key.endswith("_db") else SHARE)
