"""Compare verdicts with the ledger: findings, counts, and the ledger that would expect these verdicts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci.engine.workers.parent import tail
from ci.upstream.ledger import (
    Cost,
    Ledger,
    Verdict,
    durations_path,
    durations_text,
    ledger_path,
    measured,
)
from provisioning.base.commands import session
from provisioning.base.diagnosis import Explanation, nearest
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Severity
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC
from provisioning.base.stage_run import StageRun

LESS_DB = 1.0
"""Equal inputs give equal figures: a test is worse if its SQNR is less than recorded by more than this."""

LOGS_IN_REPORT = 25
"""How many logs of surprises the report names; all logs are in the folder."""


@dataclass(frozen=True, slots=True)
class Judge:
    """What is expected of tests on one chip."""

    ledger: Ledger
    soc: str
    logs: Path
    costs: Mapping[str, Cost] = field(default_factory=dict)

    @property
    def rules(self) -> str:
        """What the names of the rules begin with."""
        return "delegate" if self.ledger.suite == "delegate" else "upstream"

    def expected(self, test: str) -> str:
        return self.ledger.outcome(test, self.soc)

    def is_surprise(self, verdict: Verdict) -> bool:
        return verdict.outcome != self.expected(verdict.test) or bool(self.lost(verdict))

    def lost(self, verdict: Verdict) -> float:
        """The dB by which the test is worse than recorded; figures are recorded on the default chip."""
        recorded = self.costs.get(verdict.test)
        if recorded is None or recorded.sqnr_db is None or verdict.sqnr_db is None or self.soc != DEFAULT_SOC:
            return 0.0
        lost = recorded.sqnr_db - verdict.sqnr_db
        return lost if lost > LESS_DB else 0.0

    def findings(self, stage: StageRun, verdicts: Iterable[Verdict]) -> None:
        """A note for every test that the ledger names, an error for every surprise."""
        for verdict in sorted(verdicts, key=lambda each: each.test):
            entry = self.ledger.entry(verdict.test, self.soc)
            if self.is_surprise(verdict):
                self._surprise(stage, verdict)
            elif entry:
                absent = verdict.outcome == "not_run"
                rule = f"{self.rules}-not-run" if absent else f"{self.rules}-known-failure"
                message = f"not run: {entry.cause}" if absent else entry.cause
                stage.add(rule, Severity.NOTE, verdict.test, message, self._again(stage, verdict))

    def _surprise(self, stage: StageRun, verdict: Verdict) -> None:
        expected, log = self.expected(verdict.test), self.logs / f"{verdict.test}.log"
        remedy = self._again(stage, verdict)
        rule = f"{self.rules}-" + {"passed": "passed", "not_run": "not-run"}.get(verdict.outcome, "failed")
        if verdict.outcome == expected:
            rule = f"{self.rules}-accuracy"
            before = self.costs[verdict.test].sqnr_db
            message = f"its SQNR was {before:.1f} dB when it was recorded, and is {verdict.sqnr_db:.1f} dB"
        elif verdict.outcome == "passed":
            entry = self.ledger.entry(verdict.test, self.soc)
            message = f"passes, and the ledger has it as {expected}: {entry.cause if entry else ''}"
            remedy = self._again(stage, verdict, "--update-ledger")
        elif verdict.outcome == "not_run":
            message = f"was not run: {verdict.reason}"
        elif expected != "passed":
            message = f"is {verdict.outcome} now, and the ledger has it as {expected}: {verdict.reason}"
            remedy = self._again(stage, verdict, "--update-ledger")
        elif known := self._explanation(verdict):
            message, remedy = f"{verdict.reason.rstrip('.')}. {known}", known.fix
        else:
            message = f"{verdict.reason} (nothing known matches its log)"
            remedy = f"read {log}, or {self._again(stage, verdict, '--keep')}"
        stage.add(rule, Severity.ERROR, verdict.test, message, remedy)
        if log.is_file() and len(stage.artifacts) < LOGS_IN_REPORT:
            stage.artifacts.append(Artifact.of("log", log))

    def _again(self, stage: StageRun, verdict: Verdict, *flags: str) -> str:
        """The command that runs this test again."""
        words = [] if self.ledger.suite == "delegate" else [self.ledger.suite]
        words += ["-k", verdict.test.rpartition(".")[2]]
        if self.ledger.profile != DEFAULT_PROFILE:
            words += ["--profile", self.ledger.profile]
        if self.soc != DEFAULT_SOC:
            words += ["--soc", self.soc]
        return session(stage.stage, *words, *flags)

    def _explanation(self, verdict: Verdict) -> Explanation | None:
        return nearest(f"{tail(self.logs / f'{verdict.test}.log')}\n{verdict.reason}\n")

    def counts(self, verdicts: Iterable[Verdict]) -> dict[str, int]:
        """Each verdict counts once, as passed, failed, not run or expected failure."""
        names = ("passed", "failed", "not_run", "expected_failures", "unexpected_passes", "cached")
        total = dict.fromkeys(names, 0)
        for verdict in verdicts:
            total["cached"] += verdict.cached
            if verdict.outcome in ("passed", "not_run"):
                total[verdict.outcome] += 1
                total["unexpected_passes"] += verdict.outcome == "passed" and self.is_surprise(verdict)
            else:
                total["failed" if self.is_surprise(verdict) else "expected_failures"] += 1
        return total

    def updated_ledger(
        self, verdicts: Iterable[Verdict], costs: Mapping[str, Cost], tests: Iterable[str]
    ) -> Ledger:
        """Write the ledger that expects these verdicts, and the tests' durations."""
        verdicts = list(verdicts)
        causes = {each.test: self._cause(each) for each in verdicts if each.outcome != "passed"}
        ledger = self.ledger.updated(verdicts, causes, self.soc)
        costs = measured(costs, verdicts)
        for path, text in (
            (ledger_path(ledger.suite, ledger.profile), ledger.as_toml()),
            (
                durations_path(ledger.suite),
                durations_text({t: costs[t] for t in tests if t in costs}),
            ),
        ):
            replace_text(path, text)
            sys.stderr.write(f"wrote {path}\n")
        return ledger

    def _cause(self, verdict: Verdict) -> str:
        if verdict.outcome == "failed" and (known := self._explanation(verdict)):
            return f"{verdict.reason.rstrip('.')}. {known.cause}"
        return verdict.reason or verdict.outcome
