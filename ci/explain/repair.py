"""`repair`: a model rewritten where known faults meet it, compiled, run and compared with what it was."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ci.explain.cause import cause_of
from ci.explain.lane import Explains, measured
from ci.explain.rewriting import CHANGES_INTERFACE, RewriteChoice, Rewritten, RewrittenPlace
from ci.suite.compile_flags import ONNX
from ci.suite.lane_model import ELSEWHERE, LaneModel
from ci.suite.model_report import DIES, ModelReport
from ci.suite.offers import words_of
from ci.suite.options import Compiling, OneModel
from ci.suite.output import keep_origins, require_own, writing_into
from ci.suite.precision import precision_named
from ci.suite.suite_file import accepted_path
from ci.suite.trial import Outcome, cells_of, smallest
from provisioning.base import answer
from provisioning.base.accepted import Accepted, Values, accept
from provisioning.base.commands import session
from provisioning.base.disk import disk_errors
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Metric
from provisioning.base.rendering.text import plural
from provisioning.base.units import aligned, in_decibels
from provisioning.fixes import fix_at

FILES = (".py", ".pt2", ".onnx")
"""What a model is in; else it is named as a module."""
LOSSY_DB = 30.0
"""Below it, weights get a scale for each channel where that helps."""
BY_CHANNEL = "--per-channel"
FLOOR = f"{LOSSY_DB:g}dB"
Rules = tuple[tuple[str, ...], ...]
"""Of rewrites, each by those that ask for it."""
REPAIRED = "repaired"
"""In the name of the file of what was accepted of a suite's repairs."""


@dataclass(frozen=True)
class Repair:
    """What became of a model."""

    subject: LaneModel[Any, Any]
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
    def model(self) -> LaneModel[Any, Any]:
        """What it left of the model."""
        subject = of_rewritten(self.subject, self.rewritten) or self.subject
        if not self.by_channel:
            return subject
        return subject.of(replace(subject.model, per_channel=True), subject.how)


def repair_of(subject: LaneModel[Any, Any], lane: Explains, choice: RewriteChoice) -> Repair:
    """Rewrite, prove, compile and compare: the fewest rewrites with which the model is as good as with any
    that were tried."""
    before = measured(subject)
    rewritten = lane.rewritten(subject, choice)
    all_rules = tuple(dict.fromkeys(change.rules for change in rewritten.made))
    known: dict[Rules, tuple[Rewritten, Outcome]] = {(): (Rewritten((), None), before)}

    def outcome_of(chosen: Rules) -> Outcome:
        if chosen not in known:
            rules = tuple(rule for names in chosen for rule in names)
            part = rewritten if chosen == all_rules else lane.rewritten(subject, replace(choice, rules=rules))
            candidate = of_rewritten(subject, part)
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
    repair = Repair(subject, before, chosen, after if kept else None, refused)
    return _of_interface(replace(repair, by_channel=_by_channel(repair)), lane, choice)


def _of_interface(repair: Repair, lane: Explains, choice: RewriteChoice) -> Repair:
    """What is withheld of a model that stays red is tried, so that the user knows what he would allow."""
    subject, now = repair.subject, repair.now
    if now.green or not any(change.refused == CHANGES_INTERFACE for change in repair.refused):
        return repair
    candidate = of_rewritten(subject, lane.rewritten(subject, replace(choice, interface=True)))
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
    subject, now = repair.subject, repair.now
    model = subject.model
    lossy = not now.error and now.sqnr_db < LOSSY_DB
    if model.lane != ONNX or model.per_channel or not lossy or not _is_quantized(model.precision):
        return None
    of_channels = subject.of(replace(model, per_channel=True), subject.how)
    result = measured(of_rewritten(of_channels, repair.rewritten) or of_channels)
    return result if now.worse_than(result) else None


def _is_quantized(precision: str | None) -> bool:
    return precision is not None and precision_named(precision).quantized


