"""The share of time of each operator on the emulator, sums by line and module, and changes.

The emulator's cycles follow this machine's time, not the chip's. Machines and loads differ, so shares are
shown and compared, but never decide a verdict."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from provisioning.base.errors import CheckFailed, UsageError

NODE = re.compile(r"(?P<name>.+?):OpId_(?P<number>\d+) \(cycles\)")
ADDED = re.compile(r"_token_\d+$")
"""The suffix of a node that the provider made from another one."""
RUNS = 12
"""One run can distort a small share tenfold if the machine was busy meanwhile."""
PROCESSES = 3
"""One process may run under a burst of load: a share of 46 % was 67 % in the next process."""
ALIKE = 0.1
SHOWN = 15
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """An operator's least cycles of all runs, and its share of all operators' cycles."""

    operator: str
    cycles: int
    share: float
    lowest: float = 0.0
    highest: float = 0.0
    """The smallest and largest share in PROCESSES processes."""
    line: str = ""
    module: str = ""
    kind: str = ""
    """What the node computes, if its name does not say it."""

    def __str__(self) -> str:
        return f"{self.operator} {self.share:.0%} ({self.cycles:,} cycles)"


@dataclass(frozen=True, slots=True)
class OnCpu:
    """An operator that runs on the CPU, and its shortest time there."""

    operator: str
    milliseconds: float
    share: float
    """The share of the whole inference, which includes the emulator's time."""
    line: str = ""

    def __str__(self) -> str:
        where = f"  {self.line}" if self.line else ""
        return f"{self.milliseconds:9.3f} ms  {self.share:>6.1%}  {self.operator}{where}"


@dataclass(frozen=True, slots=True)
class ProgramProfile:
    """A profile of a program, the slowest operators first."""

    costs: Sequence[OperatorCost]
    cpu: Sequence[OnCpu] = ()

    @property
    def on_cpu(self) -> dict[str, float]:
        """What the CPU's part takes, for `audit`."""
        milliseconds = sum(operator.milliseconds for operator in self.cpu)
        return {"milliseconds": round(milliseconds, 3), "share": sum(operator.share for operator in self.cpu)}


@dataclass(frozen=True, slots=True)
class Change:
    """An operator's share in two profiles; None if it is not in one of them."""

    operator: str
    before: float | None
    now: float | None
    repeats: bool
    """Whether it may be noise: the ranges overlap, or the cycles are alike and another operator changed the
    share."""


@dataclass(frozen=True, slots=True)
class Share:
    """One operator in a profile: all nodes of its name together."""

    share: float = 0.0
    lowest: float = 0.0
    highest: float = 0.0
    cycles: int = 0

    def repeats(self, other: Share) -> bool:
        overlap = self.lowest <= other.highest and other.lowest <= self.highest
        alike = abs(self.cycles - other.cycles) <= ALIKE * max(self.cycles, other.cycles)
        return overlap or alike


Shares = Mapping[str, Share]


def costs_of(runs: Mapping[str, Sequence[int]]) -> list[OperatorCost]:
    """The slowest operator first. `runs` has the cycles of each part (NAME:OpId_N) in every run."""
    cycles: dict[str, int] = defaultdict(int)
    for name, times in runs.items():
        if match := NODE.fullmatch(name):
            cycles[match["name"]] += min(times)
    total = sum(cycles.values())
    ranked = sorted(cycles.items(), key=lambda item: (-item[1], item[0]))
    return [OperatorCost(name, taken, taken / total) for name, taken in ranked if taken]


def merged(profiles: Sequence[Sequence[OperatorCost]]) -> list[OperatorCost]:
    """Several profiles of the same program as one: the least cycles, and the range of shares."""
    cycles: dict[str, int] = {}
    for cost in (cost for profile in profiles for cost in profile):
        cycles[cost.operator] = min(cost.cycles, cycles.get(cost.operator, cost.cycles))
    total = sum(cycles.values())
    by_name = [{cost.operator: cost.share for cost in profile} for profile in profiles]
    ranked = sorted(cycles.items(), key=lambda item: (-item[1], item[0]))
    return [
        OperatorCost(
            name,
            taken,
            taken / total,
            lowest=min(taken / total, *(shares.get(name, 0.0) for shares in by_name)),
            highest=max(taken / total, *(shares.get(name, 0.0) for shares in by_name)),
        )
        for name, taken in ranked
    ]


