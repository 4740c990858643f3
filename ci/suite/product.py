"""What a lane writes of the user's model and says of it: `compile` of one model is a suite of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ci.outcome import Result
from ci.suite.one_model import OneModel
from ci.suite.stage import MeasuredValues, Results
from ci.suite.trial import Outcome
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Finding
from provisioning.known_faults import SuspectedFault

NOT_TRIED = Outcome()
ELSEWHERE = "name another folder with -o"


@dataclass(frozen=True, slots=True)
class Product:
    """What is written of a program, and what is said of it."""

    files: Mapping[str, Path | str]
    """By their names in the output: where each lies, or its text."""
    words: Sequence[str] = ()
    """The verdict in one line, then what the reader may have to do something about."""
    more: Sequence[str] = ()
    """What --verbose prints beside them."""
    warnings: Sequence[str] = ()
    outcome: Outcome = NOT_TRIED
    """Its `wrong` makes the command end with exit code 1. The files are written all the same."""
    findings: Sequence[Finding] = ()
    """What an answer says of it (--json)."""
    suspects: Sequence[SuspectedFault] = ()
    """The known faults that its nodes can have."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """What an answer has beside its record."""
    chips: str = ""
    """For a table of several precisions; without them it has no row there."""
    stale: Sequence[Path] = ()
    """Of an earlier product: they go, unless they are written again."""
    unverified: EnvironmentLacking | None = None
    """Why it could not be run, though it was to be. The files are written all the same."""


@dataclass(frozen=True, slots=True)
class SuiteRow:
    """What a suite that gets the model has of it."""

    measured: MeasuredValues
    fields: Mapping[str, object] = field(default_factory=dict)
    """Of its run."""


class Compiles(Protocol):
    """What is asked of a lane's module `product`: the way of a suite's programs, of one model."""

    FIELDS: Sequence[str]
    """What `compile --suite` writes of a run."""

    def programs_of(self, model: OneModel, suite: Path | None = None) -> list[Any]:
        """For each chip the program of a suite of one, or of the suite that will have it. Refuses what cannot
        be compiled; imports nothing heavy."""

    def planned(self, model: OneModel, programs: Sequence[Any]) -> Any: ...

    def results_of(self, model: OneModel, plan: Any) -> Results:
        """Of all steps. `product_of` may raise the error of what failed."""

    def product_of(self, model: OneModel, plan: Any, program: Any, results: Mapping[str, Result]) -> Product:
        """From its results by step. Raises the error of a program that there is not."""

    def suite_row(self, plan: Any, results: Results) -> SuiteRow:
        """Raises the error of what no suite may have."""
