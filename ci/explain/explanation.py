"""Explain programs of `compile` that are not healthy, or that could not be made: name the cause, as far as it
is found, and the fixes that were tried."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from ci.explain.cause import SECONDS, Cause, cause_of, step_cause, suspected_cause
from ci.explain.lane import AnyModelLane
from ci.explain.replay import BrokenStep
from ci.explain.trials import LONGEST, Proofs, try_fixes
from ci.one_model.model import OneModel
from ci.one_model.product import CompilerDied, History, NoGraph, Outcome, Product
from ci.suite.lane_head import DIVERGENCE, REPAIR
from ci.suite.programs import Program
from ci.work import read
from provisioning.base.commands import Command, Fix, join_fixes
from provisioning.base.errors import CheckFailed, ToolkitError
from provisioning.base.parser import Parser
from provisioning.base.units import readable
from provisioning.known_faults import NO_FIX, SuspectedFault

SEARCHED = 2 / 3
"""The cause of wrong outputs is searched for in this part of the time; the rest is for fixes."""


def explain_products(
    lane: AnyModelLane,
    model: OneModel,
    programs: Sequence[Program],
    compiled: Sequence[Product | ToolkitError],
    history: History,
) -> list[Product]:
    """Put causes and fixes into the products' errors. The cause of an outcome that is no error is only
    printed. Raises the error of the first program that could not be made; if it is the only one, with its
    cause and the fixes that were tried."""
    search_ends = time.monotonic() + SECONDS
    products = [product for product in compiled if isinstance(product, Product)]
    for program, error in zip(programs, compiled, strict=True):
        if isinstance(error, ToolkitError):
            searchable = error.exit_code == CheckFailed.exit_code and not isinstance(error, NoGraph)
            if searchable and len(programs) == 1:
                _explain_death(lane, model, program, error, history, search_ends)
            error.fix = _name_model(error.fix, model, program.soc)
            raise error
    if not _searches(model, history):
        return products
    results: list[Product] = []
    for program, product in zip(programs, products, strict=True):
        outcome, cause = explain_outcome(lane, model, program, product.outcome, product.suspects, search_ends)
        history.searched |= bool(outcome.wrong or cause)
        results.append(replace(product, outcome=outcome))
        if cause and not outcome.wrong:
            sys.stdout.write(f"{cause.describe()}\n")
    return results


def _searches(model: OneModel, history: History) -> bool:
    return model.options.search and not history.searched and DIVERGENCE in model.lane.verbs


def _explain_death(
    lane: AnyModelLane,
    model: OneModel,
    program: Program,
    error: ToolkitError,
    history: History,
    search_ends: float,
) -> None:
    """Print at once what is known of the failure; then put the cause and the fixes that were tried into the
    error."""
    if model.options.is_verified and _searches(model, history):
        history.searched = True
        sys.stderr.write(readable(f"{program.name}: {error.message}\n", sys.stderr))
        died = error if isinstance(error, CompilerDied) else CompilerDied("", fix="")
        outcome = Outcome(error.message, _name_model(error.fix, model, program.soc), crashed=died.crashed)
        raised = read(BrokenStep, died.step) if died.step else None
        explained = _explain_raised(lane, model, program, outcome, raised, search_ends) if raised else None
        if explained is None:
            explained, _ = explain_outcome(lane, model, program, outcome, (), search_ends)
        error.message, error.fix = explained.error, explained.fix
    elif error.fix == NO_FIX and REPAIR in model.lane.verbs:
        error.fix = Fix("{} tries fixes", model.command("compile", program.soc, "-o", "out"))


def _explain_raised(
    lane: AnyModelLane, model: OneModel, program: Program, outcome: Outcome, raised: BrokenStep, until: float
) -> Outcome | None:
    """Try fixes where a step of the compiler raised. Returns None if none may help: an earlier step may be at
    fault, for which the steps must be replayed."""
    cause = step_cause(raised, outcome)
    proofs = _tried_fixes(lane, model, program, outcome, cause, until)
    if not (proofs.helping or proofs.late):
        return None
    _report_upstream(lane, model, program, cause)
    return _explained_death(outcome, cause, proofs)


def _tried_fixes(
    lane: AnyModelLane, model: OneModel, program: Program, outcome: Outcome, cause: Cause | None, until: float
) -> Proofs:
    budget = until - time.monotonic()
    return try_fixes(lane, model, program.soc, outcome, cause, budget, budget + LONGEST - SECONDS)


def explain_outcome(
    lane: AnyModelLane,
    model: OneModel,
    program: Program,
    outcome: Outcome,
    suspects: Sequence[SuspectedFault],
    until: float,
) -> tuple[Outcome, Cause | None]:
    """Return the cause, and the outcome with the cause and the fixes that were tried in its error. Both are
    searched until this time of time.monotonic(), which all programs of a command share."""
    budget = until - time.monotonic()
    search_seconds = budget * SEARCHED if outcome.wrong or outcome.error else budget
    cause = cause_of(lane, model, program, outcome, search_seconds, suspects) if budget > 0 else None
    if not (outcome.wrong or outcome.error):
        return outcome, cause
    suspecting = _add_unnamed(cause, suspects)
    proofs = _tried_fixes(lane, model, program, outcome, suspecting, until)
    names_none = cause is None or not cause.nodes
    if suspecting and suspecting.suspected and proofs.is_repaired and (names_none or suspecting is not cause):
        cause = suspected_cause(suspecting.suspected)
    _report_upstream(lane, model, program, cause)
    explained = _explained_death if outcome.error else _explained_wrong
    return explained(outcome, cause, proofs), cause


def _add_unnamed(cause: Cause | None, suspects: Sequence[SuspectedFault]) -> Cause | None:
    """Add the known faults of other operators to a cause that has none: what reads a wrong value may seem to
    err by itself, and what restores the outputs is the cause."""
    if cause is None or not cause.nodes or cause.suspected or cause.in_compiler or not suspects:
        return cause
    return replace(cause, suspected=suspects)


def _report_upstream(lane: AnyModelLane, model: OneModel, program: Program, cause: Cause | None) -> None:
    """Write the report for upstream if the user wants it, and say what it shows, or why there is none."""
    if model.options.report_upstream is None:
        return
    path = Parser.user_folder() / model.options.report_upstream
    words = "no step of the compiler was found that is the cause"
    if cause and cause.fault:
        try:
            script = lane.report_of(model, program, cause.fault)
        except ToolkitError as error:
            words = error.message.splitlines()[0]
        else:
            words = "no part of the model shows the fault alone"
            if script.text:
                path.write_text(script.text, encoding="utf-8")
                print(f"{path.name} shows it alone: {script.verdict}")
                return
    print(f"{path.name} is not written: {words}")


def _name_model(fix: str, model: OneModel, soc: str) -> str:
    """Return the fix, with the model in place of the word that stands for it."""
    if not isinstance(fix, Fix):
        return fix

    def name_model(command: Command) -> Command:
        match [*command]:
            case ["repair", "MODEL", *_]:
                return model.command("repair", soc, "-o", "repaired").commands[0]
            case ["compile", "MODEL", *flags]:
                return "compile", model.typed, *flags, "-o", "out"
        return command

    return fix.map_commands(name_model)


def _explained_death(outcome: Outcome, cause: Cause | None, proofs: Proofs) -> Outcome:
    words = [outcome.error, *([cause.describe()] if cause and cause.words else [])]
    fix = outcome.fix
    # A fix whose own trial failed is none.
    was_tried = isinstance(fix, Fix) and any(command[0] == "repair" for command in fix.commands)
    if proofs.helping or proofs.late or fix == NO_FIX or (was_tried and proofs.failures):
        fix = proofs.fix
    return replace(outcome, error="; ".join(words), fix=fix)


def _explained_wrong(outcome: Outcome, cause: Cause | None, proofs: Proofs) -> Outcome:
    first, *rest = outcome.wrong
    fixes, words, place = [proofs.fix], [first.message], first.place
    if cause is None:
        # A part of an output, or whole numbers: what the model returns is its author's to change.
        fixes += [first.fix]
    else:
        words += [cause.describe()]
        place = cause.place or place
        if cause.goes_on:
            commands = list(dict.fromkeys(fault.command for fault in cause.suspected))
            fixes = fixes if proofs.helping or not commands else commands
            fixes = [*fixes, Fix("{} goes on", cause.goes_on)]
    fix = join_fixes(fixes, "; or ")
    first = replace(first, message="; ".join(words), fix=fix, place=place, edit=proofs.edit)
    return replace(outcome, wrong=[first, *rest])
