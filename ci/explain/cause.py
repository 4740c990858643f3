"""Why the outputs of a program that `compile` made are not healthy: measured on this program, within a time.

What quantizing loses is found on the CPU, what the chip computes otherwise by programs that end at a node."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ci.explain.divergence import DIFFERS_DB, MANY_ROUND, STANDS_OUT, DivergenceResult, named, verdict_of
from ci.explain.lane import explainer
from ci.explain.losses import Scores
from ci.models.model_lines import OperatorAt
from ci.one_model.model import OneModel
from ci.one_model.product import Outcome
from provisioning.base.errors import ToolkitError
from provisioning.base.units import in_decibels
from provisioning.known_faults import SuspectedFault

SECONDS = 90.0
"""Of the search and the trials of fixes for all programs of a command, by the clock on the wall."""
SEARCHES = 3 / 4
"""The part of a search's time in which it begins programs; the rest is for the last one."""
FLOAT = "fp16"


@dataclass(frozen=True, slots=True)
class Cause:
    """What was measured, in words, and the operator that it names, if it names one."""

    words: str
    place: OperatorAt | None = None
    nodes: Sequence[str] = ()
    """The operator's, or its group's."""
    of_chip: bool = False
    suspected: Sequence[SuspectedFault] = ()
    """The known faults that the operator can have: what they are is not proved here."""
    goes_on: str = ""
    """The command that goes on with a search that the time ended."""

    def in_words(self) -> str:
        return "; ".join([self.words, *(f"suspected: {fault.message}" for fault in self.suspected)])

    @property
    def line(self) -> str:
        """The line of the model, if it is known."""
        return self.place.source if self.place else ""


def cause_of(
    model: OneModel,
    program: Any,
    outcome: Outcome,
    seconds: float = SECONDS,
    suspects: Sequence[SuspectedFault] = (),
) -> Cause | None:
    """`suspects` are the known faults that its nodes can have: of a search that the time ended they are all
    that is known."""
    of_chip = outcome.of_chip
    # What noise may have lost is searched for once there are real samples.
    if of_chip is None or not (of_chip or outcome.wrong):
        return None
    until, goes_on = time.monotonic() + seconds, ""
    model = replace(model, work=replace(model.work, until=until))
    try:
        if of_chip:
            whole, goes_on = outcome.near("sqnr_db", -math.inf), model.command("divergence", program.soc)
            result = explainer(model).divergence_of(model, program, DIFFERS_DB, seconds * SEARCHES, whole)
            return with_suspects(of_divergence(result, goes_on), suspects)
        return of_scores(explainer(model).scores_of(model, program, FLOAT, seconds * SEARCHES))
    except ToolkitError as error:
        # A search is an extra: whatever ends it, the verdict stands.
        words = f"its cause was not found: {error.message.splitlines()[0]}"
        found = Cause(words, goes_on=goes_on if time.monotonic() > until else "")
        return with_suspects(found, suspects)


def with_suspects(cause: Cause, suspects: Sequence[SuspectedFault]) -> Cause:
    """What a search that the time ended before it named an operator leaves."""
    return replace(cause, suspected=suspects) if cause.goes_on and not cause.place else cause


def of_divergence(result: DivergenceResult, goes_on: str) -> Cause:
    """`goes_on` is the command that continues a search which the time ended."""
    first, words = result.first, verdict_of(result)
    if not result.between:
        goes_on = ""
    found = Cause(f"{words}; {goes_on} continues" if goes_on else words, of_chip=True, goes_on=goes_on)
    if first is None or not first.stands_out:
        return found
    if first.rounds:
        grows = first.grows
        return replace(found, place=grows, nodes=(grows.node,) if grows else ())
    faults = [fault for fault in first.known if isinstance(fault, SuspectedFault)]
    return replace(found, place=first, nodes=(first.node,), suspected=faults)


def of_scores(scores: Scores) -> Cause:
    units, whole = scores.units, scores.whole[0]
    if not units or not whole:
        return Cause("no single operator loses accuracy when quantized")
    worst = max(units, key=lambda unit: unit.noise[0])
    place, noise = named(worst, worst.nodes[0]), worst.noise[0]
    some = f" of the {len(units)} that there was time for" if scores.left else ""
    if noise < STANDS_OUT * whole:
        return Cause(f"{MANY_ROUND}: quantizing {place} alone gives {noise / whole:.0%} of the error{some}")
    of_all = f"{_decibels(noise)} if only it is quantized, {_decibels(whole)} if all are"
    return Cause(f"the cause is quantizing {place}{some}: {of_all}", worst, worst.nodes)


def _decibels(noise: float) -> str:
    return in_decibels(-10 * math.log10(noise))
