"""Keeps the accepted result of each test on each chip (manifests/upstream/SUITE/accepted-PROFILE.json), and
says how a run differs from it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ci.diagnose.logs import Explanation, nearest
from ci.lanes.upstream.suite import UpstreamVerdict, reasons_of
from ci.work import MACHINE, tail, words_of
from provisioning.accepted_file import Accepted, Values, accept, load_accepted
from provisioning.base.commands import Fix, session
from provisioning.base.documents import Model, parse
from provisioning.base.findings import Artifact, Metric, Severity
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, MANIFESTS
from provisioning.base.stage_run import StageRun
from provisioning.base.toml_lines import Place

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
"""The process ended with these outcomes, so that nothing was measured."""

NOT_RUN = ("absent", "not_run")

ALL_TESTS = "(all)"
"""Rows with this subject hold for all tests: for each chip, they name the versions that were measured
last."""
ANY_CHIP = "any"
"""Rows with this in place of a chip hold for chips on which a test was not measured."""
CAUSE = "cause."
"""This stands before an outcome in the key of a sentence that a person wrote: it explains the outcome if the
reasons do not."""


class AcceptedTest(Model):
    """Holds the accepted result of a test on one chip."""

    outcome: Outcome = "passed"
    by_chance: bool = False
    """Whether it passes or ends like this by chance, with the same inputs."""
    reasons: tuple[str, ...] = ()
    """These are what `reasons_of` returned; a test that passes has none."""
    cost: tuple[float, int] | None = None
    """The test took this many seconds of the processor, and megabytes; None if it was never measured."""


@dataclass(frozen=True, slots=True)
class AcceptedTests:
    """Holds the accepted tests of a suite on one chip. Results from runs of parts of the suite add up."""

    suite: str
    profile: str
    soc: str
    tests: Mapping[str, AcceptedTest] = field(default_factory=dict)
    causes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Maps a test and an outcome to the cause that a person wrote."""
    names: frozenset[str] = frozenset()
    """The file has these tests, for whichever chip."""
    origin: str = ""
    """Names the versions that were measured last; empty if the chip was never measured."""

    def of(self, test: str) -> AcceptedTest:
        """Return the accepted result; a test that has none is expected to pass."""
        return self.tests.get(test, AcceptedTest())

    def cause(self, test: str) -> str:
        """Return why the test does not pass."""
        row = self.of(test)
        return self.causes.get((test, row.outcome), "") or "; ".join(row.reasons) or row.outcome

    def changes(self, verdicts: Iterable[UpstreamVerdict], origin: str) -> dict[str, Values]:
        """Return the rows that accepting these verdicts writes. A cause is dropped if the reasons have
        changed."""
        changes: dict[str, Values] = {ALL_TESTS: {self.soc: origin}}
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
            if other_reasons(old.reasons, reasons_of(verdict)):
                changes[verdict.test] = {self.soc: values, f"{CAUSE}{verdict.outcome}": None}
        return changes


def other_reasons(old: Collection[str], new: Collection[str]) -> bool:
    """Whether both have reasons, and these differ; an unknown reason does not count."""
    before, now = set(map(words_of, old)), set(map(words_of, new))
    return bool(before and now) and before != now


def _place(test: str, place: Place) -> Place:
    return test, *place


def accepted_file(suite: str, profile: str) -> Path:
    return DIRECTORY / suite / f"accepted-{profile}.json"


def load_tests(suite: str, profile: str, soc: str) -> AcceptedTests:
    """Read the accepted tests. Without a file every test is expected to pass."""
    file = load_accepted(accepted_file(suite, profile), "remove it; --accept writes it again")
    return tests_in(file, suite, profile, soc)


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
    origin = str(file.of(ALL_TESTS).get(soc, ""))
    return AcceptedTests(suite, profile, soc, tests, causes, frozenset(names), origin)


def write(suite: str, profile: str, changes: Mapping[str, Values], tests: Collection[str]) -> None:
    """Write the file, without tests that the suite no longer has, and without causes of outcomes that no chip
    has."""
    path = accepted_file(suite, profile)

    def change(file: Accepted) -> Accepted:
        file = file.updated(changes).only(lambda test: test == ALL_TESTS or test in tests)
        return file.updated({test: _unused_causes(values) for test, values in file.subjects.items()})

    accept(path, change)
    sys.stderr.write(f"wrote {path}\n")


