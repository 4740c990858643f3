"""The issues: lab/upstream_reports/reports.toml has a sentence for each mistake."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ci.lanes.upstream.accepted import Outcome, accepted_file, tests_in
from lab.operators.tried import TABLED
from provisioning.accepted_file import Accepted, load_accepted
from provisioning.base.documents import Model, load
from provisioning.manifest import load_socs

REPORTS = Path(__file__).with_name("reports.toml")


class UpstreamReport(Model):
    suite: str | Annotated[tuple[str, ...], Field(min_length=1)]
    test: str | tuple[str, ...] = ()
    """Names of tests that fail; `*` stands for anything. Empty: no single test shows it."""
    outcome: Outcome | tuple[Outcome, ...] = ()
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
            files = (load_accepted(accepted_file(suite, profile)) for suite in row.suites())
            tests = sorted(test for file in files for test in tests_of(row, failures_in(file)))
            more = f" and {len(tests) - 3} more" if len(tests) > 3 else ""
            shown = ", ".join(tests[:3]) or "none that fail: measure them, or remove this report"
            sys.stdout.write(f"Tests: {shown}{more}\n\n")
        sys.stdout.write(f"    {row.command}\n\n")


@dataclass(frozen=True, slots=True)
class AcceptedFailure:
    test: str
    outcome: str
    socs: frozenset[str]
    """The chips on which it ends so."""


def failures_in(file: Accepted) -> list[AcceptedFailure]:
    socs: dict[tuple[str, str], set[str]] = {}
    for soc in load_socs():
        for test, row in tests_in(file, "", "", soc).tests.items():
            if row.outcome != "passed":
                socs.setdefault((test, row.outcome), set()).add(soc)
    return [AcceptedFailure(test, outcome, frozenset(chips)) for (test, outcome), chips in socs.items()]


def tests_of(report: UpstreamReport, failures: Iterable[AcceptedFailure]) -> list[str]:
    return sorted({row.test for row in failures if shows(row, report)})


def shows(failure: AcceptedFailure, report: UpstreamReport) -> bool:
    """Whether this failure is one of the report's."""
    outcomes = [report.outcome] if isinstance(report.outcome, str) else report.outcome
    names = [report.test] if isinstance(report.test, str) else report.test
    return (
        (not report.socs or failure.socs <= set(report.socs))
        and failure.outcome in outcomes
        and any(fnmatchcase(failure.test, name.replace("[", "[[]")) for name in names)
    )
