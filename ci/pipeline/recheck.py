"""`--recheck`: what a report says of cached work that was done again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from ci.engine import recheck as engine
from ci.engine.recheck import CachedWork, Recheck, Rechecked
from ci.pipeline.options import Part
from provisioning.base.commands import Fix
from provisioning.base.findings import Finding, Metric, Severity

SHOWN = 3
"""How many differences of a result its message names."""


def recheck(cached: Iterable[CachedWork], part: Part) -> Recheck:
    """Do the part again, and print how many of how many were equal."""
    done = engine.recheck(cached, share=part.share, seconds=part.seconds, seed=part.seed)
    again = f"--recheck {part.text} --recheck-seed {part.seed}"
    sys.stderr.write(f"{done} ({again} draws the same)\n")
    return done


def metrics(done: Recheck, part: Part) -> dict[str, Metric]:
    return {
        "rechecked": f"{done.compared} of {done.cached}",
        "recheck": {
            "part": part.text,
            "seed": part.seed,
            "cached": done.cached,
            "compared": done.compared,
            "different": len(done.different),
            "left_out": dict(done.left_out),
            "results": [{"step": work.step, "program": work.name} for work in done.done],
        },
    }


def findings(done: Recheck, stage: str, again: Callable[[Rechecked], Fix]) -> Iterator[Finding]:
    """`again` gives the command that runs its program."""
    for finding in done.done:
        command = again(finding)
        if failure := finding.failure:
            message = f"its cached result of the step {finding.step} was not rechecked: {failure.message}"
            fix = Fix("{}; then {}", failure.fix, command) if failure.fix else command
            yield Finding(f"cache-{failure.rule}", Severity.ERROR, finding.name, message, fix)
        elif finding.differences:
            more = len(finding.differences) - SHOWN
            words = "; ".join(map(str, finding.differences[:SHOWN])) + (
                f"; and {more} more" if more > 0 else ""
            )
            message = (
                f"its cached result of the step {finding.step} is not what the work gives,"
                f" {finding.runs.rechecked}: {words}; {finding.evidence}. The cached one is not used any more"
            )
            fix = Fix(
                "{}; if that gives the same each time, something decides it that the cache does not see:"
                " report it with both results",
                command.plus("--no-cache"),
            )
            yield Finding("flaky", Severity.ERROR, finding.name, message, fix)
    if done.cached and not done.compared:
        reasons = [f"{count} not, because {why}" for why, count in done.left_out.items()]
        message = "; ".join([f"none of {done.cached} cached results was rechecked", *reasons])
        fix = Fix("{}, or on a machine like the one that did the work", ("--recheck", "20min"))
        yield Finding("cache-not-rechecked", Severity.WARNING, stage, message, fix)
