"""The compiler's own estimate of a graph's time, read from the profile that it writes."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from pathlib import Path

HEAD = "Performance Estimates"
FIELDS = {
    "us": "Simulated (Accelerator exec time us)",
    "least_us": "Simulated (Accelerator exec time us (lower estimate))",
    "most_us": "Simulated (Accelerator exec time us (upper estimate))",
    "uncosted": "Missing Ops (Number of Ops with no Costs associated)",
}
TRAFFIC = {
    "input_fill": "Input Fill",
    "fill": "Intermediate Fill",
    "spill": "Intermediate Spill",
    "output_spill": "Output Spill",
}


@dataclass(frozen=True, slots=True)
class QnnEstimate:
    """Of all graphs of a program. Times are in microseconds, traffic with DDR is in bytes."""

    graphs: int
    us: int
    least_us: int
    most_us: int
    uncosted: int
    """Operators that the estimate counts as nothing."""
    ddr: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def read_estimate(profile: Path) -> QnnEstimate | None:
    """None where QNN gives no estimate: it has one for few chips."""
    found: dict[str, int] = {}
    graphs = 0
    with profile.open(encoding="utf-8", errors="replace", newline="") as stream:
        for row in csv.reader(stream):
            if len(row) < 7:
                continue
            name = row[6].strip()
            graphs += name == HEAD
            if row[2].isdecimal():
                found[name] = found.get(name, 0) + int(row[2])
    if not graphs or FIELDS["us"] not in found:
        return None
    values = {field: found.get(name, 0) for field, name in FIELDS.items()}
    return QnnEstimate(graphs=graphs, ddr=sum(found.get(name, 0) for name in TRAFFIC.values()), **values)
