"""What each operator takes of a chip, as QNN's simulator has it: tables and changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ci.artifacts.simulation import Simulation
from ci.pipeline.profile import ADDED, totals

CAVEAT = "simulated by QNN's compiler, not measured: its option is not documented, and the chip may differ"
COSTLIEST = 10
GUESSED = 0.5
"""Above this part of its cycles, an operator's cost is a guess of the simulator."""
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

    def as_dict(self) -> dict[str, Any]:
        return {
            "soc": self.simulation.soc,
            "build_id": self.build_id,
            "us": round(self.simulation.us, 3),
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
        where = {field: place.get(field, "") for field in ("line", "module", "kind")}
        share, us = row.us / simulation.us, round(row.us, 3)
        costs.append(SimulatedCost(name, us, share, lane, row.kinds, row.guessed, **where))
    return SimulatedProfile(simulation, build_id, names, tuple(costs))


def place_of(name: str, places: Mapping[str, Mapping[str, str]]) -> Mapping[str, str] | None:
    """A change of layout is named by the tensor that it changes, and belongs to that tensor's node."""
    plain = ADDED.sub("", name)
    tensor = LAYOUT.sub("", plain)
    for known in (plain, tensor, f"node_{tensor}"):
        if known in places:
            return places[known]
    return None


def as_text(profile: SimulatedProfile) -> Iterator[str]:
    whole = profile.simulation
    units = ", ".join(f"{unit} {us:,.0f} us" for unit, us in sorted(whole.busy.items()))
    yield f"{whole.soc}: {whole.us:,.0f} us simulated (busy, all threads together: {units})"
    yield f"{'us':>9}  {'share':>6}  {'unit':<6}  operator"
    for cost in profile.costs[:COSTLIEST]:
        guess = "  (its cost is a guess)" if cost.guessed > GUESSED else ""
        figures = f"{cost.us:>9,.1f}  {cost.share:>6.1%}  {cost.lane:<6}"
        yield f"{figures}  {cost.operator}  {cost.line}{guess}".rstrip()
    if len(profile.costs) > COSTLIEST:
        yield f"      …  {len(profile.costs) - COSTLIEST} more, which --json and --page have"
    for title in ("line", "module"):
        if sums := totals(profile.costs, title, "us"):
            yield f"by {title}, simulated"
            yield from (f"{us:>9,.1f}  {where}" for where, us in sums[:COSTLIEST])
    yield CAVEAT
