"""The memory traffic of each graph, from the HTP compiler's output."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

SUMMARY = re.compile(r"=+ DDR bandwidth summary =+\s*\n((?:\s*\w+=\d+\s*\n)+)")
FIGURE = re.compile(r"(\w+)=(\d+)")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between the NPU and DDR in one inference."""

    read: int = 0
    written: int = 0
    spilled: int = 0
    filled: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.read + other.read,
            self.written + other.written,
            self.spilled + other.spilled,
            self.filled + other.filled,
        )

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def traffic(log: str) -> list[Traffic]:
    """One for each graph, in the order of compilation."""
    found = []
    for block in SUMMARY.findall(log):
        figures = {name: int(value) for name, value in FIGURE.findall(block)}
        found.append(
            Traffic(
                figures.get("read_total_bytes", 0),
                figures.get("write_total_bytes", 0),
                figures.get("spill_bytes", 0),
                figures.get("fill_bytes", 0),
            )
        )
    return found
