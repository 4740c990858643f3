"""QNN's own simulation of a chip, read from the trace and the table of costs that its compiler writes."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRACE, COSTS = "trace.json", "costs.csv"
OPERATOR_BITS = 0xFFFFFFFF
"""The part of an entry's id that is the operator's: OpId_23 of a profile has 23."""
WAITS = ("default_hvx_spawn", "default_hvx_validate", "default_dma_sync")
"""Entries that wait for others, and do no work."""
LANES = {"HMX": "matrix", "HVX": "vector", "DMA": "memory", "scalar": "the rest"}
"""The units of a chip that an entry keeps busy, with what each does."""
KNOWN = "exists"
"""The status of a cost that QNN's table has; every other one is a guess."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A piece of an operator that one unit works on, in microseconds from the start."""

    operator: int
    kind: str
    lane: str
    thread: str
    start: float
    took: float


@dataclass(frozen=True, slots=True)
class SimulatedOperator:
    """What one operator keeps a chip busy with."""

    operator: int
    us: float
    """Its part of the whole time: a moment in which several work is shared among them."""
    busy: Mapping[str, float]
    """Microseconds by lane, all threads together."""
    kinds: tuple[str, ...]
    """What the compiler made of it, the longest first."""
    guessed: float
    """The part of its cycles whose cost QNN's table does not have."""


@dataclass(frozen=True, slots=True)
class Simulation:
    soc: str
    us: float
    operators: tuple[SimulatedOperator, ...]
    """The costliest first."""
    entries: tuple[Entry, ...]

    @property
    def busy(self) -> dict[str, float]:
        """Microseconds by lane."""
        sums: dict[str, float] = defaultdict(float)
        for entry in self.entries:
            sums[entry.lane] += entry.took
        return dict(sums)


def read_simulation(trace: Path, costs: Path) -> Simulation:
    """Raises OSError, ValueError or KeyError for files of another form."""
    body = json.loads(trace.read_text(encoding="utf-8"))
    configuration = body["Hextimate Configuration"]
    clock = float(configuration["sim_core_freq"])
    threads = {
        event["tid"]: event["args"]["name"].rstrip(":")
        for event in body["traceEvents"]
        if event.get("ph") == "M" and event["name"] == "thread_name"
    }
    entries = tuple(
        _entry(event, threads[event["tid"]], clock) for event in body["traceEvents"] if event.get("ph") == "X"
    )
    if not entries:
        raise ValueError("a simulation without entries")
    guessed = _guessed(costs)
    busy = _sums((entry for entry in entries if entry.took), lambda entry: entry.lane)
    kinds = _sums(entries, lambda entry: entry.kind)
    operators = [
        SimulatedOperator(
            operator,
            us,
            busy[operator],
            tuple(sorted(kinds[operator], key=lambda kind: -kinds[operator][kind])),
            guessed.get(operator, 0.0),
        )
        for operator, us in sorted(_shares(entries).items(), key=lambda item: (-item[1], item[0]))
    ]
    us = max(entry.start + entry.took for entry in entries)
    return Simulation(str(configuration["soc_type"]), us, tuple(operators), entries)


def timeline(simulation: Simulation, names: Mapping[int, str]) -> dict[str, Any]:
    """As Chrome's trace format, which Perfetto shows: a row for each thread, by names of operators."""
    threads = {
        thread: number for number, thread in enumerate(dict.fromkeys(e.thread for e in simulation.entries))
    }
    titles = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": thread}}
        for thread, number in threads.items()
    ]
    return {
        "displayTimeUnit": "ns",
        "otherData": {"chip": simulation.soc, "basis": "simulated by QNN's compiler, not measured"},
        "traceEvents": [
            *titles,
            *(
                {
                    "name": names.get(entry.operator, entry.kind),
                    "cat": entry.lane,
                    "ph": "X",
                    "pid": 0,
                    "tid": threads[entry.thread],
                    "ts": round(entry.start, 3),
                    "dur": round(entry.took, 3),
                    "args": {"operator": entry.operator, "made of it": entry.kind},
                }
                for entry in simulation.entries
            ),
        ],
    }


def _entry(event: Mapping[str, Any], thread: str, clock: float) -> Entry:
    name, arguments = str(event["name"]), event["args"]
    what, _, inside = name.partition(" (")
    kind = (inside.rstrip(")") or what).removeprefix("q::")
    lane = _lane(what, thread, arguments["flags"])
    operator = int(arguments["id"], 16) & OPERATOR_BITS
    took = 0.0 if what in WAITS else event["dur"] / clock
    return Entry(operator, kind, lane, thread, event["ts"] / clock, took)


def _lane(what: str, thread: str, flags: Iterable[str]) -> str:
    if "uses_hmx" in flags:
        return "HMX"
    if "DMA" in thread or what.startswith("default_dma"):
        return "DMA"
    return "HVX" if thread.startswith("HVX") else "scalar"


def _shares(entries: Iterable[Entry]) -> dict[int, float]:
    """The whole time, shared out: each moment belongs in equal parts to the operators that work in it."""
    changes: dict[float, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for entry in entries:
        if entry.took:
            changes[entry.start][entry.operator] += 1
            changes[entry.start + entry.took][entry.operator] -= 1
    shares: dict[int, float] = defaultdict(float)
    working: dict[int, int] = {}
    before = 0.0
    for moment in sorted(changes):
        for operator in working:
            shares[operator] += (moment - before) / len(working)
        for operator, change in changes[moment].items():
            working[operator] = working.get(operator, 0) + change
            if not working[operator]:
                del working[operator]
        before = moment
    return shares


def _sums(entries: Iterable[Entry], group: Callable[[Entry], str]) -> dict[int, dict[str, float]]:
    sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for entry in entries:
        sums[entry.operator][group(entry)] += entry.took
    return sums


def _guessed(path: Path) -> dict[int, float]:
    """The part of each operator's cycles that no table has a cost for."""
    every: dict[int, float] = defaultdict(float)
    guesses: dict[int, float] = defaultdict(float)
    for operator, status, cycles in _rows(path):
        every[operator] += cycles
        if status != KNOWN:
            guesses[operator] += cycles
    return {operator: guesses[operator] / cycles for operator, cycles in every.items() if cycles}


def _rows(path: Path) -> Iterator[tuple[int, str, float]]:
    with path.open(encoding="utf-8", errors="replace", newline="") as stream:
        for row in csv.DictReader(stream):
            yield int(row["opid"], 16) & OPERATOR_BITS, row["model status"], float(row["used cost"])
