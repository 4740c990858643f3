"""What ExecuTorch's runtime measured, read from the ETDump that a runner wrote.

`executorch.devtools.Inspector` gives the same, after an import of seven seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ci.artifacts.bounds import OBJECT, Budget, Malformed
from ci.artifacts.flatbuffer import Reader, Table

IDENTIFIER = b"ED00"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    name: str
    """Of an event inside a delegate, the delegate's own name for it."""
    delegated: bool
    took: list[int] = field(default_factory=list)
    """In each inference, in the unit of whoever measured: nanoseconds, and cycles inside a delegate."""


def events_of(path: Path) -> list[TraceEvent]:
    """What the inferences of a trace have in common, in the order of the first. Raises Malformed."""
    data = memoryview(path.read_bytes())
    if data[8:12] == IDENTIFIER:
        # Its size comes first.
        data = data[4:]
    if data[4:8] != IDENTIFIER:
        raise Malformed(f"{path} is no ETDump")
    found: dict[tuple[str, int, int, bool], TraceEvent] = {}
    budget = Budget(len(data))
    for run in Reader(data, budget).root().tables(1):
        seen: dict[tuple[str, int, bool], int] = {}
        for profiled in _profiled(run):
            text, number = profiled.text(4), profiled.number(3, "i", -1)
            delegated = bool(text) or number >= 0
            name = text or (str(number) if delegated else profiled.text(0))
            same = (name, profiled.number(2, "i", -1), delegated)
            # An operator can be called several times in one inference.
            seen[same] = nth = seen.get(same, 0) + 1
            key = (*same[:2], nth, delegated)
            if key not in found:
                budget.take(OBJECT)
                found[key] = TraceEvent(name, delegated)
            found[key].took.append(profiled.number(7, "Q") - profiled.number(6, "Q"))
    return list(found.values())


def _profiled(run: Table) -> Iterator[Table]:
    for event in run.tables(3):
        if profiled := event.table(0):
            yield profiled
