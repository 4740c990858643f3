"""Find why a program that `compile` made is not healthy, or why there is none: the compiler's step or the
operator at fault. The cause is measured on this program, within a time limit.

The compiler's steps are replayed first, because that takes seconds. If every step keeps the values, losses by
quantizing are searched on the CPU, and differences of the chip with programs that end at a node."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ci.explain.crash import CrashRequest
from ci.explain.cuts import STANDS_OUT
from ci.explain.divergence import DIFFERS_DB, DivergenceLimits, DivergenceResult
from ci.explain.divergence_text import MANY_ROUND, place_of, verdict_of
from ci.explain.lane import AnyModelLane
from ci.explain.losses import ScoreRequest, Scores
from ci.explain.replay import BrokenStep, ReplayRequest
from ci.explain.upstream_report import ReportRequest
from ci.one_model.model import OneModel
from ci.one_model.product import Outcome
from ci.suite.programs import Program
from provisioning.base.errors import ToolkitError
from provisioning.base.findings import Place
from provisioning.base.units import format_decibels
from provisioning.known_faults import SuspectedFault

SECONDS = 90.0
"""The search and the trials of fixes take at most so many seconds of wall time, for all programs of a
command."""
SEARCHES = 3 / 4
"""A search begins programs in this part of its time; the rest is for the last one."""
REPLAY_SECONDS = 60.0
"""A replay, or a search for a crash, takes at most so many CPU seconds: a busy machine must change no
finding."""
FLOAT = "fp16"
NAMES_LOG = re.compile(r": \S+ has the rest$")
"""What is wrong may end so, with a file of this machine."""
CRASHED = re.compile(r"the process was ended by (SIG[A-Z]+)")


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause says in words what was measured, and names the operator at fault, if there is one."""

    words: str
    nodes: Sequence[str] = ()
    """The nodes of the operator, or of its group; empty if no operator is the cause."""
    place: Place | None = None
    """The line of the model that wrote the operator, if it is known."""
    suspected: Sequence[SuspectedFault] = ()
    """The operator can have these known faults; that it has one is not proved here."""
    goes_on: str = ""
    """This command continues a search that ran out of time."""
    lines: Sequence[str] = ()
    """A fix may also begin at these lines, FILE:LINE."""
    on_cpu: Sequence[str] = ()
    """The compiler does not die if these nodes are kept on the CPU."""
    fault: ReportRequest | None = None
    """It is what a report for the compiler's developers says, if there can be one."""
    in_compiler: bool = False
    """Whether a step of the compiler is at fault; other precisions then have the fault, too."""

    def describe(self) -> str:
        return "; ".join([self.words, *(f"suspected: {fault.message}" for fault in self.suspected)])


def cause_of(
    lane: AnyModelLane,
    model: OneModel,
    program: Program,
    outcome: Outcome,
    seconds: float = SECONDS,
    suspects: Sequence[SuspectedFault] = (),
) -> Cause | None:
    """Find the cause of an outcome that is not healthy; None if nothing is searched for. `suspects` are the
    known faults that the program's nodes can have: they are all that is known if time ends the search."""
    if not _is_searched(outcome):
        return None
    until = time.monotonic() + seconds
    model = replace(model, work=replace(model.work, until=until))
    try:
        broken = _broken_step(lane, model, program, outcome)
        if broken is not None and broken.is_proved:
            return step_cause(broken, outcome)
        if outcome.error:
            return _crash_cause(lane, model, program, outcome.error) if outcome.crashed else None
        return _searched_cause(lane, model, program, outcome, until, suspects, broken)
    except ToolkitError as error:
        # A search is an extra: whatever ends it, the verdict stands.
        is_late = bool(outcome.of_chip) and time.monotonic() > until
        goes_on = model.command("divergence", program.soc) if is_late else ""
        words = f"its cause was not found: {error.message.splitlines()[0]}"
        return add_suspects(Cause(words, goes_on=goes_on), suspects)


def _is_searched(outcome: Outcome) -> bool:
    """Whether a cause is searched for: of an error, of a difference that the chip makes, and of wrong figures
    that are known not to be the chip's. Where that is not known, real samples are needed first."""
    if outcome.error or outcome.of_chip:
        return True
    return bool(outcome.wrong) and outcome.of_chip is False


def _broken_step(
    lane: AnyModelLane, model: OneModel, program: Program, outcome: Outcome
) -> BrokenStep | None:
    program_db: float | None = None
    if not outcome.error:
        lost_db = -math.inf
        program_db = outcome.near("sqnr_db", lost_db) if outcome.of_chip else outcome.sqnr_db
    request = ReplayRequest(program_db, REPLAY_SECONDS)
    return lane.replay(model, program, request).broken