def repair_model(
    subject: LaneModel[Any, Any], lane: Explains, choice: RewriteChoice, report: ModelReport
) -> int:
    """Write the rewritten model and what to change in its source, if it is no worse for it."""
    repair = repair_of(subject, lane, choice)
    now, after, rewritten = repair.now, repair.after, repair.rewritten
    print("\n".join(_as_text(repair)))
    if not (after or repair.refused) and (cause := cause_of(subject, subject.programs[0], now)):
        print(cause.in_words())
    files = _write(repair, report) if after else []
    answer.add(
        model=subject.name,
        soc=subject.model.selection.soc,
        changes=[asdict(change) for change in rewritten.made],
        refused=[asdict(change) for change in repair.refused],
        before=_answered(repair.before),
        after=_answered(after) if after else None,
        by_channel=_answered(repair.by_channel) if repair.by_channel else None,
        files=[str(path) for path in files],
    )
    if not after and (repair.by_channel or now.wrong):
        by_channel = subject.model.per_channel or bool(repair.by_channel)
        _next(repair, replace(subject.model, per_channel=by_channel))
    _report(repair, report)
    return 0 if now.green else CheckFailed.exit_code


def _report(repair: Repair, report: ModelReport) -> None:
    now = repair.now
    if not now.green:
        whose = "the rewritten model" if repair.after else f"no rewrite repairs {repair.subject.name}, which"
        report.fail(f"{whose}: {now.says}", now.fix, now.wrong[0].rule if now.wrong else DIES)


def repair_suites(
    every: Sequence[LaneModel[Any, Any]],
    lane: Explains,
    choice: RewriteChoice,
    report: ModelReport,
    *,
    accepts: bool,
) -> int:
    """Repair each program of suites, say in a table what it was and became, and keep that if it is accepted.
    Writes no model: the command for one does."""
    rows, code, repairs = [("program", "before", "repaired by", "after")], 0, dict[str, Values]()
    for subject in every:
        repair = repair_of(subject, lane, choice)
        _report(repair, report)
        code = code if repair.now.green else CheckFailed.exit_code
        words = (_in_short(repair.before), ", ".join(repair.rewrites) or "-", _in_short(repair.now))
        rows.append((subject.name, *words))
        name = f"{subject.lane.suites.lane}/{subject.name}"
        repairs[name] = as_accepted(repair)
        if accepts and subject.given:
            # At once: a run that is interrupted has then lost nothing.
            of_it = {name: repairs[name]}
            accept(accepted_path(subject.given.suite, REPAIRED), partial(replaced, of_it=of_it))
    print("\n".join(aligned(rows)))
    answer.add(repairs=repairs)
    return code


def replaced(accepted: Accepted, of_it: Mapping[str, Values]) -> Accepted:
    return accepted.only(lambda name: name not in of_it).updated(of_it)


def _in_short(result: Outcome) -> str:
    ddr = f", {result.costs['ddr']:,.0f} bytes of DDR" if "ddr" in result.costs else ""
    return result.verdict if result.error else f"{result.verdict}, {in_decibels(result.sqnr_db)}{ddr}"


def as_accepted(repair: Repair) -> dict[str, Metric]:
    """What the site's page is made from."""
    values: dict[str, Metric] = {"rewrites": " ".join(repair.rewrites)}
    for when, result in (("before", repair.before), ("after", repair.now)):
        figures: dict[str, Metric] = {
            "verdict": result.verdict,
            "says": result.says or None,
            "ddr": result.costs.get("ddr"),
        }
        figures |= {} if result.error else {"sqnr_db": round(result.sqnr_db, 1)}
        values |= {f"{when}.{name}": value for name, value in figures.items() if value is not None}
    return values


