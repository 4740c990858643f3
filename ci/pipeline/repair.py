"""`repair`: a model rewritten where known faults meet it, compiled, run and compared with what it was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ci.engine.output import writing_into
from ci.pipeline.lane import mine_of
from ci.pipeline.model_report import DIES, ModelReport
from ci.pipeline.one_model import ELSEWHERE, LaneModel, lane_model
from ci.pipeline.options import Compiling
from ci.pipeline.rewriting import RewriteChoice, Rewritten, RewrittenPlace
from provisioning.base import answer
from provisioning.base.commands import session
from provisioning.base.disk import disk_errors
from provisioning.base.errors import CheckFailed, ToolkitError
from provisioning.base.findings import Finding
from provisioning.base.rendering.text import plural
from provisioning.base.units import aligned
from provisioning.fixes import words_at

FILES = (".py", ".pt2", ".onnx")
"""What a model is in; else it is named as a module."""
WORSE_DB = 1.0
"""A rewrite that loses more is not kept."""


@dataclass(frozen=True)
class ModelResult:
    """What the pipeline gives of a model."""

    error: str = ""
    """Why there is no program."""
    fix: str = ""
    cells: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    on_cpu: int = 0
    wrong: Sequence[Finding] = ()

    @property
    def green(self) -> bool:
        return not self.error and not self.wrong

    @property
    def sqnr_db(self) -> float:
        """None of a program that does not compile."""
        return float("-inf") if self.error else float(self.figures.get("sqnr_db", 0.0))

    def worse_than(self, other: ModelResult) -> bool:
        if self.green != other.green:
            return other.green
        return self.sqnr_db < other.sqnr_db - WORSE_DB and self.on_cpu >= other.on_cpu


def measured(taken: LaneModel[Any, Any]) -> ModelResult:
    """Compile, run and compare."""
    try:
        plan = taken.plan(taken.programs)
        (program,) = plan.programs
        results = taken.do(plan)
        product = taken.product(plan, program, mine_of(program, results))
    except ToolkitError as error:
        if error.exit_code != CheckFailed.exit_code:
            raise
        return ModelResult(error.message.splitlines()[0], error.fix)
    ddr = product.facts.get("ddr") or {}
    cells = {name: cell for name, cell in product.cells.items() if name != "chip"}
    if ddr:
        cells["bytes of DDR"] = f"{ddr['read'] + ddr['written']:,}"
    on_cpu = int(cells.get("on the CPU", "0"))
    return ModelResult("", "", cells, product.facts["accuracy"], on_cpu, product.wrong)


def repair_model(taken: LaneModel[Any, Any], asked: RewriteChoice, report: ModelReport) -> int:
    """Write the rewritten model and what to change in its source, if it is no worse for it."""
    before = measured(taken)
    rewritten = taken.rewritten(asked)
    after = _measured_again(taken, rewritten)
    refused = [change for change in rewritten.changes if change.refused]
    if after and after.worse_than(before):
        rewritten, after, more = _without_harm(taken, asked, rewritten, before)
        refused += more
    now = after or before
    print("\n".join(_as_text(rewritten.made, refused, before, after)))
    files = _write(taken, rewritten, report, compiles=not after.error) if after else []
    answer.add(
        model=taken.model.typed,
        soc=taken.model.selection.soc,
        changes=[asdict(change) for change in rewritten.made],
        refused=[asdict(change) for change in refused],
        before=_answered(before),
        after=_answered(after) if after else None,
        files=[str(path) for path in files],
    )
    if not now.green:
        words = now.error or "; ".join(f"{finding.message}" for finding in now.wrong)
        whose = "the rewritten model" if after else f"no rewrite repairs {taken.model.typed}, which"
        report.fail(f"{whose}: {words}", now.fix, now.wrong[0].rule if now.wrong else DIES)
    return 0 if now.green else CheckFailed.exit_code


def _measured_again(taken: LaneModel[Any, Any], rewritten: Rewritten) -> ModelResult | None:
    if not rewritten.model or not rewritten.made:
        return None
    return measured(_of_file(taken, rewritten.model, rewritten.samples))


def _of_file(taken: LaneModel[Any, Any], path: Path, samples: Path | None) -> LaneModel[Any, Any]:
    """The rewritten model, with the samples of the first."""
    calibrate = str(samples) if samples else taken.model.calibrate
    model = replace(taken.model, typed=str(path), calibrate=calibrate, dimensions=(), python=None)
    return lane_model(model, Compiling())


def _without_harm(
    taken: LaneModel[Any, Any], asked: RewriteChoice, rewritten: Rewritten, before: ModelResult
) -> tuple[Rewritten, ModelResult | None, list[RewrittenPlace]]:
    """The rewrites that do no harm alone, together; and the others, refused by what the emulator gave."""
    kept: list[str] = []
    refused: list[RewrittenPlace] = []
    rewrites = dict.fromkeys(change.rules for change in rewritten.made)
    for rules in rewrites:
        alone = taken.rewritten(replace(asked, rules=rules)) if len(rewrites) > 1 else rewritten
        result = _measured_again(taken, alone)
        assert result is not None
        if result.worse_than(before):
            words = result.error or f"{result.sqnr_db:.1f} dB, and {before.sqnr_db:.1f} dB without it"
            made = [change for change in rewritten.made if change.rules == rules]
            refused += [replace(change, refused=f"on the emulator: {words}") for change in made]
        else:
            kept += rules
    if not kept:
        return Rewritten((), None), None, refused
    together = taken.rewritten(replace(asked, rules=tuple(kept)))
    return together, _measured_again(taken, together), refused


def _as_text(
    made: Sequence[RewrittenPlace],
    refused: Sequence[RewrittenPlace],
    before: ModelResult,
    after: ModelResult | None,
) -> Iterator[str]:
    if made:
        yield "rewritten, and proved the same on the CPU:"
        yield from _of_changes(made)
    elif not refused:
        yield "no place of the model matches a known fault that can be rewritten"
    if refused:
        yield "not rewritten:"
        for change in refused:
            yield f"  {change.place}: {change.rewrite}: {change.refused}"
    rows = {"before": before, **({"after": after} if after else {})}
    titles = dict.fromkeys(title for row in rows.values() for title in row.cells)
    table = [("", *rows)]
    table += [(title, *(row.cells.get(title, "-") for row in rows.values())) for title in titles]
    if titles:
        yield from aligned(table)
    for name, row in rows.items():
        if row.error:
            yield f"{name}: gives no program: {row.error}"
        yield from (f"{name}: {finding.message}" for finding in row.wrong)


def _of_changes(made: Sequence[RewrittenPlace]) -> Iterator[str]:
    """Each rewrite with its places, and what to write there."""
    by_words: dict[tuple[str, tuple[str, ...], str], list[RewrittenPlace]] = {}
    for change in made:
        words = words_at(change.rules[0], change.code, change.source) if change.source else change.words
        by_words.setdefault((change.rewrite, change.rules, words), []).append(change)
    for (rewrite, rules, words), changes in by_words.items():
        places = list(dict.fromkeys(change.place for change in changes))
        count = f"{plural(len(changes), 'time')} " if len(changes) > 1 else ""
        yield f"  {rewrite} {count}({', '.join(rules)})"
        yield from (f"    {place}" for place in places)
        yield f"    → {words}"


def _write(
    taken: LaneModel[Any, Any], rewritten: Rewritten, report: ModelReport, *, compiles: bool
) -> list[Path]:
    """The model, the samples that it draws itself, and what to change in its source."""
    assert rewritten.model is not None
    output, model = taken.how.output, taken.model
    name = Path(model.typed.partition(":")[0])
    stem = f"{name.stem if name.suffix in FILES else name.suffix.lstrip('.') or name}-repaired"
    path, samples = output / f"{stem}{rewritten.model.suffix}", model.calibrate
    with disk_errors(ELSEWHERE), writing_into(output.absolute(), model.selection.store) as (new, publish):
        shutil.copyfile(rewritten.model, new / path.name)
        (new / f"{stem}.txt").write_text("\n".join(_of_changes(rewritten.made)) + "\n", encoding="utf-8")
        if rewritten.samples and not samples:
            samples = str(output / f"{stem}-samples")
            shutil.rmtree(samples, ignore_errors=True)
            shutil.copytree(rewritten.samples, samples)
        files = publish([file for file in new.iterdir() if file.is_file()])
    report.wrote(files)
    for file in files:
        print(f"{file.stat().st_size:>12,}  {output / file.name}")
    again = replace(model, typed=str(path), calibrate=samples, dimensions=())
    verb, into = ("compile", ("-o", str(output))) if compiles else ("audit", ())
    print(f"next: {session(verb, *again.words(model.selection.soc), *into)}")
    return files


def _answered(row: ModelResult) -> dict[str, Any]:
    return {"error": row.error, "fix": row.fix, "accuracy": dict(row.figures), **row.cells}
