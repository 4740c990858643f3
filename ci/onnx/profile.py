"""The share of time of each operator on the emulator, from the provider's CSV of events."""

from __future__ import annotations

import ast
import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci.suites.model_lines import user_frame
from ci.suites.profile import ADDED, Cost, costs_of

if TYPE_CHECKING:
    import onnx

NO_LINE = "(added by the provider)"


def costs(path: Path) -> list[Cost]:
    """Every operator with cycles, the slowest first."""
    runs: dict[str, list[int]] = defaultdict(list)
    with path.open(encoding="utf-8", errors="replace", newline="") as stream:
        for row in csv.reader(stream):
            if len(row) < 7 or row[1] != "NODE" or row[3] != "CYCLES" or not row[2].isdecimal():
                continue
            runs[row[6].strip()].append(int(row[2]))
    return costs_of(runs)


def slowest(path: Path, count: int = 5) -> list[Cost]:
    return costs(path)[:count]


def with_lines(found: Sequence[Cost], model: onnx.ModelProto) -> list[Cost]:
    """The same with each operator's line and module, if its node has them.

    The compiler fuses nodes: a convolution's cycles may be counted at the activation after it."""
    here = f"{Path.cwd()}/"
    nodes = {node.name: _properties(node) for node in model.graph.node}

    def located(cost: Cost) -> Cost:
        properties = nodes.get(cost.operator) or nodes.get(ADDED.sub("", cost.operator))
        if properties is None:
            return replace(cost, line=NO_LINE, module=NO_LINE)
        frame = user_frame(properties.get("pkg.torch.onnx.stack_trace", ""))
        line = f"{frame.path.removeprefix(here)}:{frame.line}" if frame else ""
        return replace(cost, line=line, module=_module(properties))

    return [located(cost) for cost in found]


def _properties(node: onnx.NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def _module(properties: Mapping[str, str]) -> str:
    """The module's path in named_modules(): the scopes without the operator's own."""
    try:
        scopes = ast.literal_eval(properties.get("pkg.torch.onnx.name_scopes", "[]"))
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(scopes, list) or not scopes:
        return ""
    # Each scope is a whole path; the last one is the operator.
    return str(scopes[-2]) or "(the model itself)" if len(scopes) > 1 else ""
