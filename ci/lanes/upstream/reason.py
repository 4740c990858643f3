"""Why a test does not pass, without what differs from run to run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ci.artifacts.compiler_log import DIES_OF
from ci.pipeline.reason import first_line

if TYPE_CHECKING:
    from ci.lanes.upstream.ledger import UpstreamVerdict

BY_CHANCE = ("memory", "timeout")
"""Outcomes of which a process says something else each time."""

OF_WHOLE_TEST = ("absent", "not_run", "expected_failure")
"""Outcomes that are not those of a part."""

GUILTY = re.compile(rf"(?:{DIES_OF}|; and of )(\S+) \(")


def reasons_of(verdict: UpstreamVerdict) -> tuple[str, ...]:
    """What is recorded of why a test fails, and compared: the operators that the compiler dies of, a missing
    module, a signal, the first line of an error. Each part of a test may have a reason of its own.
    Wrong outputs have their figures instead."""
    if verdict.outcome in BY_CHANCE:
        return ()
    errors = [part.error for part in verdict.parts if part.error and part.result != "wrong"]
    if verdict.outcome in OF_WHOLE_TEST or not (errors or verdict.outcome == "wrong"):
        errors = [verdict.reason]
    return tuple(dict.fromkeys(stable for error in errors for stable in _stable(error)))


def _stable(error: str) -> list[str]:
    if operators := GUILTY.findall(error):
        return [f"{DIES_OF}{operator}" for operator in operators]
    return [first_line(error)] if error.strip() else []
