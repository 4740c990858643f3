"""Run `repair`: find the fewest rewrites that help a model, and write and print what became of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from ci.explain.fewest_rewrites import Repair, fewest_of
from ci.explain.lane import AnyModelLane, outcome_of
from ci.explain.rewriting import RewrittenPlace
from ci.one_model.model import OneModel
from ci.one_model.options import Floor
from ci.one_model.output import file_line, keep_origins, require_own, writing_into
from ci.one_model.product import Outcome, cells_of
from ci.one_model.report import ModelReport
from ci.suite.precision import MORE_EXACT, written_name
from provisioning.base import answer
from provisioning.base.errors import exit_code_of
from provisioning.base.rendering import plural
from provisioning.base.units import align
from provisioning.known_faults import fix_at

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