def _unused_causes(values: Values) -> Values:
    outcomes = {row.get("outcome") for row in values.values() if isinstance(row, dict)}
    return {
        name: None for name in values if name.startswith(CAUSE) and name.removeprefix(CAUSE) not in outcomes
    }


GOOD_OR_NOT_RUN = ("passed", *NOT_RUN)

LOGS_IN_REPORT = 25
"""The report names this many logs of surprises; the folder has all logs."""


def rules_of(stage: StageRun) -> str:
    """Return what the names of its rules begin with."""
    return stage.stage.removeprefix("test_")


@dataclass(frozen=True, slots=True)
class Judge:
    """Says what is expected of tests on one chip."""

    accepted: AcceptedTests
    logs: Path
    of_another_release: bool = False
    """Whether the tests are a tree of another release, which has other costs and reasons."""

    def unmeasured(self, tests: Collection[str]) -> int:
        """Count the tests that have nothing to be compared with."""
        return len(set(tests) - self.accepted.tests.keys())

    def outcome_of(self, test: str) -> str:
        return self.accepted.of(test).outcome

    def is_surprise(self, verdict: UpstreamVerdict) -> bool:
        if self.passes_by_chance(verdict) or (self.of_another_release and verdict.outcome in GOOD_OR_NOT_RUN):
            return False
        return verdict.outcome != self.outcome_of(verdict.test) or any(
            worse for _, worse in self.changes(verdict)
        )

    def changes(self, verdict: UpstreamVerdict) -> list[tuple[str, bool]]:
        """Return the reasons that have changed since they were accepted, and whether that is worse. A reason
        that is gone makes nothing worse."""
        if self.ends_by_chance(verdict.test) or self.of_another_release:
            return []
        old, new = self.accepted.of(verdict.test).reasons, reasons_of(verdict)
        if not other_reasons(old, new):
            return []
        text = f"the reason was `{'; '.join(old)}` when it was accepted, and is `{'; '.join(new)}`"
        return [(text, not set(map(words_of, new)) < set(map(words_of, old)))]

    def passes_by_chance(self, verdict: UpstreamVerdict) -> bool:
        """Whether it passes only by chance: such a pass does not replace an accepted failure."""
        return verdict.outcome == "passed" and self.ends_by_chance(verdict.test)

    def ends_by_chance(self, test: str) -> bool:
        return self.accepted.of(test).by_chance

    def findings(self, stage: StageRun, verdicts: Iterable[UpstreamVerdict]) -> None:
        """Return a note for every failure that was accepted, and an error for every surprise."""
        rules, verdicts = rules_of(stage), sorted(verdicts, key=lambda row: row.test)
        if verdicts and self.of_another_release and all(row.outcome in NOT_RUN for row in verdicts):
            message = f"none of {len(verdicts)} tests ran: {verdicts[0].reason}"
            fix = self._to_run(stage, verdicts[0])
            stage.add(f"{rules}-not-run", Severity.ERROR, self.accepted.suite, message, fix)
        for verdict in verdicts:
            is_known = self.outcome_of(verdict.test) != "passed"
            changes = self.changes(verdict)
            if self.is_surprise(verdict):
                self._surprise(stage, verdict)
            elif changes:
                message = "; ".join(text for text, _ in changes)
                again = self.again(stage, verdict.test, "--accept")
                stage.add(f"{rules}-better", Severity.NOTE, verdict.test, message, again)
            elif (is_known or self.of_another_release) and verdict.outcome != "passed":
                absent = verdict.outcome in NOT_RUN
                cause = self.accepted.cause(verdict.test) if is_known else verdict.reason
                rule = f"{rules}-not-run" if absent else f"{rules}-known-failure"
                message = f"not run: {cause}" if absent else cause
                fix = self._to_run(stage, verdict) if absent else self.again(stage, verdict.test)
                stage.add(rule, Severity.NOTE, verdict.test, message, fix)

    def _surprise(self, stage: StageRun, verdict: UpstreamVerdict) -> None:
        accepted_outcome, log = self.outcome_of(verdict.test), self.logs / f"{verdict.test}.log"
        changes = [text for text, _ in self.changes(verdict)]
        reason = "; ".join([verdict.reason.rstrip("."), *changes])
        fix: str = self.again(stage, verdict.test)
        kinds = {"passed": "passed", **dict.fromkeys(NOT_RUN, "not-run")}
        rule = f"{rules_of(stage)}-" + kinds.get(verdict.outcome, "failed")
        if verdict.fix:
            rule, fix = f"{rules_of(stage)}-{MACHINE}", Fix("{}; then {}", verdict.fix, fix)
            message = f"no verdict: {reason}"
        elif verdict.outcome == accepted_outcome:
            rule = f"{rules_of(stage)}-changed"
            message = "; ".join(changes)
        elif verdict.outcome == "passed":
            message = f"passes, and is accepted as {accepted_outcome}: {self.accepted.cause(verdict.test)}"
            fix = self.again(stage, verdict.test, "--accept")
        elif verdict.outcome in NOT_RUN:
            message = f"was not run: {verdict.reason}"
            fix = self._to_run(stage, verdict)
        elif accepted_outcome != "passed":
            message = f"is {verdict.outcome} now, and is accepted as {accepted_outcome}: {reason}"
            fix = self.again(stage, verdict.test, "--accept")
        elif explanation := self._explanation(verdict):
            message, fix = f"{reason}. {explanation}", explanation.fix
        else:
            message = f"{_add_assertion(reason, verdict)} (nothing known matches its log)"
            fix = Fix("read {}, or {}", log, self.again(stage, verdict.test, "--keep"))
        stage.add(rule, Severity.ERROR, verdict.test, message, fix)
        if log.is_file() and len(stage.artifacts) < LOGS_IN_REPORT:
            stage.artifacts.append(Artifact.of("log", log))

    def gone(self, tests: Collection[str]) -> list[str]:
        """Return the accepted tests that the suite no longer has."""
        return [] if self.of_another_release else sorted(self.accepted.names.difference(tests))

    def _to_run(self, stage: StageRun, verdict: UpstreamVerdict) -> Fix:
        """Typed as it was, a test that did not run does not run again."""
        first = {
            "absent": "install what it needs into the Python that runs it",
            "not_run": "ExecuTorch skips it by a condition of its own: meet that",
        }[verdict.outcome]
        return Fix("{}, then {}", first, self.again(stage, verdict.test))

    def again(self, stage: StageRun, test: str, *flags: str) -> Fix:
        return self.command(stage, "-k", test.rpartition(".")[2], *flags)

    def command(self, stage: StageRun, *flags: str) -> Fix:
        words = [] if stage.stage == "test_delegate" else [self.accepted.suite]
        words += flags
        if self.accepted.profile != DEFAULT_PROFILE:
            words += ["--profile", self.accepted.profile]
        if self.accepted.soc != DEFAULT_SOC:
            words += ["--soc", self.accepted.soc]
        return session(stage.stage, *words)

    def _explanation(self, verdict: UpstreamVerdict) -> Explanation | None:
        return nearest(f"{tail(self.logs / f'{verdict.test}.log')}\n{verdict.reason}\n")

    def counts(self, verdicts: Iterable[UpstreamVerdict]) -> dict[str, int]:
        """Count each verdict once: passed, failed, not run, or expected failure."""
        names = ("passed", "failed", "not_run", "expected_failures", "unexpected_passes", "cached")
        total = dict.fromkeys(names, 0)
        for verdict in verdicts:
            total["cached"] += verdict.cached
            surprise = self.is_surprise(verdict)
            if verdict.outcome in NOT_RUN:
                total["not_run"] += 1
            elif verdict.outcome == "passed" and not (surprise and self.outcome_of(verdict.test) == "passed"):
                total["passed"] += 1
                total["unexpected_passes"] += surprise
            else:
                total["failed" if surprise else "expected_failures"] += 1
        return total

    def updated(self, verdicts: Iterable[UpstreamVerdict], tests: Collection[str], origin: str) -> Judge:
        """Accept these verdicts. Other tests keep what was accepted; tests that the suite no longer has are
        removed."""
        accepted = self.accepted
        write(accepted.suite, accepted.profile, accepted.changes(verdicts, origin), tests)
        return replace(self, accepted=load_tests(accepted.suite, accepted.profile, accepted.soc))


def _add_assertion(reason: str, verdict: UpstreamVerdict) -> str:
    """Add what was asserted, if the reason is only the end of a longer error."""
    errors = [
        line.strip() for _, error in verdict.problems[:1] for line in error.splitlines() if line.strip()
    ]
    return f"{errors[0]}: {reason}" if errors and errors[0] not in reason else reason
