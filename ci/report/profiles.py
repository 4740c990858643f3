"""Profiles of models: a bar for each operator, and a tree by module with the share of every operator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ci.artifacts.simulation import LANES, Simulation
from ci.pipeline.profile import PROCESSES, RUNS, OperatorCost, ProgramProfile
from ci.pipeline.simulated import CAVEAT, SimulatedCost, SimulatedProfile
from ci.report.bars import Bar, Mark
from ci.report.values import Row, entries, mapping, number, rows_of, word
from provisioning.base.findings import Report
from provisioning.base.rendering.pages import render

STAGE = "timing"
NOTE = (
    f"Shares of the emulator's cycles, the least of {RUNS} runs in each of {PROCESSES} processes. They follow"
    " the time of the machine that measured them, not the chip's."
)
DEEPEST = 60
"""Modules further down are one module: a template cannot call itself without end."""


@dataclass(frozen=True, slots=True)
class OperatorBar(Bar):
    line: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """A module with what is below it, and the sum of its shares."""

    name: str
    total: float
    share: Bar
    modules: Sequence[Module]
    operators: Sequence[OperatorBar]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one thread of a chip does in a part of the time, in hundredths of the whole."""

    start: float
    width: float
    unit: str
    label: str


@dataclass(frozen=True, slots=True)
class Thread:
    name: str
    pieces: Sequence[Piece]


PARTS = 250
"""In how many parts of the time a thread is drawn: an operator shorter than that is not seen."""


def threads_of(simulation: Simulation, names: Mapping[int, str]) -> list[Thread]:
    """The timeline: in each part of the time, the operator that kept the thread busy longest."""
    part = simulation.us / PARTS
    worked: dict[str, dict[int, dict[tuple[str, str], float]]] = {}
    for entry in simulation.entries:
        parts = worked.setdefault(entry.thread, {})
        end = entry.start + entry.took
        for index in range(int(entry.start / part), min(PARTS - 1, int(end / part)) + 1):
            inside = min(end, (index + 1) * part) - max(entry.start, index * part)
            if inside > 0:
                did = parts.setdefault(index, {})
                what = entry.lane, names.get(entry.operator, entry.kind)
                did[what] = did.get(what, 0.0) + inside
    return [Thread(name, list(_pieces(parts))) for name, parts in worked.items() if parts]


def _pieces(parts: Mapping[int, Mapping[tuple[str, str], float]]) -> Iterator[Piece]:
    longest = {index: max(did, key=lambda what: did[what]) for index, did in parts.items()}
    width = 100 / PARTS
    for (unit, label), together in groupby(sorted(longest), key=lambda index: longest[index]):
        run: list[int] = []
        for index in together:
            if run and index != run[-1] + 1:
                yield Piece(run[0] * width, len(run) * width, unit, label)
                run = []
            run.append(index)
        yield Piece(run[0] * width, len(run) * width, unit, label)


def tree_of(costs: Sequence[OperatorCost]) -> Module:
    """The tree by module."""
    return _module("the model", [(_path(cost.module), cost) for cost in costs])


def _module(name: str, costs: Sequence[tuple[list[str], OperatorCost]]) -> Module:
    below = defaultdict(list)
    for path, cost in costs:
        if path:
            below[path[0]].append((path[1:], cost))
    modules = [_module(part, inside) for part, inside in below.items()]
    total = sum(cost.share for _, cost in costs)
    return Module(
        name,
        total,
        Bar("", f"{total:.1%}", "share", 100 * total),
        sorted(modules, key=lambda module: -module.total),
        [_operator(cost) for path, cost in costs if cost.share and not path],
    )


def profile_page(title: str, measured: ProgramProfile, simulated: SimulatedProfile | None = None) -> str:
    """One profile as a page, for `timing --page`."""
    widest = max((cost.highest or cost.share for cost in measured.costs), default=1.0) or 1.0
    return render(
        Path(__file__).with_name("templates") / "profile.html.j2",
        style="page.css",
        title=f"Profile of {title}",
        profile_note=NOTE,
        operators=[_operator(cost, widest) for cost in measured.costs],
        module=tree_of(measured.costs),
        cpu=[str(operator) for operator in measured.cpu],
        simulated=simulated,
        simulated_note=CAVEAT,
        simulated_operators=[_simulated(cost) for cost in simulated.costs] if simulated else [],
        units=LANES,
        threads=threads_of(simulated.simulation, simulated.names) if simulated else [],
    )


def _simulated(cost: SimulatedCost) -> OperatorBar:
    text = f"{cost.us:,.1f} us"
    return OperatorBar(cost.operator, text, "share", 100 * cost.share, (), cost.line)


def profiles_of(reports: Sequence[Report]) -> dict[str, Module]:
    return {
        name: tree_of(costs)
        for report in reports
        if report.stage == STAGE
        for name, profile in rows_of(report, "profiles").items()
        if (costs := _costs(profile))
    }


def _path(module: str) -> list[str]:
    parts = [module] if module.startswith("(") else [part for part in module.split(".") if part]
    return [*parts[:DEEPEST], *filter(None, [".".join(parts[DEEPEST:])])]


def _operator(cost: OperatorCost, widest: float = 1.0) -> OperatorBar:
    low, high = (100 * value / widest for value in (cost.lowest, cost.highest))
    between = [Mark(low, high - low, y=9, height=2)] if high > low else []
    text = f"{cost.share:.1%}"
    return OperatorBar(cost.operator, text, "share", 100 * cost.share / widest, between, cost.line)


def _costs(profile: Row) -> list[OperatorCost]:
    """Operators of another form than expected are left out."""
    costs = []
    for row in map(mapping, entries(profile.get("operators"))):
        share, name = number(row, "share"), row.get("operator")
        if share is not None and isinstance(name, str):
            line, module = word(row, "line"), word(row, "module")
            costs.append(OperatorCost(name, 0, min(1.0, max(0.0, share)), line=line, module=module))
    return costs
