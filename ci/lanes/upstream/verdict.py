"""The verdict on one test, and why it does not pass without what differs from run to run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci.artifacts.compiler_log import CRASHES
from ci.outcome import first_line

BY_CHANCE = ("memory", "timeout")
"""Outcomes of which a process says something else each time."""

OF_WHOLE_TEST = ("absent", "not_run", "expected_failure")
"""Outcomes that are not those of a part."""

GUILTY = re.compile(rf"(?:{CRASHES}|; and of )(\S+) \(")


@dataclass(frozen=True, slots=True)
class TestNames:
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TestOrder:
    """What a process gets that runs a test."""

    test: str
    keep: bool
    """Whether the files of one that passes stay."""
    into: Path
    log: Path


@dataclass(frozen=True, slots=True)
class Part:
    """One model or subtest of a test: its result and its least SQNR in dB."""

    result: str
    sqnr_db: float | None = None
    cpu: tuple[str, ...] = ()
    """The operators that stayed on the CPU."""
    name: str = field(default="", compare=False)
    error: str = field(default="", compare=False)
    measured: Mapping[str, object] = field(default_factory=dict, compare=False)
    """What the adapter of the suite measured beside these, as JSON."""


@dataclass(frozen=True, slots=True)
class UpstreamVerdict:
    """A test's outcome, as `Outcome` names it."""

    test: str
    outcome: str
    reason: str = ""
    problems: tuple[tuple[str, str], ...] = ()
    """The failed subtests, or the whole test under an empty name, each with its error."""
    parts: tuple[Part, ...] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of the worker and its children: other work on the machine does not affect it."""
    peak: int = 0
    cached: bool = False
    fix: str = ""
    """Of what the machine is to blame for: it says nothing about the test."""


def reasons_of(verdict: UpstreamVerdict) -> tuple[str, ...]:
    """Why a test fails, as accepted and compared: the operators that crash the compiler, a missing module, a
    signal, the first line of an error. Each part of a test may have a reason of its own. Wrong outputs have
    their figures instead."""
    if verdict.outcome in BY_CHANCE:
        return ()
    errors = [part.error for part in verdict.parts if part.error and part.result != "wrong"]
    if verdict.outcome in OF_WHOLE_TEST or not (errors or verdict.outcome == "wrong"):
        errors = [verdict.reason]
    return tuple(dict.fromkeys(stable for error in errors for stable in _stable(error)))


def _stable(error: str) -> list[str]:
    if operators := GUILTY.findall(error):
        return [f"{CRASHES}{operator}" for operator in operators]
    return [first_line(error)] if error.strip() else []
