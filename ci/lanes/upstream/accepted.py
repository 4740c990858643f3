"""What is accepted of each test on each chip: how it ends, why, and what it costs
(manifests/upstream/SUITE/accepted-PROFILE.json)."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ci.lanes.upstream.verdict import UpstreamVerdict, reasons_of
from provisioning.accepted_file import Accepted, Values, accept, load_accepted
from provisioning.base.documents import Model, parse
from provisioning.base.findings import Metric
from provisioning.base.settings import MANIFESTS
from provisioning.base.toml import Place

DIRECTORY = MANIFESTS / "upstream"

Outcome = Literal[
    "passed",
    "dies",  # while lowering
    "wrong",  # outputs
    "failed",  # otherwise
    "crash",
    "memory",  # more than the limit
    "timeout",
    "bad_test",  # a mistake in the test, which upstream skips or passes
    "absent",  # needs a module that is not installed
    "not_run",  # skipped
    "expected_failure",  # marked so upstream
]

GONE = ("crash", "memory", "timeout")
"""The process ended, so that nothing was measured."""

NOT_RUN = ("absent", "not_run")

ALL_TESTS = "(all)"
"""The subject of what is the same for all tests: by chip, the versions that were measured last."""
ANY_CHIP = "any"
"""In place of a chip: what holds for chips on which a test was not measured."""
CAUSE = "cause."
"""Before an outcome: why a test ends so, in words that a person may improve."""


class AcceptedTest(Model):
    """A test on one chip."""

    outcome: Outcome = "passed"
    by_chance: bool = False
    """It passes or ends like this by chance, with the same inputs."""
    reasons: tuple[str, ...] = ()
    """Those of `reasons_of`; none of a test that passes."""
    cost: tuple[float, int] | None = None
    """Seconds of the processor, and megabytes; None of a test that was never measured."""


@dataclass(frozen=True, slots=True)
class AcceptedTests:
    """Those of a suite on one chip. Runs of parts of a suite add up."""

    suite: str
    profile: str
    soc: str
    tests: Mapping[str, AcceptedTest] = field(default_factory=dict)
    causes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By test and outcome."""
    names: frozenset[str] = frozenset()
    """Of the tests that the file has of any chip."""
    measured: str = ""
    """The versions that gave the last of them; empty if the chip was never measured."""

    def of(self, test: str) -> AcceptedTest:
        """A test of which nothing was accepted is expected to pass."""
        return self.tests.get(test, AcceptedTest())

    def cause(self, test: str) -> str:
        """Why it does not pass."""
        row = self.of(test)
        return self.causes.get((test, row.outcome), "") or "; ".join(row.reasons) or row.outcome

    def changes(
        self, verdicts: Iterable[UpstreamVerdict], causes: Mapping[str, str], measured: str
    ) -> dict[str, Values]:
        """What the file gets of verdicts that are accepted, with the causes of those that have new ones."""
        changes: dict[str, Values] = {ALL_TESTS: {self.soc: measured}}
        for verdict in verdicts:
            old = self.of(verdict.test)
            fields: dict[str, Metric] = {"cost": list(old.cost or ())}
            if old.by_chance and verdict.outcome in ("passed", old.outcome):
                fields |= {"outcome": old.outcome, "by_chance": True, "reasons": list(old.reasons)}
            else:
                fields |= {"outcome": verdict.outcome, "reasons": list(reasons_of(verdict))}
            # A test whose process ended, or whose verdict is cached, keeps what it cost before.
            if not (verdict.outcome in GONE or (verdict.cached and verdict.test in self.tests)):
                fields["cost"] = [round(verdict.cpu_seconds, 1), verdict.peak >> 20]
            values = {name: value for name, value in fields.items() if value not in ("passed", [])}
            changes[verdict.test] = {self.soc: values}
            if cause := causes.get(verdict.test):
                changes[verdict.test] = {self.soc: values, f"{CAUSE}{verdict.outcome}": cause}
        return changes


def _place(test: str, place: Place) -> Place:
    return test, *place


def accepted_file(suite: str, profile: str) -> Path:
    return DIRECTORY / suite / f"accepted-{profile}.json"


def load_tests(suite: str, profile: str, soc: str, path: Path | None = None) -> AcceptedTests:
    """Without a file every test is expected to pass."""
    path = path or accepted_file(suite, profile)
    return tests_in(load_accepted(path, "remove it; --accept writes it again"), suite, profile, soc)


def tests_in(file: Accepted, suite: str, profile: str, soc: str) -> AcceptedTests:
    tests: dict[str, AcceptedTest] = {}
    causes: dict[tuple[str, str], str] = {}
    names = [test for test in file.subjects if test != ALL_TESTS]
    for test in names:
        values = file.of(test)
        for chip, fields in values.items():
            if chip.startswith(CAUSE):
                causes[test, chip.removeprefix(CAUSE)] = str(fields)
            elif chip == soc or (chip == ANY_CHIP and soc not in values):
                rows: Any = fields
                tests[test] = parse(rows, AcceptedTest, file.path, partial(_place, test))
    measured = str(file.of(ALL_TESTS).get(soc, ""))
    return AcceptedTests(suite, profile, soc, tests, causes, frozenset(names), measured)


def write(suite: str, profile: str, changes: Mapping[str, Values], known: Collection[str]) -> None:
    """Tests that the suite no longer has are removed, and causes of outcomes that no chip has."""
    path = accepted_file(suite, profile)

    def change(file: Accepted) -> Accepted:
        file = file.updated(changes).only(lambda test: test == ALL_TESTS or test in known)
        return file.updated({test: _unused_causes(values) for test, values in file.subjects.items()})

    accept(path, change)
    sys.stderr.write(f"wrote {path}\n")


def _unused_causes(values: Values) -> Values:
    outcomes = {row.get("outcome") for row in values.values() if isinstance(row, dict)}
    return {
        name: None for name in values if name.startswith(CAUSE) and name.removeprefix(CAUSE) not in outcomes
    }
