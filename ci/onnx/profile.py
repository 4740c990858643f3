"""QNN's profile as the provider writes it: a CSV of events, of which the operators are summed up here."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

NODE = re.compile(r"(?P<name>.+?):OpId_\d+ \(cycles\)")


@dataclass(frozen=True, slots=True)
class Cost:
    """Cycles of an operator over all runs, and its part of all operators' cycles."""

    operator: str
    cycles: int
    share: float

    def __str__(self) -> str:
        return f"{self.operator} {self.share:.0%} ({self.cycles:,} cycles)"


def slowest(path: Path, count: int = 5) -> list[Cost]:
    """The operators that took most. The emulator's cycles follow this machine's time, not the chip's."""
    cycles: dict[str, int] = defaultdict(int)
    with path.open(encoding="utf-8", errors="replace", newline="") as stream:
        for row in csv.reader(stream):
            if len(row) < 7 or row[1] != "NODE" or row[3] != "CYCLES" or not row[2].isdecimal():
                continue
            if match := NODE.fullmatch(row[6].strip()):
                cycles[match["name"]] += int(row[2])
    total = sum(cycles.values())
    ranked = sorted(cycles.items(), key=lambda item: (-item[1], item[0]))
    return [Cost(name, taken, taken / total) for name, taken in ranked[:count] if taken]
