"""Steps whose work is on programs of suites: with the packages of each suite, and known by its code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ci.cached_steps import CachedStep, run_step
from ci.models.own_packages import NO_PACKAGES, OwnPackages, installed
from ci.outcome import Result
from ci.results import folder_digest
from ci.suite.programs import NO_SUITE, Program


class ProgramStep(CachedStep):
    own_packages: ClassVar[bool] = True
    """Whether the user's code runs in it, with the packages that its suite names."""

    def subject(self, program: Any) -> str:
        suite: Path = program.suite
        return f"{program.name} {suite.parent.name}/{suite.name} {program.model_without_suite}"

    def code(self, program: Any) -> str:
        # Of a model that no suite has, the folder may be anything, with any number of files.
        suite: Path = program.suite
        return f"{suite} {folder_digest(suite.parent)}" if suite.name != NO_SUITE else ""


def run_cached_step(step: ProgramStep, programs: Iterable[Program]) -> dict[str, Result]:
    """The result of each program by name."""
    chosen, results = list(programs), dict[str, Result]()
    groups = by_packages(chosen, step.plan.selection.store) if step.own_packages else [(NO_PACKAGES, chosen)]
    for own, alike in groups:
        results |= run_step(step, alike, own)
    return results


def by_packages(programs: Sequence[Program], store: Path) -> Iterator[tuple[OwnPackages, list[Program]]]:
    """The programs of suites with equal packages of their own, with these packages installed."""
    for needs in dict.fromkeys(program.needs for program in programs):
        yield installed(needs, store), [program for program in programs if program.needs == needs]
