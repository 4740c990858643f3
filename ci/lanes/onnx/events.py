"""What each operator took: on the emulator by the provider's events, on the CPU by ONNX Runtime's."""

from __future__ import annotations

import ast
import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci.pipeline.models.model_lines import user_frame
from ci.pipeline.profile import NODE, OnCpu, OperatorCost, costs_of, located
from provisioning.base.command_line import Parser

if TYPE_CHECKING:
    import onnx

NO_LINE = "(added by the provider)"
KERNEL = "_kernel_time"


def costs(path: Path) -> list[OperatorCost]:
    """Every operator with cycles, the slowest first."""
    runs: dict[str, list[int]] = defaultdict(list)
    with path.open(encoding="utf-8", errors="replace", newline="") as stream:
        for row in csv.reader(stream):
            if len(row) < 7 or row[1] != "NODE" or row[3] != "CYCLES" or not row[2].isdecimal():
                continue
            runs[row[6].strip()].append(int(row[2]))
    return costs_of(runs)


def names_of_operators(path: Path) -> dict[int, str]:
    """By the numbers that QNN gave them while compiling."""
    names = {}
    with path.open(encoding="utf-8", errors="replace", newline="") as stream:
        for row in csv.reader(stream):
            if len(row) >= 7 and (match := NODE.fullmatch(row[6].strip())):
                names[int(match["number"])] = match["name"]
    return names


def slowest(path: Path, count: int = 5) -> list[OperatorCost]:
    return costs(path)[:count]


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Where the author of a model wrote a node, as the exporter noted it."""

    source: str = ""
    code: str = ""
    module: str = ""


def places_of(model: onnx.ModelProto) -> dict[str, SourcePlace]:
    here = f"{Parser.user_folder()}/"
    places = {}
    for node in model.graph.node:
        properties = {entry.key: entry.value for entry in node.metadata_props}
        frame = user_frame(properties.get("pkg.torch.onnx.stack_trace", ""))
        source = f"{frame.path.removeprefix(here)}:{frame.line}" if frame else ""
        places[node.name] = SourcePlace(source, frame.code if frame else "", _module(properties))
    return places


def with_lines(graph_costs: Sequence[OperatorCost], places: Mapping[str, SourcePlace]) -> list[OperatorCost]:
    """The compiler fuses nodes: a convolution's cycles may be counted at the activation after it."""
    lines = {name: {"line": place.source, "module": place.module} for name, place in places.items()}
    return located(graph_costs, lines, NO_LINE)


def cpu_times(path: Path, places: Mapping[str, SourcePlace]) -> list[OnCpu]:
    """What ran on the CPU, from the events that ONNX Runtime recorded: the least of all inferences."""
    nodes: dict[tuple[str, str], float] = {}
    whole = float("inf")
    for event in json.loads(path.read_text(encoding="utf-8")):
        name, arguments = event["name"], event.get("args", {})
        if name == "model_run":
            whole = min(whole, event["dur"])
        elif arguments.get("provider") == "CPUExecutionProvider" and name.endswith(KERNEL):
            key = name.removesuffix(KERNEL), arguments["op_name"]
            nodes[key] = min(event["dur"], nodes.get(key, event["dur"]))
    return [
        OnCpu(f"{operator} ({name})", time / 1e3, time / whole, places.get(name, SourcePlace()).source)
        for (name, operator), time in nodes.items()
    ]


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
