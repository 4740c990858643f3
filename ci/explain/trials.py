"""Try the fixes that may help a program: rewrites at the cause, an edit of one line, another precision. Each
is compiled, run and compared, and gets its figure."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from ci.explain.cause import SECONDS, Cause
from ci.explain.fewest_rewrites import fewest_of
from ci.explain.lane import AnyModelLane, outcome_of
from ci.explain.rewriting import RewrittenPlace
from ci.one_model.model import OneModel
from ci.one_model.product import Outcome
from ci.suite.figures import CLEARLY_DB
from ci.suite.precision import MORE_EXACT, written_name
from provisioning.base.commands import Fix, join_fixes
from provisioning.base.errors import CheckFailed, ToolkitError
from provisioning.base.files import repository_of
from provisioning.base.findings import Edit
from provisioning.base.units import readable
from provisioning.known_faults import NO_FIX, fix_at

MOST = 3
"""At most so many candidates are tried."""
FOLDS = "constants-folded"
"""`compile` can do this rewrite by itself."""
TIMES = 3
"""A trial may take so many times as long as the program itself took to compile: what is rewritten is exported
twice more."""
LONGEST = 300.0
"""A whole search takes at most so many seconds, if its trials need more than is left of its time."""
EXACT = {**MORE_EXACT, "fp16": "16a8w"}
"""Maps a precision to the one that is tried in its place."""


@dataclass(frozen=True, slots=True)
class Candidate:
    words: str
    """Says what to type, as it is tried."""
    trial: Callable[[], Outcome | None]
    """It returns None if the candidate does not apply."""
    edit: Edit | None = None
    """The edit that is tried, if the candidate is one."""

    def outcome(self) -> Outcome | None:
        """Return what becomes of the program. A trial that raises becomes an outcome with its error."""
        try:
            return self.trial()
        except ToolkitError as error:
            return Outcome(error.message.splitlines()[0], error.fix)


@dataclass(slots=True)
class Proofs:
    """It collects what the trials showed, each in words with its figure."""

    repairing: list[str] = field(default_factory=list)
    nearer: list[str] = field(default_factory=list)
    """They are better than before, and still red."""
    failures: list[str] = field(default_factory=list)
    """They were tried, and do not help."""
    late: list[str] = field(default_factory=list)
    """They may help: their trials did not end in time."""
    edits: dict[str, Edit] = field(default_factory=dict)
    """Maps the words of a fix that helps to its edit, if the fix is an edit."""

    @property
    def helping(self) -> list[str]:
        """They are the fixes that help: edits of one line first, and then those that make the program green
        before those that do not."""
        return sorted([*self.repairing, *self.nearer], key=lambda words: words not in self.edits)

    @property
    def is_repaired(self) -> bool:
        """Whether rewrites of the model make its program green."""
        commands = [words.commands for words in self.repairing if isinstance(words, Fix)]
        return any(command[0] == "repair" for row in commands for command in row)

    @property
    def edit(self) -> Edit | None:
        """It is the first fix that helps, if that is an edit."""
        return self.edits.get(next(iter(self.helping), ""))

    @property
    def fix(self) -> str:
        if self.helping:
            return join_fixes(self.helping, "; or ")
        # What does not help, or may not, is words: nobody should type it.
        words = [*self.failures, *self.late]
        return f"{NO_FIX}; tried: {'; '.join(words)}" if words else NO_FIX

    def add(self, candidate: Candidate, after: Outcome, before: Outcome, *, is_late: bool) -> None:
        figure = "it did not end within the time of the search" if is_late else _describe_outcome(after)
        words = Fix("{}: {}", candidate.words, figure)
        if is_late:
            self.late.append(words)
        elif not helps(after, before):
            self.failures.append(words)
        elif after.green:
            self.repairing.append(words)
        else:
            self.nearer.append(words)
        if words in self.helping and candidate.edit:
            self.edits[words] = candidate.edit


def _describe_outcome(outcome: Outcome) -> str:
    """Return the figures against float, as the command that is typed will say them."""
    figures = {name: figure for name, figure in outcome.figures.items() if not name.startswith("reference_")}
    words = replace(outcome, figures=figures).summary_line()
    return f"{words}, which is still red" if outcome.wrong else words


def helps(after: Outcome, before: Outcome) -> bool:
    """Whether a fix repairs what is wrong, or is clearly nearer to float. A program that still dies is no
    help."""
    if after.error or not after.improves_on(before):
        return False
    return after.green or bool(before.error) or after.sqnr_db > before.sqnr_db + CLEARLY_DB


def try_fixes(
    lane: AnyModelLane,
    model: OneModel,
    soc: str,
    before: Outcome,
    cause: Cause | None,
    seconds: float = SECONDS,
    longest: float = LONGEST,
) -> Proofs:
    """Try fixes. Trials begin within these seconds, or within those that a program of this size needs. A
    trial that runs then may take as long again, because the machine may have other work; all end within the
    `longest`, if it is more."""
    estimate = TIMES * before.costs.get("cpu_seconds", 0.0)
    start = time.monotonic()
    last_begin = start + max(seconds, min(estimate, longest))
    until = start + max(seconds, min(2 * estimate, longest))
    trial = model.for_chip(soc).use(replace(model.options, search=False))
    trial = replace(trial, work=replace(model.work, until=until))
    proofs, typed = Proofs(), model.command("compile", soc, "-o", "out")
    for candidate in islice(_possible(lane, trial, cause, before), MOST):
        if time.monotonic() > last_begin:
            break
        if candidate.words == typed:
            # What was typed is no fix of itself.
            continue
        sys.stderr.write(readable(f"trying: {candidate.words}\n", sys.stderr))
        after = candidate.outcome()
        if after is None:
            continue
        is_late = bool(after.error) and time.monotonic() > until
        proofs.add(candidate, after, before, is_late=is_late)
        if after.green and candidate.edit:
            break
    return proofs


def _possible(
    lane: AnyModelLane, model: OneModel, cause: Cause | None, before: Outcome
) -> Iterator[Candidate]:
    """Yield the candidates, until one needs what this machine lacks."""
    try:
        yield from candidates_of(lane, model, cause, before)
    except ToolkitError as error:
        sys.stderr.write(readable(f"no more fixes are tried: {error.message}\n", sys.stderr))


def candidates_of(
    lane: AnyModelLane, model: OneModel, cause: Cause | None, before: Outcome
) -> Iterator[Candidate]:
    """Yield rewrites at the place of the cause, or of the whole model; then other flags, unless the compiler
    has the fault with any flags. A model that does not export has no candidates."""
    try:
        rewritten = lane.rewritten(model)
    except ToolkitError as error:
        if error.exit_code != CheckFailed.exit_code:
            raise
        return
    yield from _rewrites(lane, model, rewritten.places, cause, before)
    if cause is not None and cause.on_cpu:
        yield _compile_candidate(lane, model.use(model.options.keeping_on_cpu(cause.on_cpu)))
        return
    if cause is None or not cause.in_compiler:
        yield from _other_flags(lane, model)


def _other_flags(lane: AnyModelLane, model: OneModel) -> Iterator[Candidate]:
    precision = written_name(model.precision or "fp16")
    if precision != "fp16":
        for options in model.options.remedies():
            yield _compile_candidate(lane, model.use(options))
    exact = EXACT.get(precision)
    if exact and not model.options.precision_file:
        yield _compile_candidate(lane, model.use_precision(exact))


def _compile_candidate(lane: AnyModelLane, model: OneModel) -> Candidate:
    command = model.command("compile", model.selection.soc, "-o", "out")
    return Candidate(command, lambda: outcome_of(lane, model))


def _rewrites(
    lane: AnyModelLane,
    model: OneModel,
    places: Sequence[RewrittenPlace],
    cause: Cause | None,
    before: Outcome,
) -> Iterator[Candidate]:
    at_cause = [place for place in places if _is_at(place, cause)]
    if not at_cause:
        return
    edits = {fix_at(place.rules[0], place.code, place.source).edit for place in at_cause}
    # One edit alone is the whole rewrite.
    if len(edits) == 1 and (edit := edits.pop()):
        yield Candidate(str(edit), lambda: _outcome_of_edit(lane, model, edit), edit)
    rules, all_rules = _rules_of(at_cause), _rules_of(places)
    if cause is not None and cause.in_compiler and before.error and rules != all_rules:
        # The next place may end the compiler as well. Of what helps, the needless is left out.
        yield _repair_candidate(lane, model, all_rules, before)
        return
    folding = model.options.folding_constants()
    if folding and any(place.rewrite == FOLDS for place in at_cause):
        yield _compile_candidate(lane, model.use(folding))
    yield _repair_candidate(lane, model, rules, before)
    if cause is not None and cause.in_compiler and rules != all_rules:
        yield _repair_candidate(lane, model, all_rules, before)


def _rules_of(places: Sequence[RewrittenPlace]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rule for place in places for rule in place.rules))


def _is_at(place: RewrittenPlace, cause: Cause | None) -> bool:
    """Whether a rewrite there may help. One that answers a suspected fault may begin at another node; if no
    place was found, all may help."""
    if cause is None or not (cause.nodes or cause.suspected):
        return True
    if cause.in_compiler and not (cause.place or cause.lines):
        return True
    if any(fault.fault in place.rules for fault in cause.suspected):
        return True
    if place.source and (cause.place or cause.lines):
        return place.source in (str(cause.place), *cause.lines)
    return place.node in cause.nodes


def _repair_candidate(
    lane: AnyModelLane, model: OneModel, rules: tuple[str, ...], before: Outcome
) -> Candidate:
    """Return the candidate with the fewest rewrites that help, as the command finds them."""

    def trial() -> Outcome | None:
        repair = fewest_of(lane, model, rules, before)
        return repair.after or repair.together

    repairing = model.use(replace(model.options, only=rules))
    return Candidate(repairing.command("repair", model.selection.soc, "-o", "repaired"), trial)


def _outcome_of_edit(lane: AnyModelLane, model: OneModel, edit: Edit) -> Outcome | None:
    """Return the outcome of the source with that line changed, in a folder that links to all else that the
    model's has; None if the line is not in the model's own folder, or not as it was."""
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
        _link_beside(folder, copy, inside)
        (copy / inside).write_text("".join(lines), encoding="utf-8")
        typed = f"{copy / source.file.name}:{model.typed.rpartition(':')[2]}"
        return outcome_of(lane, replace(model, typed=typed))


def _link_beside(folder: Path, copy: Path, file: Path) -> None:
    """Link in the copy to all that the folder has beside this file."""
    for depth, part in enumerate(file.parts):
        parent = Path(*file.parts[:depth])
        for path in (folder / parent).iterdir():
            if path.name not in (part, ".git"):
                (copy / parent / path.name).symlink_to(path)
        if depth < len(file.parts) - 1:
            (copy / parent / part).mkdir()
