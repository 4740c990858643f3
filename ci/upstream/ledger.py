"""What is expected of each test (manifests/upstream/<suite>/<profile>.toml), and what it costs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field

from provisioning.base.documents import Model, load
from provisioning.base.errors import ManifestError
from provisioning.base.settings import MANIFESTS

DIRECTORY = MANIFESTS / "upstream"

HEADER = """\
# What ExecuTorch's own tests ({suite}) do with the {profile} profile where one does not pass, and why.
# `outcome`: failed, dies (while lowering), wrong (outputs), bad_test (a mistake in the test, which upstream
# skips), not_run (skipped, or needs what is not installed), expected_failure (marked so upstream).
# Without `socs` an entry holds for every chip. `nox -s {stage} -- --update-ledger` rewrites this file.
schema = 1
"""

SAMPLE = """
# A fixed choice of quick and different tests for CI: `--sample`.
sample = [
{tests}
]
"""

Kind = Literal["failed", "dies", "wrong", "bad_test", "not_run", "expected_failure"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A test's result: `passed`, `failed`, `not_run`, or `expected_failure` if upstream marks it so."""

    test: str
    outcome: str
    reason: str = ""
    problems: tuple[tuple[str, str], ...] = ()
    """The failed subtests, or the whole test under an empty name, each with its error."""
    subtests: int = 0
    parts: tuple[Mapping[str, Any], ...] = ()
    """What each model of the test gave, where its suite says so."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of the worker and its children: other work on the machine does not affect it."""
    peak: int = 0
    cached: bool = False
    crashed: bool = False
    """Whether the process died, so that nothing was measured."""

    @property
    def sqnr_db(self) -> float | None:
        """The least of its parts."""
        return min((part["sqnr_db"] for part in self.parts if part["sqnr_db"] is not None), default=None)


class Expected(Model):
    test: str
    outcome: Kind
    cause: Annotated[str, Field(min_length=1), AfterValidator(lambda text: " ".join(text.split()))]
    socs: tuple[str, ...] = ()

    def covers(self, soc: str) -> bool:
        return not self.socs or soc in self.socs


class Table(Model):
    """The file."""

    schema_: Literal[1] = Field(alias="schema")
    sample: tuple[str, ...] = ()
    expected: tuple[Expected, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    suite: str
    profile: str
    expected: tuple[Expected, ...] = ()
    sample: tuple[str, ...] = ()

    def entry(self, test: str, soc: str) -> Expected | None:
        return next((each for each in self.expected if each.test == test and each.covers(soc)), None)

    def outcome(self, test: str, soc: str) -> str:
        entry = self.entry(test, soc)
        return entry.outcome if entry else "passed"

    def updated(self, verdicts: Iterable[Verdict], causes: Mapping[str, str], soc: str) -> Ledger:
        """The ledger that expects these verdicts. Other tests keep their entries, and valid entries keep
        their cause."""
        from provisioning.manifest import load_socs

        expected = list(self.expected)
        for verdict in verdicts:
            known = self.entry(verdict.test, soc)
            if verdict.outcome == (known.outcome if known else "passed"):
                continue
            if known:
                expected.remove(known)
                covered = known.socs or sorted(load_socs())
                if others := tuple(other for other in covered if other != soc):
                    expected.append(known.model_copy(update={"socs": others}))
            if verdict.outcome != "passed":
                outcome = cast(Kind, verdict.outcome)
                cause = causes[verdict.test]
                expected.append(Expected(test=verdict.test, outcome=outcome, cause=cause, socs=(soc,)))
        return replace(self, expected=tuple(sorted(expected, key=lambda each: (each.test, each.socs))))

    def as_toml(self) -> str:
        stage = "test_delegate" if self.suite == "delegate" else "test_upstream"
        lines = [HEADER.format(suite=self.suite, profile=self.profile, stage=stage).rstrip()]
        if self.sample:
            tests = "\n".join(f"  {json.dumps(test)}," for test in self.sample)
            lines.append(SAMPLE.format(tests=tests).rstrip())
        for each in self.expected:
            lines += ["", "[[expected]]", f"test = {json.dumps(each.test)}"]
            lines.append(f"outcome = {json.dumps(each.outcome)}")
            if each.socs:
                lines.append(f"socs = {json.dumps(list(each.socs))}")
            lines.append(f"cause = {_quoted(each.cause)}")
        return "\n".join(lines) + "\n"


def ledger_path(suite: str, profile: str) -> Path:
    return DIRECTORY / suite / f"{profile}.toml"


def load_ledger(suite: str, profile: str, path: Path | None = None) -> Ledger:
    """Without a file every test is expected to pass."""
    path = path or ledger_path(suite, profile)
    if not path.is_file():
        return Ledger(suite, profile)
    table = load(path, Table)
    for index, row in enumerate(table.expected):
        for other in table.expected[:index]:
            if other.test == row.test and (not row.socs or not other.socs or set(row.socs) & set(other.socs)):
                raise ManifestError(
                    path, "expected", expected="one entry for each test and chip", found=f"{row.test} twice"
                )
    return Ledger(suite, profile, table.expected, table.sample)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a test took, and its least SQNR in dB where it tells."""

    seconds: float
    megabytes: int
    sqnr_db: float | None = None


UNKNOWN = Cost(5.0, 900)
"""For a test that was never measured."""


def durations_path(suite: str) -> Path:
    return DIRECTORY / suite / "durations.json"


def load_durations(suite: str, path: Path | None = None) -> dict[str, Cost]:
    path = path or durations_path(suite)
    if not path.is_file():
        return {}
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["tests"]
        return {str(test): _cost(*row) for test, row in rows.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(
            path,
            "tests",
            expected='{"test": [seconds, megabytes, dB]}',
            found=f"{type(error).__name__}: {error}",
            remedy="--update-ledger writes it again",
        ) from error


def _cost(seconds: float, megabytes: float, sqnr_db: float | None = None) -> Cost:
    return Cost(float(seconds), int(megabytes), None if sqnr_db is None else float(sqnr_db))


def durations_text(costs: Mapping[str, Cost]) -> str:
    rows = [
        f"    {json.dumps(test)}: [{cost.seconds:.1f}, {cost.megabytes}"
        + (f", {cost.sqnr_db:.1f}]" if cost.sqnr_db is not None else "]")
        for test, cost in sorted(costs.items())
    ]
    return '{\n  "schema": 1,\n  "tests": {\n' + ",\n".join(rows) + "\n  }\n}\n"


def measured(costs: Mapping[str, Cost], verdicts: Iterable[Verdict]) -> dict[str, Cost]:
    """`costs` with the measurements of the tests that ran now."""
    new = {
        v.test: Cost(v.cpu_seconds, v.peak >> 20, v.sqnr_db)
        for v in verdicts
        if not v.cached and not v.crashed
    }
    return {**costs, **new}


def _quoted(text: str) -> str:
    if len(text) < 90:
        return json.dumps(text, ensure_ascii=False)
    body = "\n".join(textwrap.wrap(text.replace("\\", "\\\\").replace('"""', "'''"), 104))
    return f'"""\n{body}\n"""'
