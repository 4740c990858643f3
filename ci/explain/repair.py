"""`repair`: a model rewritten where known faults meet it, compiled, run and compared with what it was."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ci.explain.lane import explainer, measured
from ci.explain.rewriting import CHANGES_INTERFACE, RewriteChoice, Rewritten, RewrittenPlace
from ci.one_model.model import OneModel
from ci.one_model.product import Outcome, smallest
from ci.suite.precision import precision_named
from provisioning.base.units import in_decibels

LOSSY_DB = 30.0
"""Below it, weights get a scale for each channel where that helps."""
BY_CHANNEL = "--per-channel"
Rules = tuple[tuple[str, ...], ...]
"""Of rewrites, each by those that ask for it."""


@dataclass(frozen=True)
class Repair:
    """What became of a model."""

    model: OneModel
    before: Outcome
    rewritten: Rewritten
    after: Outcome | None
    """None: nothing was rewritten."""
    refused: Sequence[RewrittenPlace]
    by_channel: Outcome | None = None
    """With a scale for each channel of the weights, if that is better."""
    of_interface: Outcome | None = None
    """With other inputs, if that is better and the user has not allowed it."""

    @property
    def now(self) -> Outcome:
        return self.by_channel or self.after or self.before

    @property
    def rows(self) -> dict[str, Outcome]:
        rows = {"before": self.before, "after": self.after, BY_CHANNEL: self.by_channel}
        return {name: row for name, row in rows.items() if row}

    @property
    def rewrites(self) -> list[str]:
        """What was done, by name."""
        names = dict.fromkeys(change.rewrite for change in self.rewritten.made)
        return [*names, BY_CHANNEL] if self.by_channel else [*names]

    @property
    def repaired(self) -> OneModel:
        """What it left of the model."""
        model = of_rewritten(self.model, self.rewritten) or self.model
        return replace(model, per_channel=True, program=None) if self.by_channel else model


def repair_of(model: OneModel, choice: RewriteChoice, before: Outcome | None = None) -> Repair:
    """Rewrite, prove, compile and compare: the fewest rewrites with which the model is as good as with any
    that were tried. `before` is what it is without them, if that is known."""
    before, lane = before or measured(model), explainer(model)
    rewritten = lane.rewritten(model, choice)
    all_rules = tuple(dict.fromkeys(change.rules for change in rewritten.made))
    known: dict[Rules, tuple[Rewritten, Outcome]] = {(): (Rewritten((), None), before)}

    def outcome_of(chosen: Rules) -> Outcome:
        if chosen not in known:
            rules = tuple(rule for names in chosen for rule in names)
            part = rewritten if chosen == all_rules else lane.rewritten(model, replace(choice, rules=rules))
            candidate = of_rewritten(model, part)
            known[chosen] = part, measured(candidate) if candidate else before
            sys.stderr.write(f"  with {', '.join(rules)}: {known[chosen][1].in_words()}\n")
        return known[chosen][1]

    kept: Rules = ()
    best = before
    if all_rules and (together := outcome_of(all_rules)).improves_on(before):
        kept, best = all_rules, together
    # Together they may do harm.
    for rules in all_rules if not kept else ():
        if (result := outcome_of((*kept, rules))).improves_on(best):
            kept, best = (*kept, rules), result

    def first(parts: Iterable[Rules]) -> Rules | None:
        return next((part for part in parts if not best.improves_on(outcome_of(part))), None)

    kept = smallest(kept, first)
    chosen, after = known[kept]
    refused = [change for change in rewritten.changes if change.refused]
    words = f"it gains nothing on the emulator: {after.in_words()} without it"
    refused += [replace(change, refused=words) for change in rewritten.made if change.rules not in kept]
    repair = Repair(model, before, chosen, after if kept else None, refused)
    return _of_interface(replace(repair, by_channel=_by_channel(repair)), choice)


def _of_interface(repair: Repair, choice: RewriteChoice) -> Repair:
    """What is withheld of a model that stays red is tried, so that the user knows what he would allow."""
    model, now = repair.model, repair.now
    if now.green or not any(change.refused == CHANGES_INTERFACE for change in repair.refused):
        return repair
    candidate = of_rewritten(model, explainer(model).rewritten(model, replace(choice, interface=True)))
    outcome = measured(candidate) if candidate else now
    if not outcome.improves_on(now):
        return repair
    words = f"{CHANGES_INTERFACE} gives {in_decibels(outcome.sqnr_db)} against float"
    refused = [
        replace(change, refused=words) if change.refused == CHANGES_INTERFACE else change
        for change in repair.refused
    ]
    return replace(repair, refused=refused, of_interface=outcome)


def _by_channel(repair: Repair) -> Outcome | None:
    """ExecuTorch's quantizer has a scale for each channel by itself."""
    model, now = repair.model, repair.now
    lossy = not now.error and now.sqnr_db < LOSSY_DB
    if (
        "per_channel" not in model.lane.flags
        or model.per_channel
        or not lossy
        or not _is_quantized(model.precision)
    ):
        return None
    of_channels = replace(model, per_channel=True, program=None)
    result = measured(of_rewritten(of_channels, repair.rewritten) or of_channels)
    return result if now.worse_than(result) else None


def _is_quantized(precision: str | None) -> bool:
    return precision is not None and precision_named(precision).quantized


def of_rewritten(model: OneModel, rewritten: Rewritten) -> OneModel | None:
    """The rewritten model, with the samples of the first; None if nothing was rewritten."""
    if not rewritten.model or not rewritten.made:
        return None
    # Its nodes have other names, and one chip is enough for a trial.
    alone: dict[str, Any] = {"program": None, "keep_on_cpu": (), "embed": False}
    model = replace(model, typed=str(rewritten.model), dimensions=(), **alone)
    if rewritten.samples:
        inferences = rewritten.compared or model.inferences
        model = replace(model, calibrate=str(rewritten.samples), inferences=inferences)
    return model
