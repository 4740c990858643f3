"""Find the fewest rewrites with which a model is as good as with any, for `repair`.

`fewest_of` compiles and compares the model with all rewrites that answer known faults, and then leaves out
each that gains nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ci.explain.lane import AnyModelLane, outcome_of
from ci.explain.rewriting import Rewritten, RewrittenPlace
from ci.one_model.model import OneModel
from ci.one_model.product import Outcome
from ci.one_model.smallest_part import smallest
from provisioning.base.errors import ToolkitError

Rules = tuple[tuple[str, ...], ...]
"""A choice of rewrites. Each is named by the rules of known faults that ask for it."""


@dataclass(frozen=True)
class Repair:
    """The outcome of a repair: the model before, and with the rewrites that help."""

    model: OneModel
    before: Outcome
    rewritten: Rewritten
    together: Outcome | None
    """The outcome with every rewrite; None if there is none."""
    after: Outcome | None
    """The outcome with the fewest rewrites that help; None if none does."""
    refused: Sequence[RewrittenPlace]
    """Rewrites that were not proved, or that gain nothing."""

    @property
    def now(self) -> Outcome:
        """The outcome of the model that the user gets."""
        return self.after or self.before

    @property
    def rows(self) -> dict[str, Outcome]:
        return {"before": self.before, "after": self.after} if self.after else {"before": self.before}


class _RewriteTrials:
    """Compiles a model with some of its rewrites, each choice once."""

    def __init__(
        self, lane: AnyModelLane, model: OneModel, only: tuple[str, ...] | None, before: Outcome
    ) -> None:
        self.lane, self.model, self.before = lane, model, before
        self.rewritten = lane.rewritten(model, only)
        """The model with every rewrite."""
        self.all_rules: Rules = tuple(dict.fromkeys(change.rules for change in self.rewritten.places))
        self._trials: dict[Rules, tuple[Rewritten, Outcome]] = {(): (Rewritten((), None), before)}

    def model_with(self, choice: Rules) -> Rewritten:
        """Return the model with these rewrites alone."""
        return self._trial(choice)[0]

    def outcome(self, choice: Rules) -> Outcome:
        return self._trial(choice)[1]

    def _trial(self, choice: Rules) -> tuple[Rewritten, Outcome]:
        if choice not in self._trials:
            rules = tuple(rule for names in choice for rule in names)
            is_all = choice == self.all_rules
            rewritten = self.rewritten if is_all else self.lane.rewritten(self.model, rules)
            candidate = rewritten_model(self.model, rewritten)
            outcome = outcome_of(self.lane, candidate) if candidate else self.before
            self._trials[choice] = rewritten, outcome
            if len(self.all_rules) > 1:
                sys.stderr.write(f"  with {', '.join(rules)}: {outcome.summary_line()}\n")
        return self._trials[choice]

    def find_best(self) -> Rules:
        """Return the choice with the best outcome of those that are tried: all rewrites together, else those
        that each improve on the ones before it."""
        if self.all_rules and self.outcome(self.all_rules).improves_on(self.before):
            return self.all_rules
        # Together they may do harm, so try them one by one.
        best: Rules = ()
        for rules in self.all_rules:
            longer = (*best, rules)
            if self.outcome(longer).improves_on(self.outcome(best)):
                best = longer
        return best

    def find_fewest(self, choice: Rules) -> Rules:
        """Return a part of the choice that is as good, from which nothing can be left out. If an error ends
        the trials, as the end of their time does, it is the smallest part that was proved."""
        outcome, proved = self.outcome(choice), choice

        def first_as_good(parts: Iterable[Rules]) -> Rules | None:
            nonlocal proved
            part = next((part for part in parts if not outcome.improves_on(self.outcome(part))), None)
            proved = part or proved
            return part

        try:
            return smallest(choice, first_as_good)
        except ToolkitError:
            return proved


def fewest_of(lane: AnyModelLane, model: OneModel, only: tuple[str, ...] | None, before: Outcome) -> Repair:
    """Rewrite, prove, compile and compare, and keep the fewest rewrites with which the model is as good as
    with any that were tried. `only` limits the rewrites to these faults; `before` is the outcome without
    any."""
    trials = _RewriteTrials(lane, model, only, before)
    winner = trials.find_fewest(trials.find_best())
    after = trials.outcome(winner)
    refused = [change for change in trials.rewritten.changes if change.refused]
    needless = f"it gains nothing on the emulator: {after.summary_line()} without it"
    for change in trials.rewritten.places:
        if change.rules not in winner:
            refused.append(replace(change, refused=needless))
    return Repair(
        model=model,
        before=before,
        rewritten=trials.model_with(winner),
        together=trials.outcome(trials.all_rules) if trials.all_rules else None,
        after=after if winner else None,
        refused=refused,
    )


def rewritten_model(model: OneModel, rewritten: Rewritten) -> OneModel | None:
    """Return the rewritten model, with the samples of the first; None if nothing was rewritten."""
    if not rewritten.model or not rewritten.places:
        return None
    options = model.options.rewritten()
    if rewritten.samples:
        inferences = rewritten.compared or options.inferences
        options = replace(options, calibrate=str(rewritten.samples), inferences=inferences)
    return replace(model, typed=str(rewritten.model), options=options)
