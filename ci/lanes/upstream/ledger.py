"""What is expected of each test (manifests/upstream/<suite>/<profile>.toml), and what it cost, why it did not
pass and what each of its parts gave when it was recorded (<profile>-<chip>.json)."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field

from ci.lanes.upstream.verdict import Draw, RecordedPart, UpstreamVerdict, reasons_of
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

SAMPLE = """
# A fixed choice of quick and different tests for CI: `--sample`.
sample = [
{tests}
]
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
    sample: tuple[str, ...] = ()
    expected: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    suite: str
    profile: str
    expected: tuple[ExpectedTests, ...] = ()
    sample: tuple[str, ...] = ()

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
        return replace(
            self,
            expected=tuple(row for row in self.expected if row.test in names),
            sample=tuple(test for test in self.sample if test in names),
        )

    def as_toml(self) -> str:
        lines = [HEADER.format(suite=self.suite, profile=self.profile).rstrip()]
        if self.sample:
            tests = "\n".join(f"  {json.dumps(test)}," for test in self.sample)
            lines.append(SAMPLE.format(tests=tests).rstrip())
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
    return Ledger(suite, profile, expected, file.sample)


@dataclass(frozen=True, slots=True)
class RecordedTest:
    """What a test took, why it did not pass, and what each of its parts gave."""

    seconds: float
    megabytes: int
    parts: tuple[RecordedPart, ...] = ()
    measured: str = ""
    """The versions that gave these."""
    reasons: tuple[str, ...] = ()
    """Those of `reasons_of`; none in a record that was written before there were any."""


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
            tests[verdict.test] = replace(
                old, parts=verdict.parts, measured=measured, reasons=reasons_of(verdict)
            )
        return SuiteRecord(measured, tests)

    def versions(self) -> str:
        """Those of all tests, the last ones first."""
        older = Counter(row.measured for row in self.tests.values() if row.measured != self.measured)
        of = len(self.tests)
        return "; ".join(
            [self.measured, *(f"{count} of {of} tests with {name}" for name, count in older.items())]
        )

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
        "parts": [_row_of(part) for part in row.parts] or None,
        "measured": row.measured if row.measured != measured else None,
    }


def _row_of(part: RecordedPart) -> list[Any]:
    row: list[Any] = [part.result, part.sqnr_db, *part.cpu]
    if part.in_float is not None:
        row.append([part.float_db, part.quantized_db, *part.in_float])
    if part.draws:
        row.append([list(draw if draw.refused else draw[:3]) for draw in part.draws])
    return row if len(row) > 2 or part.sqnr_db is not None else row[:1]


def _part_of(result: str, sqnr_db: float | None = None, *rest: Any) -> RecordedPart:
    texts: list[str] = []
    more: dict[str, Any] = {}
    for row in rest:
        if isinstance(row, str):
            texts.append(row)
        elif row and isinstance(row[0], list):
            more["draws"] = tuple(map(_draw_of, row))
        else:
            float_db, quantized_db, *in_float = row
            more["float_db"], more["quantized_db"] = _figure(float_db), _figure(quantized_db)
            more["in_float"] = tuple(map(str, in_float))
    return RecordedPart(str(result), _figure(sqnr_db), tuple(texts), **more)


def _draw_of(row: Sequence[Any]) -> Draw:
    sqnr_db, float_db, quantized_db = map(_figure, row[:3])
    return Draw(sqnr_db, float_db, quantized_db, refused=len(row) > 3)


def _figure(value: float | None) -> float | None:
    return None if value is None else float(value)


def record_path(suite: str, profile: str, soc: str) -> Path:
    return DIRECTORY / suite / f"{profile}-{soc}.json"


def record_of_run(reports: Path, suite: str, soc: str) -> Path:
    """What a run gave, in the form of a committed record."""
    return reports / "operators" / f"{suite}-{soc}.json"


def load_record(suite: str, profile: str, soc: str, path: Path | None = None) -> SuiteRecord:
    path = path or record_path(suite, profile, soc)
    rows = dict(load_accepted(path, AGAIN).subjects)
    measured = str(rows.pop(ALL_TESTS, {}).get("measured", ""))
    try:
        return SuiteRecord(measured, {test: _recorded_of(row, measured) for test, row in rows.items()})
    except (ValueError, KeyError, TypeError) as error:
        expected = "cost [seconds, megabytes] of each, and its reasons and [result, dB, …] of its parts"
        found = f"{type(error).__name__}: {error}"
        raise ManifestError(path, "tests", expected=expected, found=found, fix=AGAIN) from error


AGAIN = "remove it; --accept writes it again"


def _recorded_of(values: Mapping[str, Any], measured: str) -> RecordedTest:
    seconds, megabytes = values["cost"]
    parts = tuple(_part_of(*part) for part in values.get("parts", ()))
    reasons = tuple(map(str, values.get("reasons", ())))
    return RecordedTest(float(seconds), int(megabytes), parts, str(values.get("measured", measured)), reasons)


def _quoted(text: str) -> str:
    if len(text) < 90:
        return json.dumps(text, ensure_ascii=False)
    body = "\n".join(textwrap.wrap(text.replace("\\", "\\\\").replace('"""', "'''"), 104))
    return f'"""\n{body}\n"""'
