"""Compare verdicts with the operator table, which has no row for each test."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci.lanes.upstream.accepted import AcceptedTests, Judge
from ci.lanes.upstream.stage import UpstreamPlan
from ci.lanes.upstream.suite import UpstreamVerdict
from ci.operators.table import IN_CHAIN, WORST_FIRST, Cell, OperatorTable, Rows, key_of, shipped_table
from ci.suite.figures import EQUAL_DB
from lab.operators.cells import ALONE, result_of_form
from lab.operators.records import PartsRecord, RecordedPart, record_of_run, recorded
from lab.operators.suites import COMMAND, NEWER
from lab.operators.tried import NO_OPERATOR, TABLED, Tried, badness, tried_of
from provisioning.base.commands import Fix, session
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact
from provisioning.base.settings import DEFAULT_SOC
from provisioning.base.stage_run import StageRun

SAME_DB = 1.0
"""Equal inputs give equal figures: an SQNR has changed if it differs by more than this."""


def rows_by_key(table: OperatorTable) -> Mapping[str, Rows]:
    """Its rows, however their names are spelt."""
    return {key_of(name): chips for name, chips in table.cells.items()}


@dataclass(frozen=True, slots=True)
class LabJudge(Judge):
    """By what is accepted, with the laboratory's commands."""

    def command(self, stage: StageRun, *flags: str) -> Fix:
        soc = self.accepted.soc
        chip = [] if soc == DEFAULT_SOC else ["--soc", soc]
        return session(*COMMAND, self.accepted.suite, *flags, *chip)


@dataclass(frozen=True, slots=True)
class TableJudge(LabJudge):
    """What the table says of the tests of a suite on one chip; what ends by chance alone is accepted."""

    cells: Mapping[str, Rows] = field(default_factory=lambda: rows_by_key(shipped_table()))

    def is_surprise(self, verdict: UpstreamVerdict) -> bool:
        if self.ends_by_chance(verdict.test):
            return Judge.is_surprise(self, verdict)
        return bool(verdict.fix) or any(worse for _, worse in self.changes(verdict))

    def changes(self, verdict: UpstreamVerdict) -> list[tuple[str, bool]]:
        """The worst that each form gave, where the table says another word or a higher figure."""
        if self.ends_by_chance(verdict.test):
            return []
        worst: dict[tuple[str, str, str], Tried] = {}
        for row in tried_of(self.accepted.suite, verdict.test, map(recorded, verdict.parts)):
            key = (row.operator, row.scheme, row.form)
            worst[key] = min(worst.get(key, row), row, key=lambda tried: badness(tried.worst))
        found = []
        for (operator, scheme, form), row in worst.items():
            cell, now = self._cell(operator, scheme), row.worst
            if cell is None or (row.chain and self._layers_fail(scheme)):
                continue
            before = result_of_form(cell, form)
            if before != now.result:
                worse = WORST_FIRST.index(now.result) < WORST_FIRST.index(before)
                found.append(
                    (f"{operator} at {scheme}, {form}: the table has {before}, and it is {now}", worse)
                )
            elif _is_lower(cell, row):
                found.append((f"{operator} at {scheme}, {form}: the table has {cell}, and it is {now}", True))
        return found

    def unmeasured(self, tests: Collection[str]) -> int:
        return sum(
            self._cell(row.operator, row.scheme) is None
            for test in tests
            for row in tried_of(self.accepted.suite, test, (RecordedPart("whole"),))
        )

    def updated(self, verdicts: Iterable[UpstreamVerdict], tests: Collection[str], measured: str) -> Judge:
        """The table is made of records of runs, not here."""
        return self

    def _cell(self, operator: str, scheme: str) -> Cell | None:
        return self.cells.get(key_of(operator), {}).get(self.accepted.soc, {}).get(scheme)

    def _layers_fail(self, scheme: str) -> bool:
        """Then nothing between them is whole, and the table says nothing of chains."""
        nothing = self._cell(NO_OPERATOR, scheme)
        return nothing is not None and nothing.result != "whole"


def _is_lower(cell: Cell, row: Tried) -> bool:
    """Only what the cell's figure is the least of."""
    decided = row.form == IN_CHAIN if ALONE in cell.others else not row.chain
    if (
        not decided
        or cell.result not in ("whole", "lost")
        or row.worst.result != cell.result
        or cell.db is None
    ):
        return False
    return row.worst.db is None or min(cell.db, EQUAL_DB) - min(row.worst.db, EQUAL_DB) > SAME_DB


def judge_of(accepted: AcceptedTests, logs: Path) -> Judge:
    return (TableJudge if accepted.suite in TABLED else LabJudge)(accepted, logs)


def keep_record(
    stage: StageRun, plan: UpstreamPlan, judge: Judge, verdicts: Mapping[str, UpstreamVerdict]
) -> None:
    """Write what a suite of the operator table gave to reports/operators: the table is made of these."""
    if plan.suite.name not in (*TABLED, NEWER):
        return
    known = [row for row in verdicts.values() if not row.fix and not judge.passes_by_chance(row)]
    path = record_of_run(judge.logs.parents[1], plan.suite.name, judge.accepted.soc)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, PartsRecord().add_verdicts(known, plan.machinery.measured_with()).to_json())
    stage.artifacts.append(Artifact.of("record", path))
