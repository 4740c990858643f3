"""Compare verdicts with the operator table, which has no row for each test."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ci.lanes.upstream.judge import SAME_DB, Judge
from ci.lanes.upstream.tried import NO_OPERATOR, Tried, badness, tried_of
from ci.lanes.upstream.verdict import RecordedPart, UpstreamVerdict
from ci.operators.names import key_of
from ci.operators.table import ALONE, IN_CHAIN, WORST_FIRST, Cell, OperatorTable, Rows, shipped
from ci.pipeline.losses import MOST_DB


def by_key(table: OperatorTable) -> Mapping[str, Rows]:
    """Its rows, however their names are spelt."""
    return {key_of(name): chips for name, chips in table.cells.items()}


@dataclass(frozen=True, slots=True)
class TableJudge(Judge):
    """What the table says of the tests of a suite on one chip; its ledger has what ends by chance alone."""

    cells: Mapping[str, Rows] = field(default_factory=lambda: by_key(shipped()))

    def is_surprise(self, verdict: UpstreamVerdict) -> bool:
        if self.ends_by_chance(verdict.test):
            return Judge.is_surprise(self, verdict)
        return bool(verdict.fix) or any(worse for _, worse in self.changes(verdict))

    def changes(self, verdict: UpstreamVerdict) -> list[tuple[str, bool]]:
        """The worst that each form gave, where the table says another word or a higher figure."""
        if self.ends_by_chance(verdict.test):
            return []
        worst: dict[tuple[str, str, str], Tried] = {}
        for row in tried_of(self.ledger.suite, verdict.test, verdict.parts):
            key = (row.operator, row.scheme, row.form)
            worst[key] = min(worst.get(key, row), row, key=lambda tried: badness(tried.worst))
        found = []
        for (operator, scheme, form), row in worst.items():
            cell, now = self._cell(operator, scheme), row.worst
            if cell is None or (row.chain and self._layers_fail(scheme)):
                continue
            before = cell.of_form(form)
            if before != now.result:
                worse = WORST_FIRST.index(now.result) < WORST_FIRST.index(before)
                found.append(
                    (f"{operator} at {scheme}, {form}: the table has {before}, and it is {now}", worse)
                )
            elif _is_lower(cell, row):
                found.append((f"{operator} at {scheme}, {form}: the table has {cell}, and it is {now}", True))
        return found

    @property
    def compared(self) -> bool:
        return any(self.soc in chips for chips in self.cells.values())

    def unrecorded(self, tests: Collection[str]) -> int:
        return sum(
            self._cell(row.operator, row.scheme) is None
            for test in tests
            for row in tried_of(self.ledger.suite, test, (RecordedPart("whole"),))
        )

    def updated(self, verdicts: Iterable[UpstreamVerdict], tests: Collection[str], measured: str) -> Judge:
        """The table is made of records of runs, not here."""
        return self

    def _cell(self, operator: str, scheme: str) -> Cell | None:
        return self.cells.get(key_of(operator), {}).get(self.soc, {}).get(scheme)

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
    return row.worst.db is None or min(cell.db, MOST_DB) - min(row.worst.db, MOST_DB) > SAME_DB
