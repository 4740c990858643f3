"""What the HTP compiler prints: its errors, and the memory traffic of each graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from provisioning.base.diagnosis import Code, code_named

NATIVE_ERROR = re.compile(r"\[ERROR\] \[Qnn ExecuTorch\]:\s*(?:<E>)?\s*(\S.+)")
"""The start of QNN's own messages in a log; the first one is nearest to the cause."""

DIES_OF = "the compiler dies of "
"""The start of a log line that names operators."""

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
OF_QNN = "QnnLogging]"
"""The end of the prefix that ONNX Runtime puts before QNN's lines."""
OF_RUNTIME = re.compile(r"\[\w:onnxruntime:")
REFUSAL = re.compile(r"(?:failed for node `([^`]+)`|for node: (\S+)).* error code:? (\d+)")

SUMMARY = re.compile(r"=+ DDR bandwidth summary =+\s*\n((?:\s*\w+=\d+\s*\n)+)")
FIGURE = re.compile(r"(\w+)=(\d+)")

NAMES = {
    "read": "read_total_bytes",
    "written": "write_total_bytes",
    "spilled": "spill_bytes",
    "filled": "fill_bytes",
}
"""Our names and the compiler's of bytes between the NPU and DDR in one inference."""


class Refusal(NamedTuple):
    """Why QNN refused a node: its code, and the first error that it printed for the node."""

    code: Code
    error: str

    def __str__(self) -> str:
        return ": ".join(filter(None, [f"{self.code.code} {self.code.name}".strip(), self.error]))


def refusals(log: str) -> dict[str, Refusal]:
    """By node, from a log of ONNX Runtime at the verbose level."""
    reasons: dict[str, Refusal] = {}
    errors: list[str] = []
    for line in COLOUR.sub("", log).splitlines():
        if OF_QNN in line:
            if (text := line.rpartition(OF_QNN)[2].strip()).startswith("<E>"):
                errors.append(text.removeprefix("<E>").strip())
        elif OF_RUNTIME.search(line):
            if refusal := REFUSAL.search(line):
                code = code_named(int(refusal[3]))
                reasons[refusal[1] or refusal[2]] = Refusal(code, next(iter(errors), ""))
            errors.clear()
    return reasons


def traffic(log: str) -> list[dict[str, int]]:
    """One for each graph, in the order of compilation."""
    graphs = []
    for block in SUMMARY.findall(log):
        figures = {name: int(value) for name, value in FIGURE.findall(block)}
        graphs.append({ours: figures.get(theirs, 0) for ours, theirs in NAMES.items()})
    return graphs


def total(graphs: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(graph[name] for graph in graphs) for name in NAMES}
