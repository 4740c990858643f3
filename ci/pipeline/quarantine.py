"""Flaky work: the finding, and the quarantine that keeps a case from failing the gate for some weeks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from ci.engine.runs import STEADY, Runs
from ci.engine.trouble import MACHINE
from provisioning.base.commands import Fix
from provisioning.base.documents import Model
from provisioning.base.findings import Finding, Severity

MOST_DAYS = 90


class Quarantine(Model):
    until: dt.date
    """The last day on which it holds."""
    reason: Annotated[str, Field(min_length=1)]

    @property
    def wrong(self) -> str:
        """The rule that it breaks; empty while it holds."""
        days = (self.until - today()).days
        return "quarantine-expired" if days < 0 else "quarantine-too-long" if days > MOST_DAYS else ""

    def __str__(self) -> str:
        return f"in quarantine until {self.until}: {self.reason}"


def today() -> dt.date:
    return dt.datetime.now(dt.timezone.utc).date()


def holds(quarantine: Quarantine | None) -> bool:
    return quarantine is not None and not quarantine.wrong


def flaky(subject: str, runs: Runs, again: Fix, where: str) -> Iterator[Finding]:
    """`where` is the table that may get a quarantine."""
    if told := runs.flaky:
        until = today() + dt.timedelta(days=MOST_DAYS // 3)
        fix = Fix(
            "find what decides it (a seed, threads, the clock): {}; until then, in {}: {}",
            again.plus("--no-cache"),
            where,
            f'quarantine = {{ until = {until}, reason = "..." }}',
        )
        yield Finding("flaky", Severity.ERROR, subject, f"its verdict changes by chance: {told}", fix)


def misused(quarantine: Quarantine | None, subject: str, where: str) -> Iterator[Finding]:
    """Of a quarantine that does not hold: then it keeps nothing from failing."""
    if quarantine is None or not (rule := quarantine.wrong):
        return
    latest = today() + dt.timedelta(days=MOST_DAYS)
    fix = f"make it steady, and take the quarantine out of {where}; or another `until`, up to {latest}"
    if rule == "quarantine-expired":
        message = f"its quarantine ended on {quarantine.until}: {quarantine.reason}"
        yield Finding("quarantine-expired", Severity.ERROR, subject, message, fix)
    else:
        message = f"its quarantine until {quarantine.until} is longer than {MOST_DAYS} days"
        yield Finding("quarantine-too-long", Severity.ERROR, subject, message, fix)


def steady(subject: str, where: str) -> Finding:
    message = f"it is in quarantine, and had one verdict in each of its last {STEADY} runs"
    fix = f"take the quarantine out of {where}"
    return Finding("quarantine-steady", Severity.ERROR, subject, message, fix)


def excused(
    quarantine: Quarantine, subject: str, outcome: str, findings: Iterable[Finding]
) -> Iterator[Finding]:
    """The findings of what is in quarantine, with one that says so and has its outcome of now."""
    yield from map(noted, findings)
    message = f"{quarantine}. Now: {outcome}, which counts neither way"
    yield Finding("quarantined", Severity.NOTE, subject, message, "make it steady before that day")


def noted(finding: Finding) -> Finding:
    """An error as a note, unless the machine is to blame for it."""
    of_work = finding.severity is Severity.ERROR and not finding.rule.endswith(f"-{MACHINE}")
    return replace(finding, severity=Severity.NOTE) if of_work else finding
