"""What the HTP compiler prints: its errors, and the memory traffic of each graph."""

from __future__ import annotations

import re
from collections.abc import Sequence

NATIVE_ERROR = re.compile(r"\[ERROR\] \[Qnn ExecuTorch\]:\s*(?:<E>)?\s*(\S.+)")
"""The start of QNN's own messages in a log; the first one is nearest to the cause."""

DIES_OF = "the compiler dies of "
"""The start of a log line that names operators."""

SUMMARY = re.compile(r"=+ DDR bandwidth summary =+\s*\n((?:\s*\w+=\d+\s*\n)+)")
FIGURE = re.compile(r"(\w+)=(\d+)")

NAMES = {
    "read": "read_total_bytes",
    "written": "write_total_bytes",
    "spilled": "spill_bytes",
    "filled": "fill_bytes",
}
"""Our names and the compiler's of bytes between the NPU and DDR in one inference."""


def traffic(log: str) -> list[dict[str, int]]:
    """One for each graph, in the order of compilation."""
    graphs = []
    for block in SUMMARY.findall(log):
        figures = {name: int(value) for name, value in FIGURE.findall(block)}
        graphs.append({ours: figures.get(theirs, 0) for ours, theirs in NAMES.items()})
    return graphs


def total(graphs: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(graph[name] for graph in graphs) for name in NAMES}
