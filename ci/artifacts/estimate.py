"""The compiler's own estimate of a graph's time, read from the profile that it writes."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

CLOCKS = {"QCS9100": 1500.0, "SA8797": 1720.0}
"""Megahertz of the chips with an estimate, as QNN 2.51.0 has it, which gives both cycles and time."""

HEAD = "Performance Estimates"
FIELDS = {"us": "", "least_us": " (lower estimate)", "most_us": " (upper estimate)"}
TIME, CYCLES = "Simulated (Accelerator exec time us{})", "Simulated (Accelerator exec cycles{})"
"""What a build says; older ones leave out the time."""
UNCOSTED = "Missing Ops (Number of Ops with no Costs associated)"
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
    with profile.open(encoding="utf-8", errors="replace", newline="") as stream:
        rows = [row for row in csv.reader(stream) if len(row) >= 7]
    return estimate_of((row[6].strip(), int(row[2]) if row[2].isdecimal() else 0) for row in rows)


def estimate_of(events: Iterable[tuple[str, int]], soc: str = "") -> QnnEstimate | None:
    """Of the events of a profile, by their names; `soc` is the chip, where it gives cycles alone."""
    found: dict[str, int] = {}
    graphs = 0
    for name, value in events:
        graphs += name == HEAD
        found[name] = found.get(name, 0) + value
    for form, clock in ((TIME, 1.0), (CYCLES, CLOCKS.get(soc))):
        if graphs and clock and form.format("") in found:
            times = {
                field: round(found.get(form.format(which), 0) / clock) for field, which in FIELDS.items()
            }
            ddr = sum(found.get(name, 0) for name in TRAFFIC.values())
            return QnnEstimate(graphs=graphs, uncosted=found.get(UNCOSTED, 0), ddr=ddr, **times)
    return None
