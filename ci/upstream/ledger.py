"""The expected result of each test (manifests/delegate/<profile>.toml) and its cost (durations.json)."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, Field

from provisioning.base.documents import Model, load
from provisioning.base.errors import ManifestError
from provisioning.base.settings import MANIFESTS

DIRECTORY = MANIFESTS / "delegate"

HEADER = """\
# What ExecuTorch's delegate suite does with the {profile} profile where a test does not pass, and why.
# `outcome`: failed, not_run (skipped, or needs what is not installed), expected_failure (marked so upstream).
# Without `socs` an entry holds for every chip. `nox -s test_delegate -- --update-ledger` rewrites this file.
schema = 1

# A fixed choice of quick and different tests for CI: `nox -s test_delegate -- --sample`.
"""

Kind = Literal["failed", "not_run", "expected_failure"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A test's result: `passed`, `failed`, `not_run`, or `expected_failure` if upstream marks it so."""

    test: str
    outcome: str
    reason: str = ""
    problems: tuple[tuple[str, str], ...] = ()
    """The failed subtests, or the whole test under an empty name, each with its error."""
    subtests: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of the worker and its children: other work on the machine does not affect it."""
    peak: int = 0
    cached: bool = False
    crashed: bool = False
    """Whether the process died, so that nothing was measured."""


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
        lines = [HEADER.format(profile=self.profile) + "sample = ["]
        lines += [f"  {json.dumps(test)}," for test in self.sample]
        lines.append("]")
        for each in self.expected:
            lines += ["", "[[expected]]", f"test = {json.dumps(each.test)}"]
            lines.append(f"outcome = {json.dumps(each.outcome)}")
            if each.socs:
                lines.append(f"socs = {json.dumps(list(each.socs))}")
            lines.append(f"cause = {_quoted(each.cause)}")
        return "\n".join(lines) + "\n"


def ledger_path(profile: str) -> Path:
    return DIRECTORY / f"{profile}.toml"


def load_ledger(profile: str, path: Path | None = None) -> Ledger:
    """Without a file every test is expected to pass."""
    path = path or ledger_path(profile)
    if not path.is_file():
        return Ledger(profile)
    table = load(path, Table)
    for index, row in enumerate(table.expected):
        for other in table.expected[:index]:
            if other.test == row.test and (not row.socs or not other.socs or set(row.socs) & set(other.socs)):
                raise ManifestError(
                    path, "expected", expected="one entry for each test and chip", found=f"{row.test} twice"
                )
    return Ledger(profile, table.expected, table.sample)


@dataclass(frozen=True, slots=True)
class Cost:
    """A test's expected CPU time and memory."""

    seconds: float
    megabytes: int


UNKNOWN = Cost(5.0, 900)
"""For a test that was never measured."""


def durations_path() -> Path:
    return DIRECTORY / "durations.json"


def load_durations(path: Path | None = None) -> dict[str, Cost]:
    path = path or durations_path()
    if not path.is_file():
        return {}
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["tests"]
        return {str(test): Cost(float(seconds), int(size)) for test, (seconds, size) in rows.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(
            path,
            "tests",
            expected='{"test": [seconds, megabytes]}',
            found=f"{type(error).__name__}: {error}",
            remedy="nox -s test_delegate -- --update-ledger writes it again",
        ) from error


def durations_text(costs: Mapping[str, Cost]) -> str:
    rows = [
        f"    {json.dumps(test)}: [{cost.seconds:.1f}, {cost.megabytes}]"
        for test, cost in sorted(costs.items())
    ]
    return '{\n  "schema": 1,\n  "tests": {\n' + ",\n".join(rows) + "\n  }\n}\n"


def measured(costs: Mapping[str, Cost], verdicts: Iterable[Verdict]) -> dict[str, Cost]:
    """`costs` with the measurements of the tests that ran now."""
    new = {v.test: Cost(v.cpu_seconds, v.peak >> 20) for v in verdicts if not v.cached and not v.crashed}
    return {**costs, **new}


def _quoted(text: str) -> str:
    if len(text) < 90:
        return json.dumps(text, ensure_ascii=False)
    body = "\n".join(textwrap.wrap(text.replace("\\", "\\\\").replace('"""', "'''"), 104))
    return f'"""\n{body}\n"""'
