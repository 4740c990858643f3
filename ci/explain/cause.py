"""Why the outputs of a program that `compile` made are not healthy, and which fixes help: measured on this
program, within a time.

What quantizing loses is found on the CPU, what the chip computes otherwise by programs that end at a node.
Each fix was compiled, run and compared, and has its figure."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ci.explain.divergence import (
    DIFFERS_DB,
    MANY_ROUND,
    STANDS_OUT,
    DivergenceLimits,
    DivergenceResult,
    place_of,
    verdict_of,
)
from ci.explain.lane import explainer, outcome_of
from ci.explain.losses import ScoreRequest, Scores
from ci.explain.repair import fewest_of
from ci.explain.rewriting import RewrittenPlace
from ci.one_model.model import OneModel
from ci.one_model.product import History, NoGraph, Outcome, Product
from ci.suite.accuracy import CLEARLY_DB
from ci.suite.precision import MORE_EXACT, written_name
from ci.suite.programs import Program
from provisioning.base.commands import Fix, join_fixes
from provisioning.base.errors import CheckFailed, ToolkitError
from provisioning.base.files import repository_of
from provisioning.base.findings import Edit, Place
from provisioning.base.units import in_decibels, readable
from provisioning.known_faults import NO_FIX, SuspectedFault, fix_at

SECONDS = 90.0
"""Of the search and the trials of fixes for all programs of a command, by the clock on the wall."""
SEARCHES = 3 / 4
"""The part of a search's time in which it begins programs; the rest is for the last one."""
FLOAT = "fp16"


@dataclass(frozen=True, slots=True)
class Cause:
    """What was measured, in words, and the operator that it names, if it names one."""

    words: str
    nodes: Sequence[str] = ()
    """The operator's, or its group's; none where no operator is the cause."""
    place: Place | None = None
    """The line of the model that wrote it, if it is known."""
    suspected: Sequence[SuspectedFault] = ()
    """The known faults that the operator can have: what they are is not proved here."""
    goes_on: str = ""
    """The command that goes on with a search that the time ended."""

    def in_words(self) -> str:
        return "; ".join([self.words, *(f"suspected: {fault.message}" for fault in self.suspected)])


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
            program_db, goes_on = outcome.near("sqnr_db", -math.inf), model.command("divergence", program.soc)
            limits = DivergenceLimits(DIFFERS_DB, seconds * SEARCHES, program_db)
            result = explainer(model).divergence_of(model, program, limits)
            return with_suspects(of_divergence(result, goes_on), suspects)
        return of_scores(explainer(model).scores_of(model, program, ScoreRequest(FLOAT, seconds * SEARCHES)))
    except ToolkitError as error:
        # A search is an extra: whatever ends it, the verdict stands.
        words = f"its cause was not found: {error.message.splitlines()[0]}"
        cause = Cause(words, goes_on=goes_on if time.monotonic() > until else "")
        return with_suspects(cause, suspects)


def with_suspects(cause: Cause, suspects: Sequence[SuspectedFault]) -> Cause:
    """What a search that the time ended before it named an operator leaves."""
    return replace(cause, suspected=suspects) if cause.goes_on and not cause.nodes else cause


def of_divergence(result: DivergenceResult, goes_on: str) -> Cause:
    """`goes_on` is the command that continues a search which the time ended."""
    first, words = result.first, verdict_of(result)
    if not result.between:
        goes_on = ""
    cause = Cause(f"{words}; {goes_on} continues" if goes_on else words, goes_on=goes_on)
    if first is None or not first.stands_out:
        return cause
    if first.rounds:
        return cause
    return replace(cause, nodes=(first.node,), place=first.line, suspected=first.known)


