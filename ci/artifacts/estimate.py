"""The compiler's own estimate of a graph's time, read from the profile that it writes."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from pathlib import Path

HEAD = "Performance Estimates"
FIELDS = {"us": "", "least_us": " (lower estimate)", "most_us": " (upper estimate)"}
TIME = "Simulated (Accelerator exec time us{})"
UNCOSTED = "Missing Ops (Number of Ops with no Costs associated)"


@dataclass(frozen=True, slots=True)
class QnnEstimate:
    """Of all graphs of a program. Times are in microseconds."""

    graphs: int
    us: int
    least_us: int
    most_us: int
    uncosted: int
    """Operators that the estimate counts as nothing."""

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def read_estimate(profile: Path) -> QnnEstimate | None:
    """None where QNN gives no estimate: it has one for few chips."""
    with profile.open(encoding="utf-8", errors="replace", newline="") as stream:
        rows = [row for row in csv.reader(stream) if len(row) >= 7]
    found: dict[str, int] = {}
    graphs = 0
    for row in rows:
        name = row[6].strip()
        graphs += name == HEAD
        found[name] = found.get(name, 0) + (int(row[2]) if row[2].isdecimal() else 0)
    if not graphs or TIME.format("") not in found:
        return None
    times = {field: found.get(TIME.format(which), 0) for field, which in FIELDS.items()}
    return QnnEstimate(graphs=graphs, uncosted=found.get(UNCOSTED, 0), **times)