def of_rewritten(subject: LaneModel[Any, Any], rewritten: Rewritten) -> LaneModel[Any, Any] | None:
    """The rewritten model, with the samples of the first; None if nothing was rewritten."""
    if not rewritten.model or not rewritten.made:
        return None
    model = replace(subject.model, typed=str(rewritten.model), dimensions=(), python=None)
    if rewritten.samples:
        inferences = rewritten.compared or model.inferences
        model = replace(model, calibrate=str(rewritten.samples), inferences=inferences)
    return subject.of(model, Compiling())


def _as_text(repair: Repair) -> Iterator[str]:
    changes, refused, rows = repair.rewritten.made, repair.refused, repair.rows
    if changes:
        yield "rewritten, and proved the same on the CPU:"
        yield from _of_changes(changes)
    elif not refused:
        yield "no part of the model has a known fault that a rewrite repairs"
    if refused:
        yield "not rewritten:"
        for change in refused:
            yield f"  {change.place}: {change.rewrite}: {change.refused}"
    cells = {name: cells_of(row) for name, row in rows.items() if not row.error}
    if titles := dict.fromkeys(title for row in cells.values() for title in row):
        table = [(title, *(cells.get(name, {}).get(title, "-") for name in rows)) for title in titles]
        yield from aligned([("", *rows), *table])
    for name, row in rows.items():
        if row.error:
            yield f"{name}: gives no program: {row.error}"
        yield from (f"{name}: {finding.message}" for finding in row.wrong)


def _of_changes(rewritten_places: Sequence[RewrittenPlace]) -> Iterator[str]:
    """Each rewrite with its places, and what to write there."""
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
    """The model, the samples that it draws itself, and what to change in its source."""
    subject, rewritten = repair.subject, repair.rewritten
    assert rewritten.model is not None
    output, model = subject.how.output, subject.model
    name = Path(model.typed.partition(":")[0])
    stem = f"{name.stem if name.suffix in FILES else name.suffix.lstrip('.') or name}-repaired"
    path, samples = output / f"{stem}{rewritten.model.suffix}", model.calibrate
    inferences = model.inferences
    with disk_errors(ELSEWHERE), writing_into(output.absolute(), model.selection.store) as (new, publish):
        require_own([path, output / f"{stem}.txt", output / f"{stem}-samples"], model.typed)
        shutil.copyfile(rewritten.model, new / path.name)
        (new / f"{stem}.txt").write_text("\n".join(_of_changes(rewritten.made)) + "\n", encoding="utf-8")
        if rewritten.samples and not samples:
            samples, inferences = str(output / f"{stem}-samples"), rewritten.compared or inferences
            shutil.copytree(rewritten.samples, new / f"{stem}-samples")
            shutil.rmtree(samples, ignore_errors=True)
        written = publish([*new.iterdir()])
        keep_origins(written, model.typed)
    files = [path for path in written if path.is_file()]
    report.wrote(files)
    for file in files:
        print(f"{file.stat().st_size:>12,}  {output / file.name}")
    next_model = replace(
        model,
        typed=str(path),
        calibrate=samples,
        inferences=inferences,
        dimensions=(),
        per_channel=model.per_channel or bool(repair.by_channel),
    )
    _next(repair, next_model)
    return files


def _next(repair: Repair, model: OneModel) -> None:
    """The command for what is red still; else the one that writes the program."""
    words = model.words(model.selection.soc)
    output = ("-o", str(repair.subject.how.output))
    if repair.of_interface:
        command = session("repair", *words, "--may-change-interface", *output)
    elif repair.now.error:
        command = session("audit", *words)
    elif repair.now.wrong and (tuned := words_of(words)["tuned_model"]):
        command = session("tune", *tuned, "--floor", FLOOR, *output)
    else:
        command = session("compile", *words, *output)
    print(f"next: {command}")
    answer.add(next=command.installed)


def _answered(row: Outcome) -> dict[str, Any]:
    return {"error": row.error, "fix": row.fix, "accuracy": dict(row.figures), **cells_of(row)}
