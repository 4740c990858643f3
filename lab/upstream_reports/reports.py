"""The issues: lab/upstream_reports/reports.toml has a sentence for each mistake."""

from __future__ import annotations

import sys
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ci.lanes.upstream.ledger import ExpectedTests, Kind, Ledger, load_ledger
from lab.operators.tried import TABLED
from provisioning.base.documents import Model, load

REPORTS = Path(__file__).with_name("reports.toml")


class UpstreamReport(Model):
    suite: str | Annotated[tuple[str, ...], Field(min_length=1)]
    test: str | tuple[str, ...] = ()
    """Names of tests in the ledger; `*` stands for anything. Empty: no single test shows it."""
    outcome: Kind | tuple[Kind, ...] = ()
    socs: tuple[str, ...] = ()
    """Only tests that end so on these chips and no others."""
    title: str
    text: str
    command: str

    def suites(self) -> tuple[str, ...]:
        return (self.suite,) if isinstance(self.suite, str) else self.suite


class Reports(Model):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    report: tuple[UpstreamReport, ...]


def print_reports(profile: str, suites: Collection[str]) -> None:
    reports = [row for row in load(REPORTS, Reports).report if not set(suites).isdisjoint(row.suites())]
    if not reports:
        sys.stderr.write(
            f"{', '.join(suites)}: no mistake of upstream is known (lab/upstream_reports/reports.toml)\n"
        )
    for row in reports:
        sys.stdout.write(f"# {row.title}\n\n{row.text.strip()}\n\n")
        if row.test and set(row.suites()).isdisjoint(TABLED):
            ledgers = (load_ledger(suite, profile) for suite in row.suites())
            tests = sorted(test for ledger in ledgers for test in tests_of(row, ledger))
            more = f" and {len(tests) - 3} more" if len(tests) > 3 else ""
            shown = ", ".join(tests[:3]) or "none in the ledger: measure them, or remove this report"
            sys.stdout.write(f"Tests: {shown}{more}\n\n")
        sys.stdout.write(f"    {row.command}\n\n")


def tests_of(report: UpstreamReport, ledger: Ledger) -> list[str]:
    return sorted({row.test for row in ledger.expected if shows(row, report)})


def shows(entry: ExpectedTests, report: UpstreamReport) -> bool:
    """Whether this entry of a ledger is one of the report's."""
    outcomes = [report.outcome] if isinstance(report.outcome, str) else report.outcome
    names = [report.test] if isinstance(report.test, str) else report.test
    chips = not report.socs or (entry.socs and set(entry.socs) <= set(report.socs))
    return (
        bool(chips)
        and entry.outcome in outcomes
        and any(fnmatchcase(entry.test, name.replace("[", "[[]")) for name in names)
    )