def located(
    unplaced: Sequence[OperatorCost], places: Mapping[str, Mapping[str, str]], added: str
) -> list[OperatorCost]:
    """The same with line, module and kind of each operator by the name of its node; `added` stands for a
    place where the compiler added the node."""
    none = {"line": added, "module": added}
    costs = []
    for cost in unplaced:
        place = places.get(cost.operator) or places.get(ADDED.sub("", cost.operator)) or none
        line, module, kind = (place.get(name, "") for name in ("line", "module", "kind"))
        costs.append(replace(cost, line=line, module=module, kind=kind))
    return costs


def totals(costs: Iterable[Any], of: str, figure: str = "share") -> list[tuple[str, float]]:
    """A figure summed by `line` or by `module`, largest first; operators without one are left out."""
    sums: dict[str, float] = defaultdict(float)
    for cost in costs:
        if where := getattr(cost, of):
            sums[where] += getattr(cost, figure)
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))


def document(measured: ProgramProfile, about: Mapping[str, str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **about,
        "runs": RUNS,
        "processes": PROCESSES,
        "operators": [asdict(cost) for cost in measured.costs],
        "cpu": [asdict(operator) for operator in measured.cpu],
    }


def read_document(path: Path) -> Shares:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["schema"] != SCHEMA:
            raise ValueError(f"schema {body['schema']}")
        return _shares(OperatorCost(**operator) for operator in body["operators"])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", fix="name a file that timing --json wrote") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckFailed(
            f"{path}: expected a profile of schema {SCHEMA}, found something else ({error})",
            fix="name a file that timing --json wrote",
        ) from error


def difference(costs: Sequence[OperatorCost], earlier: Shares) -> list[Change]:
    """What the ranges do not explain comes first, then the largest change."""
    later = _shares(costs)
    changes = []
    for name in {*later, *earlier}:
        before, now = earlier.get(name), later.get(name)
        repeats = bool(before and now and before.repeats(now))
        changes.append(Change(name, before.share if before else None, now.share if now else None, repeats))
    return sorted(
        changes, key=lambda row: (row.repeats, -abs((row.now or 0) - (row.before or 0)), row.operator)
    )


def _shares(operators: Iterable[OperatorCost]) -> Shares:
    """By names without the provider's numbers, which differ in every compile."""
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


def as_text(measured: ProgramProfile, earlier: Shares | None, against: Path | None) -> Iterator[str]:
    """A table of operators, sums by line and module, changes since an earlier profile, and the CPU's part."""
    costs = measured.costs
    yield f"{'share':>7}  {'range':>13}  {'cycles':>13}  operator"
    yield from _first(list(map(_row, costs)))
    for title in ("line", "module"):
        if sums := totals(costs, title):
            yield f"by {title}"
            yield from _first([f"{share:>7.1%}  {where}" for where, share in sums])
    if earlier is not None:
        yield f"against {against}: share before, now"
        yield from _first(list(map(_changed, difference(costs, earlier))))
    yield (
        f"the least of {RUNS} runs in each of {PROCESSES} processes;"
        " the emulator's cycles follow this machine's time, not the chip's"
    )
    if measured.cpu:
        yield "on the CPU, the least time on this machine and its share of an inference"
        yield from _first(list(map(str, measured.cpu)))


def _first(rows: Sequence[str]) -> Iterator[str]:
    yield from rows[:SHOWN]
    if len(rows) > SHOWN:
        yield f"      …  {len(rows) - SHOWN} more, which --json and --page have"


def _row(cost: OperatorCost) -> str:
    between = f"{cost.lowest:.1%}-{cost.highest:.1%}"
    return f"{cost.share:>7.1%}  {between:>13}  {cost.cycles:>13,}  {cost.operator}  {cost.line}".rstrip()


def _changed(change: Change) -> str:
    shares = ["      -" if share is None else f"{share:>7.1%}" for share in (change.before, change.now)]
    return f"{'  '.join(shares)}  {change.operator}{'  (within noise)' if change.repeats else ''}"