def of_scores(scores: Scores) -> Cause:
    units, total = scores.units, scores.totals[0]
    if not units or not total:
        return Cause("no single operator loses accuracy when quantized")
    worst = max(units, key=lambda unit: unit.noise[0])
    place, noise = place_of(worst, worst.nodes[0]), worst.noise[0]
    out_of = f" of the {len(units)} that there was time for" if scores.rest else ""
    if noise < STANDS_OUT * total:
        return Cause(f"{MANY_ROUND}: quantizing {place} alone gives {noise / total:.0%} of the error{out_of}")
    of_all = f"{_decibels(noise)} if only it is quantized, {_decibels(total)} if all are"
    return Cause(f"the cause is quantizing {place}{out_of}: {of_all}", worst.nodes, worst.line)


def _decibels(noise: float) -> str:
    return in_decibels(-10 * math.log10(noise))


MOST = 3
"""Candidates."""
TIMES = 3
"""As long as the program itself took to compile: what is rewritten is exported twice more."""
LONGEST = 300.0
"""Seconds for all of a search where its trials need more than is left of its time."""
EXACT = {**MORE_EXACT, "fp16": "16a8w"}
"""By precision, the one that is tried in its place."""


@dataclass(frozen=True, slots=True)
class Candidate:
    words: str
    """What to type, as it is tried."""
    outcome: Callable[[], Outcome | None]
    """None where it does not apply."""
    edit: Edit | None = None
    """Where that is what is tried."""


@dataclass(frozen=True, slots=True)
class Proofs:
    helping: Sequence[str]
    """Each with its figure, those that make it green first."""
    failures: Sequence[str]
    """What was tried, and does not help."""
    late: Sequence[str] = ()
    """What may help: its trial did not end in time."""
    edit: Edit | None = None
    """Of the first that helps."""

    @property
    def fix(self) -> str:
        if self.helping:
            return join_fixes(self.helping, "; or ")
        if self.late:
            return join_fixes(self.late, "; or ")
        # What does not help is words: nobody should type it.
        return f"{NO_FIX}; tried: {'; '.join(self.failures)}" if self.failures else NO_FIX


def proofs_of(
    model: OneModel,
    soc: str,
    before: Outcome,
    cause: Cause | None,
    seconds: float = SECONDS,
    longest: float = LONGEST,
) -> Proofs:
    """Trials begin within these seconds, or those that a program of this size needs. What is at work then may
    take as long again, since the machine may have other work; all end within the `longest`, if it is more."""
    estimate = TIMES * before.costs.get("cpu_seconds", 0.0)
    start = time.monotonic()
    last_begin = start + max(seconds, min(estimate, longest))
    until = start + max(seconds, min(2 * estimate, longest))
    trial = model.for_chip(soc).use(replace(model.options, search=False))
    trial = replace(trial, work=replace(model.work, until=until))
    repairing, nearer, useless, late = list[str](), list[str](), list[str](), list[str]()
    edits: dict[str, Edit | None] = {}
    for candidate in islice(_candidates(trial, cause, before), MOST):
        if time.monotonic() > last_begin:
            break
        sys.stderr.write(readable(f"trying: {candidate.words}\n", sys.stderr))
        if (after := candidate.outcome()) is not None:
            is_late = bool(after.error) and time.monotonic() > until
            figure = "it did not end within the time of the search" if is_late else _in_words(after)
            words = Fix("{}: {}", candidate.words, figure)
            edits[words] = candidate.edit
            if is_late:
                late.append(words)
            elif not helps(after, before):
                useless.append(words)
            elif not after.green:
                nearer.append(words)
            else:
                repairing.append(words)
                if candidate.edit:
                    break
    # What changes one line changes least.
    helping = sorted([*repairing, *nearer], key=lambda words: edits[words] is None)
    return Proofs(helping, useless, late, edits[helping[0]] if helping else None)


