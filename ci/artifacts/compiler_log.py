"""What the HTP compiler prints and writes: its errors, the memory traffic of each graph, and its estimate of
the graphs' time."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from ci.diagnose.rules import Code, code_named

REFUSES = "QNN's validation refuses it"
"""Messages say this of a node that QNN's validation leaves on the CPU."""
OF_INTEGERS = "its values are integers, which no precision changes"
"""Messages say this of a node that is refused for its types."""
NATIVE_ERROR = re.compile(r"\[ERROR\] \[Qnn ExecuTorch\]:\s*(?:<E>\s*)?(\S.+)")
"""The start of QNN's own messages in a log; the first one is nearest to the cause."""

RANK = re.compile(r"(?P<output>Output)?(?:Input)?\[\d+\] has incorrect Rank (?P<rank>\d+)")
"""The number before it says nothing: it is that of no tensor."""

CRASHES = "the compiler crashes on "
"""The start of a log line that names operators."""

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
OF_QNN = "QnnLogging]"
"""The end of the prefix that ONNX Runtime puts before QNN's lines."""
OF_RUNTIME = re.compile(r"\[\w:onnxruntime:")
# Names in a log are the model's: each pattern looks at a line once, however long.
REFUSED_NODE = re.compile(r"failed for node `([^`]+)`|for node: (\S+)")
REFUSAL = " error code"
REFUSAL_CODE = re.compile(r":? (\d{1,18})")

SUMMARY = "= DDR bandwidth summary ="
FIGURE = re.compile(r"\s*(\w+)=(\d{1,18})\s*")

NAMES = {
    "read": "read_total_bytes",
    "written": "write_total_bytes",
    "spilled": "spill_bytes",
    "filled": "fill_bytes",
}
"""Our names and the compiler's of bytes between the NPU and DDR in one inference."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one inference between the chip and its memory, by the compiler's summaries."""

    read: int = 0
    written: int = 0
    spilled: int = 0
    filled: int = 0


NO_TRAFFIC = Traffic()


def reword_error(error: str) -> str:
    """Reword QNN's error where its own words say nothing to a reader."""
    return RANK.sub(_rank_in_words, error)


def _rank_in_words(match: re.Match[str]) -> str:
    rank = int(match["rank"])
    words = f"HTP {'gives' if match['output'] else 'takes'} no tensor of {rank} dimensions here"
    if match["output"] and rank < 2:
        words += " (a sum or mean keeps its dimensions by x.sum(dim=(0, 1), keepdim=True))"
    return words


class Refusal(NamedTuple):
    """Why QNN refused a node: its code, and the first error that it printed for the node."""

    code: Code
    error: str

    def __str__(self) -> str:
        code = f"{self.code.code} {self.code.name}".strip()
        return ": ".join(filter(None, [code, reword_error(self.error)]))


def refusals(log: str) -> dict[str, Refusal]:
    """Map each refused node to QNN's reason, from a log of ONNX Runtime at the verbose level."""
    reasons: dict[str, Refusal] = {}
    errors: list[str] = []
    for line in COLOUR.sub("", log).splitlines():
        if OF_QNN in line:
            if (text := line.rpartition(OF_QNN)[2].strip()).startswith("<E>"):
                errors.append(text.removeprefix("<E>").strip())
        elif OF_RUNTIME.search(line):
            before, _, after = line.rpartition(REFUSAL)
            if (node := REFUSED_NODE.search(before)) and (number := REFUSAL_CODE.match(after)):
                code = code_named(int(number[1]))
                reasons[node[1] or node[2]] = Refusal(code, next(iter(errors), ""))
            errors.clear()
    return reasons


def traffic(log: str) -> list[dict[str, int]]:
    """Return one entry for each graph, in the order of compilation."""
    graphs: list[dict[str, int]] = []
    figures: dict[str, int] | None = None
    for line in log.splitlines():
        if SUMMARY in line:
            figures = {}
            graphs.append(figures)
        elif figure := FIGURE.fullmatch(line):
            if figures is not None:
                figures[figure[1]] = int(figure[2])
        elif line.strip():
            figures = None
    return [_traffic_of(graph) for graph in graphs if graph]


def _traffic_of(figures: Mapping[str, int]) -> dict[str, int]:
    return {ours: figures.get(theirs, 0) for ours, theirs in NAMES.items()}


def total(graphs: Sequence[dict[str, int]]) -> Traffic:
    sums = Counter[str]()
    for graph in graphs:
        sums.update(graph)
    return Traffic(**{name: sums[name] for name in NAMES})


HEAD = "Performance Estimates"
FIELDS = {"us": "", "least_us": " (lower estimate)", "most_us": " (upper estimate)"}
TIME = "Simulated (Accelerator exec time us{})"
UNCOSTED = "Missing Ops (Number of Ops with no Costs associated)"


@dataclass(frozen=True, slots=True)
class QnnEstimate:
    """QNN's estimate adds up the graphs of a program. Times are in microseconds."""

    graphs: int
    us: int
    least_us: int
    most_us: int
    uncosted: int
    """Operators that the estimate counts as nothing."""

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def read_estimate(profile: Path) -> QnnEstimate | None:
    """Read QNN's estimate. Returns None if there is none: QNN has estimates for few chips."""
    with profile.open(encoding="utf-8", errors="replace", newline="") as stream:
        rows = [row for row in csv.reader(stream) if len(row) >= 7]
    values: dict[str, int] = {}
    graphs = 0
    for row in rows:
        name = row[6].strip()
        graphs += name == HEAD
        values[name] = values.get(name, 0) + (int(row[2]) if row[2].isdecimal() else 0)
    if not graphs or TIME.format("") not in values:
        return None
    times = {field: values.get(TIME.format(event), 0) for field, event in FIELDS.items()}
    return QnnEstimate(graphs=graphs, uncosted=values.get(UNCOSTED, 0), **times)
