"""What each operator takes on the emulator, from the CSV of events that the provider writes.

The emulator's cycles follow this machine's time, not the chip's. Machines and loads differ, so shares are
shown and compared, and nothing is gated by them.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.suites.model_lines import user_frame
from provisioning.base.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    import onnx

NODE = re.compile(r"(?P<name>.+?):OpId_\d+ \(cycles\)")
ADDED = re.compile(r"_token_\d+$")
"""What the provider appends to the name of a node that it made from another."""
RUNS = 12
"""One run can put a small share off by ten times, where the machine did something else meanwhile."""
PROCESSES = 3
"""One process may fall into a burst of load: a share of 46 % was 67 % in the next process."""
ALIKE = 0.1
SCHEMA = 1
NO_LINE = "(added by the provider)"


@dataclass(frozen=True, slots=True)
class Cost:
    """Cycles of an operator in a run, at the least, and its part of all operators' cycles."""

    operator: str
    cycles: int
    share: float
    lowest: float = 0.0
    highest: float = 0.0
    """The least and the largest share that it had in PROCESSES processes."""
    line: str = ""
    module: str = ""

    def __str__(self) -> str:
        return f"{self.operator} {self.share:.0%} ({self.cycles:,} cycles)"


@dataclass(frozen=True, slots=True)
class Change:
    """An operator's share in two profiles; None where it is not there."""

    operator: str
    before: float | None
    now: float | None
    repeats: bool
    """It may be noise: shares' ranges overlap, or cycles are alike while another operator moved the share."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a profile says of an operator, all nodes of its name together."""

    share: float = 0.0
    lowest: float = 0.0
    highest: float = 0.0
    cycles: int = 0

    def repeats(self, other: Share) -> bool:
        overlap = self.lowest <= other.highest and other.lowest <= self.highest
        alike = abs(self.cycles - other.cycles) <= ALIKE * max(self.cycles, other.cycles)
        return overlap or alike


Shares = Mapping[str, Share]


def costs(path: Path) -> list[Cost]:
    """Every operator that took cycles, the slowest first."""
    runs: dict[str, list[int]] = defaultdict(list)
    with path.open(encoding="utf-8", errors="replace", newline="") as stream:
        for row in csv.reader(stream):
            if len(row) < 7 or row[1] != "NODE" or row[3] != "CYCLES" or not row[2].isdecimal():
                continue
            if NODE.fullmatch(name := row[6].strip()):
                runs[name].append(int(row[2]))
    cycles: dict[str, int] = defaultdict(int)
    for name, times in runs.items():
        if match := NODE.fullmatch(name):
            cycles[match["name"]] += min(times)
    total = sum(cycles.values())
    ranked = sorted(cycles.items(), key=lambda item: (-item[1], item[0]))
    return [Cost(name, taken, taken / total) for name, taken in ranked if taken]


def merged(profiles: Sequence[Sequence[Cost]]) -> list[Cost]:
    """One profile of several of the same program: the least cycles of all, and how far shares went apart."""
    cycles: dict[str, int] = {}
    for cost in (cost for profile in profiles for cost in profile):
        cycles[cost.operator] = min(cost.cycles, cycles.get(cost.operator, cost.cycles))
    total = sum(cycles.values())
    by_name = [{cost.operator: cost.share for cost in profile} for profile in profiles]
    ranked = sorted(cycles.items(), key=lambda item: (-item[1], item[0]))
    return [
        Cost(
            name,
            taken,
            taken / total,
            lowest=min(taken / total, *(shares.get(name, 0.0) for shares in by_name)),
            highest=max(taken / total, *(shares.get(name, 0.0) for shares in by_name)),
        )
        for name, taken in ranked
    ]


def slowest(path: Path, count: int = 5) -> list[Cost]:
    return costs(path)[:count]


def with_lines(found: Sequence[Cost], model: onnx.ModelProto) -> list[Cost]:
    """The same with the line and the module that each operator comes from, where its node says them.

    The compiler fuses: a convolution's cycles may stand at the activation after it."""
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


def totals(found: Sequence[Cost], of: str) -> list[tuple[str, float]]:
    """Shares summed by `line` or by `module`, the largest first. What has neither is left out."""
    shares: dict[str, float] = defaultdict(float)
    for cost in found:
        if where := getattr(cost, of):
            shares[where] += cost.share
    return sorted(shares.items(), key=lambda item: (-item[1], item[0]))


def document(found: Sequence[Cost], about: Mapping[str, Any]) -> str:
    body = {
        "schema": SCHEMA,
        **about,
        "runs": RUNS,
        "processes": PROCESSES,
        "operators": [asdict(cost) for cost in found],
    }
    return json.dumps(body, indent=2) + "\n"


def read_document(path: Path) -> Shares:
    """The shares of an earlier profile."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["schema"] != SCHEMA:
            raise ValueError(f"schema {body['schema']}")
        return _shares(Cost(**each) for each in body["operators"])
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}", remedy="name a file that onnx profile --json wrote"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckFailed(
            f"{path}: expected a profile of schema {SCHEMA}, found something else ({error})",
            remedy="name a file that onnx profile --json wrote",
        ) from error


def difference(found: Sequence[Cost], earlier: Shares) -> list[Change]:
    """What the ranges do not explain first, the largest change first."""
    later = _shares(found)
    changes = []
    for name in {*later, *earlier}:
        before, now = earlier.get(name), later.get(name)
        repeats = bool(before and now and before.repeats(now))
        changes.append(Change(name, before.share if before else None, now.share if now else None, repeats))
    return sorted(
        changes, key=lambda one: (one.repeats, -abs((one.now or 0) - (one.before or 0)), one.operator)
    )


def _shares(operators: Iterable[Cost]) -> Shares:
    """By names without the provider's numbers, which another compile draws anew."""
    shares: dict[str, Share] = defaultdict(Share)
    for cost in operators:
        sums = shares[name := ADDED.sub("", cost.operator)]
        shares[name] = Share(
            sums.share + cost.share,
            sums.lowest + cost.lowest,
            sums.highest + cost.highest,
            sums.cycles + cost.cycles,
        )
    return dict(shares)


def _properties(node: onnx.NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def _module(properties: Mapping[str, str]) -> str:
    """The module's path as named_modules() has it: the scopes without the operator's own."""
    try:
        scopes = ast.literal_eval(properties.get("pkg.torch.onnx.name_scopes", "[]"))
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(scopes, list) or not scopes:
        return ""
    # Each scope names its whole path, the last one the operator.
    return str(scopes[-2]) or "(the model itself)" if len(scopes) > 1 else ""