def outcome_with_cause(
    model: OneModel, program: Any, outcome: Outcome, suspects: Sequence[SuspectedFault], until: float
) -> tuple[Outcome, Cause | None]:
    """The outcome, whose first error then says the cause, as far as it is found by this time of
    time.monotonic(), and the fixes that were tried. The time is that of all programs of a command."""
    budget = until - time.monotonic()
    # The rest is for fixes.
    search_seconds = budget * 2 / 3 if outcome.wrong else budget
    cause = cause_of(model, program, outcome, search_seconds, suspects) if budget > 0 else None
    if not (outcome.wrong or outcome.error):
        return outcome, cause
    budget = until - time.monotonic()
    proofs = proofs_of(model, program.soc, outcome, cause, budget, budget + LONGEST - SECONDS)
    if outcome.error:
        return (
            replace(outcome, fix=proofs.fix) if proofs.helping or outcome.fix == NO_FIX else outcome
        ), None
    first, *rest = outcome.wrong
    fixes, words, place = [proofs.fix], [first.message], first.place
    if cause:
        words += [cause.in_words()]
        place = cause.place or place
        if cause.goes_on:
            commands = list(dict.fromkeys(fault.command for fault in cause.suspected))
            fixes = fixes if proofs.helping or not commands else commands
            fixes = [*fixes, Fix("{} goes on", cause.goes_on)]
    else:
        # A part of an output, or whole numbers: what the model returns is its author's to change.
        fixes += [first.fix]
    fix = join_fixes(fixes, "; or ")
    first = replace(first, message="; ".join(words), fix=fix, place=place, edit=proofs.edit)
    return replace(outcome, wrong=[first, *rest]), cause


def _candidates(model: OneModel, cause: Cause | None, before: Outcome) -> Iterator[Candidate]:
    """Those that there are, as far as none of them needs what this machine lacks."""
    try:
        yield from candidates_of(model, cause, before)
    except ToolkitError as error:
        sys.stderr.write(readable(f"no more fixes are tried: {error.message}\n", sys.stderr))


def _trial_of(work: Callable[[], Outcome | None]) -> Callable[[], Outcome | None]:
    """A trial that fails for whatever reason says nothing of the program before it."""

    def outcome() -> Outcome | None:
        try:
            return work()
        except ToolkitError as error:
            return Outcome(error.message.splitlines()[0], error.fix)

    return outcome


def helps(after: Outcome, before: Outcome) -> bool:
    """Whether it repairs what is wrong, or is clearly nearer to float. What still dies does not."""
    if after.error or not after.improves_on(before):
        return False
    return after.green or bool(before.error) or after.sqnr_db > before.sqnr_db + CLEARLY_DB


def _in_words(outcome: Outcome) -> str:
    """Against float, as what is typed will say it."""
    figures = {name: figure for name, figure in outcome.figures.items() if not name.startswith("reference_")}
    words = replace(outcome, figures=figures).in_words()
    return f"{words}, which is still red" if outcome.wrong else words


def candidates_of(model: OneModel, cause: Cause | None, before: Outcome) -> Iterator[Candidate]:
    """Rewrites at the place of the cause, or of the whole model; then flags. None of a model that does not
    export."""
    try:
        rewritten = explainer(model).rewritten(model)
    except ToolkitError as error:
        if error.exit_code != CheckFailed.exit_code:
            raise
        return
    yield from _rewrites(model, rewritten.places, cause, before)
    precision = written_name(model.precision or "fp16")
    exact = None if model.options.precision_file else EXACT.get(precision)
    for options in model.options.remedies() if precision != "fp16" else ():
        yield _of_model(model.use(options))
    if exact:
        yield _of_model(model.use_precision(exact))


def _of_model(model: OneModel) -> Candidate:
    command = model.command("compile", model.selection.soc, "-o", "out")
    return Candidate(command, _trial_of(lambda: outcome_of(model)))


def _rewrites(
    model: OneModel, places: Sequence[RewrittenPlace], cause: Cause | None, before: Outcome
) -> Iterator[Candidate]:
    if rules := _rules_at(places, cause):
        edits = {
            fix_at(change.rules[0], change.code, change.source).edit
            for change in places
            if _is_at(change, cause)
        }
        # One edit alone is the whole rewrite.
        if len(edits) == 1 and (edit := edits.pop()):
            yield Candidate(str(edit), _trial_of(lambda: _of_edit(model, edit)), edit)
        yield _of_rules(model, rules, before)