def _crash_cause(lane: AnyModelLane, model: OneModel, program: Program, error: str) -> Cause | None:
    """Name the operators at which the compiler's process dies; None if they were not found."""
    crash = lane.crash_of(model, program, CrashRequest(REPLAY_SECONDS))
    if not crash.operators:
        return None
    nodes = tuple(operator.node for operator in crash.operators)
    lines = tuple(operator.source for operator in crash.operators if operator.source)
    place = next((operator.line for operator in crash.operators if operator.line), None)
    signal = CRASHED.search(error)
    fault = None
    if lines and signal:
        fault = ReportRequest(f"{signal[0]}; {crash.describe()}", lines, dies=True, shows=signal[1])
    return Cause(crash.describe(), nodes, place, lines=lines, on_cpu=nodes, fault=fault)


def _searched_cause(
    lane: AnyModelLane,
    model: OneModel,
    program: Program,
    outcome: Outcome,
    until: float,
    suspects: Sequence[SuspectedFault],
    broken: BrokenStep | None,
) -> Cause:
    """Find the cause on the emulator or on the CPU. If it names no operator, add the step that may be the
    cause."""
    seconds = max(0.0, until - time.monotonic()) * SEARCHES
    if outcome.of_chip:
        limits = DivergenceLimits(DIFFERS_DB, seconds, outcome.near("sqnr_db", -math.inf))
        result = lane.divergence_of(model, program, limits)
        goes_on = model.command("divergence", program.soc)
        cause = add_suspects(divergence_cause(result, goes_on), suspects)
    else:
        request = ScoreRequest(FLOAT, seconds)
        cause = scores_cause(lane.scores_of(model, program, request))
    if broken is None or cause.nodes:
        return cause
    return replace(cause, words=f"{cause.words}; {broken.describe()}")


def add_suspects(cause: Cause, suspects: Sequence[SuspectedFault]) -> Cause:
    """Add the suspects to the cause, if time ended the search before it named an operator."""
    return replace(cause, suspected=suspects) if cause.goes_on and not cause.nodes else cause


def suspected_cause(suspects: Sequence[SuspectedFault]) -> Cause:
    """Return the cause if the outputs are right once what has these known faults is rewritten."""
    faults = " or ".join(dict.fromkeys(fault.message for fault in suspects))
    return Cause(f"the cause is a known fault, since the outputs are right without it: {faults}")


def step_cause(broken: BrokenStep, outcome: Outcome) -> Cause:
    nodes, lines = (broken.node,), tuple(filter(None, (broken.source, *broken.around)))
    fault = None
    if lines:
        fault = ReportRequest(
            broken.describe() or NAMES_LOG.sub("", outcome.error),
            lines,
            dies=bool(outcome.error),
            shows=broken.step.traceback_line if broken.kind == "raises" else "",
        )
    return Cause(broken.describe(), nodes, broken.line, lines=broken.around, fault=fault, in_compiler=True)


def divergence_cause(result: DivergenceResult, goes_on: str) -> Cause:
    """Return the cause that a search found. `goes_on` is the command that continues a search which ran out of
    time."""
    first, words = result.first, verdict_of(result)
    if not result.between:
        goes_on = ""
    cause = Cause(f"{words}; {goes_on} continues" if goes_on else words, goes_on=goes_on)
    if first is None or not first.stands_out or first.only_rounds:
        return cause
    return replace(cause, nodes=(first.node,), place=first.line, suspected=first.known)


def scores_cause(scores: Scores) -> Cause:
    units, total = scores.units, scores.totals[0]
    if not units or not total:
        return Cause("no single operator loses accuracy when quantized")
    worst = max(units, key=lambda unit: unit.noise[0])
    place, noise = place_of(worst, worst.nodes[0]), worst.noise[0]
    out_of = f" of the {len(units)} that there was time for" if scores.rest else ""
    if noise < STANDS_OUT * total:
        return Cause(f"{MANY_ROUND}: quantizing {place} alone gives {noise / total:.0%} of the error{out_of}")
    both = f"{_decibels(noise)} if only it is quantized, {_decibels(total)} if all are"
    return Cause(f"the cause is quantizing {place}{out_of}: {both}", worst.nodes, worst.line)


def _decibels(noise: float) -> str:
    return format_decibels(-10 * math.log10(noise))
