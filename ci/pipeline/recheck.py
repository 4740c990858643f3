"""`--recheck`: what a report says of programs that were compiled twice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from ci.engine import recheck as engine
from ci.engine.recheck import Rechecked, RepeatableWork
from provisioning.base.commands import Fix
from provisioning.base.findings import Finding, Metric, Severity

SHOWN = 3
"""How many differences of a program its message names."""


def recheck(works: Iterable[RepeatableWork], share: float) -> list[Rechecked]:
    """Compile this share of the programs twice, and print how many were equal."""
    passed = list(works)
    done = engine.recheck(passed, share)
    different = sum(bool(work.differences) for work in done)
    failed = sum(work.failure is not None for work in done)
    verdict = f"{different} differ" if different else f"{len(done) - failed} equal"
    not_compared = f", {failed} could not be compared" if failed else ""
    sys.stderr.write(f"compiled {len(done)} of {len(passed)} programs twice: {verdict}{not_compared}\n")
    return done


def metrics(done: Iterable[Rechecked]) -> dict[str, Metric]:
    """The names of the programs that were compared."""
    return {"rechecked": [work.name for work in done if not work.failure]}


def findings(done: Iterable[Rechecked], again: Callable[[Rechecked], Fix]) -> Iterator[Finding]:
    """`again` gives the command that runs its program."""
    for work in done:
        command = again(work).plus("--recheck", "100%")
        if failure := work.failure:
            message = f"it was not compiled twice: {failure.message}"
            fix = Fix("{}; then {}", failure.fix, command) if failure.fix else command
            yield Finding(f"recheck-{failure.rule}", Severity.ERROR, work.name, message, fix)
        elif work.differences:
            more = len(work.differences) - SHOWN
            words = [*map(str, work.differences[:SHOWN]), *([f"and {more} more"] if more > 0 else [])]
            message = f"compiling it twice gave two results: {'; '.join(words)}; both are in {work.evidence}"
            fix = Fix("{} shows whether it does so each time; report it with both results", command)
            yield Finding("recheck-differs", Severity.ERROR, work.name, message, fix)
