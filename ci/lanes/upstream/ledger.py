"""What is expected of each test (manifests/upstream/<suite>/<profile>.toml); what it cost, and why it did not
pass, when it was recorded (<profile>-<chip>.json)."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field

from ci.lanes.upstream.verdict import UpstreamVerdict, reasons_of
from provisioning.base.accepted import Accepted, Values, load_accepted
from provisioning.base.accepted import locked as locked_folder
from provisioning.base.documents import Model, load
from provisioning.base.errors import ManifestError
from provisioning.base.settings import MANIFESTS

DIRECTORY = MANIFESTS / "upstream"

HEADER = """\
# What ExecuTorch's own tests ({suite}) do with the {profile} profile where one does not pass, and why.
# `outcome`: dies (while lowering), wrong (outputs), failed (otherwise), crash, memory (more than the limit),
# timeout (no result within --timeout), bad_test (a mistake in the test, which upstream skips or passes),
# absent (needs a module that is not installed), not_run (skipped), expected_failure (marked so upstream).
# `by_chance`: it passes or ends so by chance. Without `socs` an entry holds for every chip.
# `nox -s test_upstream -- {suite} --accept` rewrites this file.
schema = 1
"""

Kind = Literal[
    "failed",
    "dies",
    "wrong",
    "crash",
    "memory",
    "timeout",
    "bad_test",
    "absent",
    "not_run",
    "expected_failure",
]

GONE = ("crash", "memory", "timeout")
"""The process ended, so that nothing was measured."""

NOT_RUN = ("absent", "not_run")


class ExpectedTests(Model):
    test: str
    outcome: Kind
    cause: Annotated[str, Field(min_length=1), AfterValidator(lambda text: " ".join(text.split()))]
    socs: tuple[str, ...] = ()
    by_chance: bool = False
    """It passes or ends like this by chance, with the same inputs."""

    def covers(self, soc: str) -> bool:
        return not self.socs or soc in self.socs


class Group(Model):
    """Tests that end alike, for one reason."""

    test: str | Annotated[tuple[str, ...], Field(min_length=1)]
    outcome: Kind
    cause: str
    socs: tuple[str, ...] = ()
    by_chance: bool = False

    def tests(self) -> Iterator[ExpectedTests]:
        for test in [self.test] if isinstance(self.test, str) else self.test:
            yield ExpectedTests(test=test, **self.model_dump(exclude={"test"}))


class LedgerFile(Model):
    schema_: Literal[1] = Field(alias="schema")
    expected: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    suite: str
    profile: str
    expected: tuple[ExpectedTests, ...] = ()

    def entry(self, test: str, soc: str) -> ExpectedTests | None:
        return next((row for row in self.expected if row.test == test and row.covers(soc)), None)

    def outcome(self, test: str, soc: str) -> str:
        entry = self.entry(test, soc)
        return entry.outcome if entry else "passed"

    def updated(
        self,
        verdicts: Iterable[UpstreamVerdict],
        causes: Mapping[str, str],
        soc: str,
        stale: Collection[str] = (),
    ) -> Ledger:
        """The ledger that expects these verdicts. Other tests keep their entries, and valid entries keep
        their cause; those of `stale` tests are valid no longer."""
        from provisioning.manifest import load_socs

        expected = list(self.expected)
        for verdict in verdicts:
            known = self.entry(verdict.test, soc)
            if known and known.by_chance and verdict.outcome == "passed":
                continue
            if verdict.outcome == (known.outcome if known else "passed") and verdict.test not in stale:
                continue
            if known:
                expected.remove(known)
                covered = known.socs or sorted(load_socs())
                if others := tuple(other for other in covered if other != soc):
                    expected.append(known.model_copy(update={"socs": others}))
            if verdict.outcome != "passed":
                outcome = cast(Kind, verdict.outcome)
                cause = causes[verdict.test]
                expected.append(ExpectedTests(test=verdict.test, outcome=outcome, cause=cause, socs=(soc,)))
        return replace(self, expected=_joined(expected))

    def only(self, names: Collection[str]) -> Ledger:
        return replace(self, expected=tuple(row for row in self.expected if row.test in names))

    def as_toml(self) -> str:
        lines = [HEADER.format(suite=self.suite, profile=self.profile).rstrip()]
        groups: dict[tuple[str, tuple[str, ...], str, bool], list[str]] = {}
        for row in self.expected:
            groups.setdefault((row.outcome, row.socs, row.cause, row.by_chance), []).append(row.test)
        for (outcome, socs, cause, by_chance), names in groups.items():
            listed = "".join(f"  {json.dumps(test)},\n" for test in names)
            name = json.dumps(names[0]) if len(names) == 1 else f"[\n{listed}]"
            lines += ["", "[[expected]]", f"test = {name}", f"outcome = {json.dumps(outcome)}"]
            if socs:
                lines.append(f"socs = {json.dumps(list(socs))}")
            if by_chance:
                lines.append("by_chance = true")
            lines.append(f"cause = {_quoted(cause)}")
        return "\n".join(lines) + "\n"


def _joined(entries: Iterable[ExpectedTests]) -> tuple[ExpectedTests, ...]:
    """One entry for all chips on which a test ends alike, for one reason."""
    chips: dict[tuple[str, Kind, str, bool], set[str]] = {}
    for entry in entries:
        key = (entry.test, entry.outcome, entry.cause, entry.by_chance)
        chips.setdefault(key, set()).update(entry.socs)
    joined = (
        ExpectedTests(test=test, outcome=outcome, cause=cause, by_chance=by_chance, socs=tuple(sorted(socs)))
        for (test, outcome, cause, by_chance), socs in chips.items()
    )
    return tuple(sorted(joined, key=lambda row: (row.test, row.socs)))


def locked() -> AbstractContextManager[None]:
    """Keep other runs from writing ledgers, records and the table."""
    return locked_folder(DIRECTORY)


def ledger_path(suite: str, profile: str) -> Path:
    return DIRECTORY / suite / f"{profile}.toml"


def load_ledger(suite: str, profile: str, path: Path | None = None) -> Ledger:
    """Without a file every test is expected to pass."""
    path = path or ledger_path(suite, profile)
    if not path.is_file():
        return Ledger(suite, profile)
    file = load(path, LedgerFile)
    rows: dict[str, list[ExpectedTests]] = {}
    for row in (row for group in file.expected for row in group.tests()):
        for other in rows.setdefault(row.test, []):
            if not row.socs or not other.socs or set(row.socs) & set(other.socs):
                raise ManifestError(
                    path, "expected", expected="one entry for each test and chip", found=f"{row.test} twice"
                )
        rows[row.test].append(row)
    expected = tuple(sorted(itertools.chain(*rows.values()), key=lambda row: (row.test, row.socs)))
    return Ledger(suite, profile, expected)


@dataclass(frozen=True, slots=True)
class RecordedTest:
    """What a test took, and why it did not pass."""

    seconds: float
    megabytes: int
    measured: str = ""
    """The versions that gave these."""
    reasons: tuple[str, ...] = ()
    """Those of `reasons_of`; none of a test that passes."""


UNKNOWN = RecordedTest(5.0, 900)
"""For a test that was never measured."""


@dataclass(frozen=True, slots=True)
class SuiteRecord:
    """What a suite's tests gave on one chip. Runs of parts of a suite add up in it."""

    measured: str = ""
    """The versions of what was measured last. Parts of a suite may be older."""
    tests: Mapping[str, RecordedTest] = field(default_factory=dict)

    def with_verdicts(self, verdicts: Iterable[UpstreamVerdict], measured: str) -> SuiteRecord:
        """With what was measured now. A test whose process ended keeps what it took before."""
        tests = dict(self.tests)
        for verdict in verdicts:
            old = tests.get(verdict.test, UNKNOWN)
            if not (verdict.outcome in GONE or (verdict.cached and verdict.test in tests)):
                old = RecordedTest(verdict.cpu_seconds, verdict.peak >> 20)
            tests[verdict.test] = replace(old, measured=measured, reasons=reasons_of(verdict))
        return SuiteRecord(measured, tests)

    def only(self, names: Collection[str]) -> SuiteRecord:
        return SuiteRecord(self.measured, {test: row for test, row in self.tests.items() if test in names})

    def as_json(self) -> str:
        rows = {test: _values_of(row, self.measured) for test, row in self.tests.items()}
        return Accepted(Path()).updated({ALL_TESTS: {"measured": self.measured}, **rows}).as_text()


