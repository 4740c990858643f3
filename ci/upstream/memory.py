"""Verdicts of earlier runs, as long as nothing that the tests touched has changed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ci.engine.memo import Entry, Memo, Roots, Touched
from ci.upstream.judge import Judge
from ci.upstream.ledger import Verdict
from ci.upstream.suite import Machinery, Suite
from provisioning.base.settings import ROOT

REASONS_SHOWN = 3


class Memory:
    """Only verdicts that the ledger expects are remembered. A surprise runs again each time, so that its log
    and files can be read."""

    def __init__(self, suite: Suite, on: Machinery, judge: Judge, store: Path, *, reuse: bool) -> None:
        self._suite, self._on, self._judge = suite, on, judge
        roots = Roots({"toolkit": ROOT, **on.roots(), "python": sys.prefix, "store": store})
        self._memo = Memo(store, suite.stage, roots, environ=on.environment, reuse=reuse)
        # Which tests there are is no verdict, so --no-cache does not concern it.
        self._lists = Memo(store, suite.stage, roots, environ=on.environment)
        self.not_remembered: dict[str, str] = {}

    def tests(self, ask: Callable[[], tuple[list[str], Touched]]) -> list[str]:
        """Every test of the suite; `ask` lists them where that is not remembered."""
        key = {"module": self._suite.module, "python": self._on.versions["python"]}
        found = self._lists.find("the tests of the suite", key)
        if not isinstance(found, Entry):
            tests, touched = ask()
            found = self._lists.remember("the tests of the suite", key, {"tests": tests}, touched)
        return [str(name) for name in found.result["tests"]]

    def known(self, tests: Iterable[str]) -> dict[str, Verdict]:
        """The remembered verdicts; says why the other tests run."""
        known, why = {}, Counter[str]()
        for test in tests:
            found = self._memo.find(test, self._on.key(test))
            verdict = verdict_of(test, found.result) if isinstance(found, Entry) else None
            if verdict and not self._judge.is_surprise(verdict):
                known[test] = verdict
            else:
                why["the ledger changed" if isinstance(found, Entry) else found.why] += 1
        for reason, count in why.most_common(REASONS_SHOWN):
            sys.stderr.write(f"{count} to run: {reason}\n")
        return known

    def record(self, verdict: Verdict, touched: Touched, common: Touched, scratch: Path) -> None:
        key = self._on.key(verdict.test)
        if verdict.fault == "environment":
            return
        if verdict.fault or self._judge.is_surprise(verdict):
            self._memo.forget(key)
            return
        names = ("outcome", "reason", "subtests", "seconds")
        result = {name: getattr(verdict, name) for name in names}
        entry = self._memo.remember(verdict.test, key, result, touched, common=common, own=[scratch])
        if entry.not_remembered:
            self.not_remembered[verdict.test] = entry.not_remembered

    def close(self) -> None:
        self._memo.close()


def verdict_of(test: str, result: Mapping[str, object]) -> Verdict:
    return Verdict(
        test,
        outcome=str(result["outcome"]),
        reason=str(result["reason"]),
        subtests=int(str(result["subtests"])),
        seconds=float(str(result["seconds"])),
        cached=True,
    )