def _rules_at(changes: Sequence[RewrittenPlace], cause: Cause | None) -> tuple[str, ...]:
    at_cause = (change for change in changes if _is_at(change, cause))
    return tuple(dict.fromkeys(rule for change in at_cause for rule in change.rules))


def _of_rules(model: OneModel, rules: tuple[str, ...], before: Outcome) -> Candidate:
    """As the command does it: by the fewest rewrites that help."""

    def outcome() -> Outcome | None:
        repair = fewest_of(model, rules, before)
        return repair.after or repair.together

    repairing = model.use(replace(model.options, only=rules))
    command = repairing.command("repair", model.selection.soc, "-o", "repaired")
    return Candidate(command, _trial_of(outcome))


def _of_edit(model: OneModel, edit: Edit) -> Outcome | None:
    """Of the source with that line changed: of a folder that links to all else that the model's has."""
    source = model.file
    folder = source.search_path
    target = repository_of(folder / "file") / edit.file
    if not source.file or source.file.suffix != ".py" or not target.is_relative_to(folder):
        return None
    lines = target.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines[edit.line - 1].count(edit.old) != 1:
        return None
    lines[edit.line - 1] = lines[edit.line - 1].replace(edit.old, edit.new)
    with TemporaryDirectory(prefix="edited-") as name:
        copy, inside = Path(name), target.relative_to(folder)
        for depth, part in enumerate(inside.parts):
            parent = Path(*inside.parts[:depth])
            for path in (folder / parent).iterdir():
                if path.name not in (part, ".git"):
                    (copy / parent / path.name).symlink_to(path)
            if depth < len(inside.parts) - 1:
                (copy / parent / part).mkdir()
        (copy / inside).write_text("".join(lines), encoding="utf-8")
        typed = f"{copy / source.file.name}:{model.typed.rpartition(':')[2]}"
        return outcome_of(replace(model, typed=typed))


def _is_at(change: RewrittenPlace, cause: Cause | None) -> bool:
    """What answers a fault that is suspected there may begin at another node. Where no place was found, all
    may help."""
    if cause is None or not (cause.nodes or cause.suspected):
        return True
    if any(fault.fault in change.rules for fault in cause.suspected):
        return True
    if change.source and cause.place:
        return change.source == str(cause.place)
    return change.node in cause.nodes


def _searches(model: OneModel, history: History) -> bool:
    return model.options.search and not history.searched and not model.lane.only_compiles


def with_causes(
    model: OneModel,
    programs: Sequence[Program],
    compiled: Sequence[Product | ToolkitError],
    history: History,
) -> list[Product]:
    """The products with causes and fixes in their errors. A cause of what is no error is only said. Raises
    the error of the first program that there is not, with the fix that was tried."""
    search_ends = time.monotonic() + SECONDS
    products = [product for product in compiled if isinstance(product, Product)]
    for program, error in zip(programs, compiled, strict=True):
        if isinstance(error, ToolkitError):
            searchable = error.exit_code == CheckFailed.exit_code and not isinstance(error, NoGraph)
            if searchable and len(programs) == 1:
                error.fix = _fix_of_death(model, program, error, history, search_ends)
            raise error
    if not _searches(model, history):
        return products
    results: list[Product] = []
    for program, product in zip(programs, products, strict=True):
        outcome, cause = outcome_with_cause(model, program, product.outcome, product.suspects, search_ends)
        history.searched |= bool(outcome.wrong or cause)
        results.append(replace(product, outcome=outcome))
        if cause and not outcome.wrong:
            sys.stdout.write(f"{cause.in_words()}\n")
    return results


def _fix_of_death(
    model: OneModel, program: Program, error: ToolkitError, history: History, search_ends: float
) -> str:
    if model.options.is_verified and _searches(model, history):
        history.searched = True
        death = Outcome(error.message, error.fix)
        return outcome_with_cause(model, program, death, (), search_ends)[0].fix
    if error.fix == NO_FIX and not model.lane.only_compiles:
        return Fix("{} tries fixes", model.command("compile", program.soc, "-o", "out"))
    return error.fix
