"""Run `repair`: rewrite a model where known faults meet it, compile and run it, and compare it with what it
was."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ci.explain.lane import AnyModelLane, outcome_of
from ci.explain.rewriting import Rewritten, RewrittenPlace
from ci.one_model.model import OneModel
from ci.one_model.options import Floor
from ci.one_model.output import file_line, keep_origins, require_own, writing_into
from ci.one_model.product import Outcome, cells_of
from ci.one_model.report import ModelReport
from ci.one_model.smallest_part import smallest
from ci.suite.precision import MORE_EXACT, written_name
from provisioning.base import answer
from provisioning.base.errors import exit_code_of
from provisioning.base.rendering import plural
from provisioning.base.units import align
from provisioning.known_faults import fix_at

Rules = tuple[tuple[str, ...], ...]
"""It has for each rewrite the rules that ask for it."""


@dataclass(frozen=True)
class Repair:
    """It says what became of a model."""

    model: OneModel
    before: Outcome
    rewritten: Rewritten
    together: Outcome | None
    """It is the outcome with every rewrite; None if there is none."""
    after: Outcome | None
    """It is the outcome with the fewest rewrites that help; None if none does."""
    refused: Sequence[RewrittenPlace]

    @property
    def now(self) -> Outcome:
        return self.after or self.before

    @property
    def rows(self) -> dict[str, Outcome]:
        return {"before": self.before, "after": self.after} if self.after else {"before": self.before}


def fewest_of(lane: AnyModelLane, model: OneModel, only: tuple[str, ...] | None, before: Outcome) -> Repair:
    """Rewrite, prove, compile and compare, and keep the fewest rewrites with which the model is as good as
    with any that were tried. `only` limits the rewrites to these faults; `before` is the outcome without
    any."""
    rewritten = lane.rewritten(model, only)
    all_rules = tuple(dict.fromkeys(change.rules for change in rewritten.places))
    trials: dict[Rules, tuple[Rewritten, Outcome]] = {(): (Rewritten((), None), before)}

    def outcome_with(choice: Rules) -> Outcome:
        if choice not in trials:
            rules = tuple(rule for names in choice for rule in names)
            part = rewritten if choice == all_rules else lane.rewritten(model, rules)
            candidate = rewritten_model(model, part)
            trials[choice] = part, outcome_of(lane, candidate) if candidate else before
            if len(all_rules) > 1:
                sys.stderr.write(f"  with {', '.join(rules)}: {trials[choice][1].summary_line()}\n")
        return trials[choice][1]

    winner: Rules = ()
    best = before
    if all_rules and (together := outcome_with(all_rules)).improves_on(before):
        winner, best = all_rules, together
    # Together they may do harm.
    for rules in all_rules if not winner else ():
        if (result := outcome_with((*winner, rules))).improves_on(best):
            winner, best = (*winner, rules), result

    def first(parts: Iterable[Rules]) -> Rules | None:
        return next((part for part in parts if not best.improves_on(outcome_with(part))), None)

    winner = smallest(winner, first)
    rewrite, after = trials[winner]
    refused = [change for change in rewritten.changes if change.refused]
    words = f"it gains nothing on the emulator: {after.summary_line()} without it"
    refused += [replace(change, refused=words) for change in rewritten.places if change.rules not in winner]
    with_all = trials[all_rules][1] if all_rules else None
    return Repair(model, before, rewrite, with_all, after if winner else None, refused)


def rewritten_model(model: OneModel, rewritten: Rewritten) -> OneModel | None:
    """Return the rewritten model, with the samples of the first; None if nothing was rewritten."""
    if not rewritten.model or not rewritten.places:
        return None
    options = model.options.rewritten()
    if rewritten.samples:
        inferences = rewritten.compared or options.inferences
        options = replace(options, calibrate=str(rewritten.samples), inferences=inferences)
    return replace(model, typed=str(rewritten.model), options=options)


FILES = (".py", ".pt2", ".onnx")
"""A model is in a file with one of these endings; else it is named as a module."""
FLOOR = Floor(30, decibels=True)
"""`tune` is asked for this floor if the rewritten model is still wrong."""


def repair_model(
    lane: AnyModelLane, model: OneModel, only: tuple[str, ...] | None, report: ModelReport
) -> int:
    """Repair a model: if rewrites help, write the rewritten model and what to change in its source."""
    repair = fewest_of(lane, model, only, outcome_of(lane, model))
    now, after, rewritten = repair.now, repair.after, repair.rewritten
    print("\n".join(_text_lines(repair)))
    files = _write(repair, report) if after else []
    answer.add(
        model=model.typed,
        soc=model.selection.soc,
        changes=[asdict(change) for change in rewritten.places],
        refused=[asdict(change) for change in repair.refused],
        before=_answer_of(repair.before),
        after=_answer_of(after) if after else None,
        files=[str(path) for path in files],
    )
    if not after and now.wrong:
        _next(repair, model)
    _report(repair, report)
    return exit_code_of(good=now.green)


def _report(repair: Repair, report: ModelReport) -> None:
    now = repair.now
    if not now.green:
        subject = "the rewritten model" if repair.after else f"no rewrite repairs {repair.model.typed}, which"
        report.fail(f"{subject}: {now.reason}", now.fix)


def _text_lines(repair: Repair) -> Iterator[str]:
    changes, refused, rows = repair.rewritten.places, repair.refused, repair.rows
    if changes:
        yield "rewritten, and proved the same on the CPU:"
        yield from _change_lines(changes)
    elif not refused:
        yield "no part of the model has a known fault that a rewrite repairs"
    if refused:
        yield "not rewritten:"
        for change in refused:
            yield f"  {change.place}: {change.rewrite}: {change.refused}"
    cells = {name: cells_of(row) for name, row in rows.items() if not row.error}
    if titles := dict.fromkeys(title for row in cells.values() for title in row):
        table = [("", *rows)]
        for title in titles:
            table.append((title, *(cells.get(name, {}).get(title, "-") for name in rows)))
        yield from align(table)
    for name, row in rows.items():
        if row.error:
            yield f"{name}: gives no program: {row.error}"
        yield from (f"{name}: {finding.message}" for finding in row.wrong)


def _change_lines(rewritten_places: Sequence[RewrittenPlace]) -> Iterator[str]:
    """Yield each rewrite with its places, and what to write there."""
    by_words: dict[tuple[str, tuple[str, ...], str], list[RewrittenPlace]] = {}
    for change in rewritten_places:
        words = str(fix_at(change.rules[0], change.code, change.source)) if change.source else change.words
        by_words.setdefault((change.rewrite, change.rules, words), []).append(change)
    for (rewrite, rules, words), changes in by_words.items():
        places = list(dict.fromkeys(change.place for change in changes))
        count = f"{plural(len(changes), 'time')} " if len(changes) > 1 else ""
        yield f"  {rewrite} {count}({', '.join(rules)})"
        yield from (f"    {place}" for place in places)
        yield f"    → {words}"


def _write(repair: Repair, report: ModelReport) -> list[Path]:
    """Write the model, the samples that it draws itself, and what to change in its source."""
    model, rewritten = repair.model, repair.rewritten
    assert rewritten.model is not None
    output = model.output
    name = Path(model.typed.partition(":")[0])
    stem = f"{name.stem if name.suffix in FILES else name.suffix.lstrip('.') or name}-repaired"
    path, samples = output / f"{stem}{rewritten.model.suffix}", model.options.calibrate
    inferences = model.options.inferences
    with writing_into(output.absolute(), model.selection.store) as (new, publish):
        require_own([path, output / f"{stem}.txt", output / f"{stem}-samples"], model.typed)
        shutil.copyfile(rewritten.model, new / path.name)
        (new / f"{stem}.txt").write_text("\n".join(_change_lines(rewritten.places)) + "\n", encoding="utf-8")
        if rewritten.samples and not samples:
            samples, inferences = str(output / f"{stem}-samples"), rewritten.compared or inferences
            shutil.copytree(rewritten.samples, new / f"{stem}-samples")
            shutil.rmtree(samples, ignore_errors=True)
        paths = publish([*new.iterdir()])
        keep_origins(paths, model.typed)
    files = [path for path in paths if path.is_file()]
    report.wrote(files)
    for file in files:
        print(file_line(file))
    options = replace(model.options.rewritten(), calibrate=samples, inferences=inferences)
    _next(repair, replace(model, typed=str(path), options=options))
    return files


def _next(repair: Repair, model: OneModel) -> None:
    """Print the command for what is still red; else the one that writes the program."""
    soc, output = model.selection.soc, ("-o", str(repair.model.output))
    if repair.now.error:
        command = model.command("audit", soc)
    elif repair.now.wrong and (precision := written_name(model.precision or "")) in MORE_EXACT:
        both = (precision, MORE_EXACT[precision])
        tuning = model.use(replace(model.options, precisions=both, floor=FLOOR))
        command = tuning.command("tune", soc, *output)
    else:
        command = model.command("compile", soc, *output)
    print(f"next: {command}")
    answer.add(next=command.installed)


def _answer_of(row: Outcome) -> dict[str, object]:
    return {"error": row.error, "fix": row.fix, "accuracy": dict(row.figures), **cells_of(row)}