ALL_TESTS = "(all)"
"""What is the same for all tests of a record."""


def _values_of(row: RecordedTest, measured: str) -> Values:
    return {
        "cost": [round(row.seconds, 1), row.megabytes],
        "reasons": list(row.reasons) or None,
        "measured": row.measured if row.measured != measured else None,
    }


def record_path(suite: str, profile: str, soc: str) -> Path:
    return DIRECTORY / suite / f"{profile}-{soc}.json"


def load_record(suite: str, profile: str, soc: str, path: Path | None = None) -> SuiteRecord:
    path = path or record_path(suite, profile, soc)
    rows = dict(load_accepted(path, AGAIN).subjects)
    measured = str(rows.pop(ALL_TESTS, {}).get("measured", ""))
    try:
        return SuiteRecord(measured, {test: _recorded_of(row, measured) for test, row in rows.items()})
    except (ValueError, KeyError, TypeError) as error:
        expected = "cost [seconds, megabytes] of each, and its reasons"
        found = f"{type(error).__name__}: {error}"
        raise ManifestError(path, "tests", expected=expected, found=found, fix=AGAIN) from error


AGAIN = "remove it; --accept writes it again"


def _recorded_of(values: Mapping[str, Any], measured: str) -> RecordedTest:
    seconds, megabytes = values["cost"]
    reasons = tuple(map(str, values.get("reasons", ())))
    return RecordedTest(float(seconds), int(megabytes), str(values.get("measured", measured)), reasons)


def _quoted(text: str) -> str:
    if len(text) < 90:
        return json.dumps(text, ensure_ascii=False)
    body = "\n".join(textwrap.wrap(text.replace("\\", "\\\\").replace('"""', "'''"), 104))
    return f'"""\n{body}\n"""'
