"""What each operator takes of a chip, as QNN's simulator has it: tables and changes."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ci.artifacts.simulation import Simulation
from ci.pipeline.profile import ADDED
from provisioning.base.errors import UsageError
from provisioning.known_faults import faults_of_build

CAVEAT = (
    "simulated by QNN's compiler, not measured: its option is not documented and has no support, and the chip"
    " may differ"
)
COSTLIEST = 10
GUESSED = 0.5
"""Above this part of its cycles, an operator's cost is a guess of the simulator."""
CHANGED = 0.05
"""By how much of its own time an operator must have changed to be named."""
LAYOUT = re.compile(r"(?:_(?:Dequantize|Quantize)Linear_Output)?(?:_transpose)?Transpose$")
"""The end of the name of a change of layout that the provider makes before or after a node."""


@dataclass(frozen=True, slots=True)
class SimulatedCost:
    """An operator of the model, by the name of its node."""

    operator: str
    us: float
    share: float
    lane: str
    """The unit that it keeps busy longest."""
    made_of: tuple[str, ...]
    guessed: float
    line: str = ""
    module: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class SimulatedProfile:
    """A program on a chip, as QNN's simulator has it."""

    simulation: Simulation
    build_id: str
    names: Mapping[int, str]
    """Of operators, by their numbers in a profile."""
    costs: tuple[SimulatedCost, ...]

    @property
    def soc(self) -> str:
        return self.simulation.soc

    @property
    def us(self) -> float:
        return self.simulation.us

    def as_dict(self) -> dict[str, Any]:
        return {
            "soc": self.soc,
            "build_id": self.build_id,
            "us": round(self.us, 3),
            "busy": {unit: round(us, 3) for unit, us in self.simulation.busy.items()},
            "costs": [asdict(cost) for cost in self.costs],
            "basis": CAVEAT,
        }


def simulated_costs(
    simulation: Simulation,
    build_id: str,
    names: Mapping[int, str],
    places: Mapping[str, Mapping[str, str]],
    added: str,
) -> SimulatedProfile:
    """`names` are of operators by their numbers in a profile, `places` has a line and a module by a node's
    name."""
    costs = []
    for row in simulation.operators:
        name = names.get(row.operator, row.kinds[0])
        lane = max(row.busy, key=lambda unit: row.busy[unit])
        place = place_of(name, places) or {"line": added, "module": added}
        costs.append(
            SimulatedCost(
                name,
                round(row.us, 3),
                row.us / simulation.us,
                lane,
                row.kinds,
                row.guessed,
                **{field: place.get(field, "") for field in ("line", "module", "kind")},
            )
        )
    return SimulatedProfile(simulation, build_id, names, tuple(costs))


def place_of(name: str, places: Mapping[str, Mapping[str, str]]) -> Mapping[str, str] | None:
    """A change of layout is named by the tensor that it changes, and belongs to that tensor's node."""
    plain = ADDED.sub("", name)
    tensor = LAYOUT.sub("", plain)
    for known in (plain, tensor, f"node_{tensor}"):
        if known in places:
            return places[known]
    return None


def in_words(simulation: Simulation) -> str:
    """The time, and the operators of which it is a guess."""
    guessed = [row for row in simulation.operators if row.guessed > GUESSED and row.us > 0]
    share = sum(row.us for row in guessed) / simulation.us
    words = f"{simulation.us / 1000:.3g} ms simulated for {simulation.soc}"
    if share < CHANGED:
        return words
    kinds = ", ".join(dict.fromkeys(row.kinds[0] for row in guessed))
    return f"{words}; {share:.0%} of it is a guess: {kinds}"


def as_text(profile: SimulatedProfile, lane: str, earlier: Mapping[str, float] | None) -> Iterator[str]:
    units = ", ".join(f"{unit} {us:,.0f} us" for unit, us in sorted(profile.simulation.busy.items()))
    yield f"{profile.soc}: {profile.us:,.0f} us simulated (busy, all threads together: {units})"
    yield f"{'us':>9}  {'share':>6}  {'unit':<6}  operator"
    for cost in profile.costs[:COSTLIEST]:
        guess = "  (its cost is a guess)" if cost.guessed > GUESSED else ""
        figures = f"{cost.us:>9,.1f}  {cost.share:>6.1%}  {cost.lane:<6}"
        yield f"{figures}  {cost.operator}  {cost.line}{guess}".rstrip()
    if len(profile.costs) > COSTLIEST:
        yield f"      …  {len(profile.costs) - COSTLIEST} more, which --json and --page have"
    for title in ("line", "module"):
        sums: dict[str, float] = defaultdict(float)
        for cost in profile.costs:
            if where := getattr(cost, title):
                sums[where] += cost.us
        if sums:
            yield f"by {title}, simulated"
            ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
            yield from (f"{us:>9,.1f}  {where}" for where, us in ranked[:COSTLIEST])
    yield from known_of(profile, lane)
    if earlier is not None:
        yield from slower(times(profile), earlier)
    yield CAVEAT


def known_of(profile: SimulatedProfile, lane: str) -> Iterator[str]:
    """What the known faults say of the costliest operators."""
    faults = faults_of_build(profile.build_id, "onnx" if lane == "onnx" else "executorch")
    costliest = {cost.kind or cost.operator: cost for cost in reversed(profile.costs[:COSTLIEST])}
    for fault in faults:
        for operator in fault.operators:
            if cost := costliest.get(operator):
                yield f"{cost.operator}: {fault.title} ({fault.id}): {fault.fix}"


def slower(now: Mapping[str, float], earlier: Mapping[str, float]) -> Iterator[str]:
    """Operators whose simulated time changed, the largest change first; both are times by operator."""
    changes = sorted(
        ((us - earlier.get(name, 0.0), name) for name, us in {**dict.fromkeys(earlier, 0.0), **now}.items()),
        key=lambda change: (-abs(change[0]), change[1]),
    )
    shown = [
        f"{change:>+9,.1f} us  {name}"
        for change, name in changes
        if abs(change) > CHANGED * max(now.get(name, 0.0), earlier.get(name, 0.0))
    ]
    whole = sum(now.values()) - sum(earlier.values())
    yield f"against the earlier simulation: {whole:+,.1f} us"
    yield from shown[:COSTLIEST] or ["no operator differs"]


def times(profile: SimulatedProfile) -> dict[str, float]:
    """By names without the provider's numbers, which differ in every compile."""
    sums: dict[str, float] = defaultdict(float)
    for cost in profile.costs:
        sums[ADDED.sub("", cost.operator)] += cost.us
    return dict(sums)


def read_simulated(path: Path) -> dict[str, float]:
    """The times in an earlier document of `timing --simulate`."""
    body = json.loads(path.read_text(encoding="utf-8"))
    rows: Sequence[Mapping[str, Any]] | None = body.get("simulated", {}).get("costs")
    if rows is None:
        raise UsageError(
            f"{path}: nothing was simulated there", fix="name what timing --simulate --json wrote"
        )
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[ADDED.sub("", str(row["operator"]))] += float(row["us"])
    return dict(sums)
