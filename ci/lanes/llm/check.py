"""`check`: the verdicts on a compiled checkpoint. Workers measure; this asks them."""

from __future__ import annotations

import filecmp
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ci.lanes.llm import commands, prompts, verdicts
from ci.lanes.llm.adapters import require_adapter
from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.beginning import encoder_of, load_tokenizer, tokenizer_decides
from ci.lanes.llm.config import read_architecture
from ci.lanes.llm.genie import NONE, contradictions, setting
from ci.lanes.llm.orders import (
    GENIE,
    KINDS,
    CompileOrder,
    FiguresOrder,
    GenieOrder,
    JudgedText,
    Parts,
    PartsOrder,
    Readings,
    Record,
    Rounded,
    RoundingOrder,
    record_of,
)
from ci.lanes.llm.work import changed_files, float_of
from ci.plain import as_json, read
from ci.suite.findings import verdict
from ci.work import Asker
from provisioning.base.commands import leave_out, session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Finding, Severity
from provisioning.base.rendering.text import plural
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.manifest import soc_named


@dataclass(frozen=True, slots=True)
class CheckOptions:
    model: Path
    text: Path
    checkpoint: Path | None
    prefixes: int
    tokens: int
    decode_tokens: int | None
    """By decode alone; None for as many."""
    on: str
    limits: Mapping[str, float]
    """The user's own, by figure."""
    timeout: float
    selection: Selection
    emulated: commands.Emulated


def check_model(options: CheckOptions) -> int:
    stage = StageRun("check", "", "", session("check", *sys.argv[2:]))
    reports, name = options.selection.reports, options.model.absolute().name
    with stage.reported(reports, "llm-refused", name):
        check = prepared(options)
        check.all()
        stage.findings += check.findings
        stage.metrics["programs"] = {name: {"verdict": verdict(check.findings), **check.row}}
    return stage.close(reports)


def prepared(options: CheckOptions) -> Check:
    """Refuses what cannot be checked before any worker starts."""
    config = commands.compiled_file(options.model)
    record = record_of(config.parent)
    folder = (options.checkpoint or Path(record.order.model)).absolute()
    if not folder.is_dir():
        raise UsageError(
            f"{folder}, from which {options.model} was compiled, is not there",
            fix="name where the checkpoint is now: --checkpoint FOLDER",
        )
    order = replace(record.order, model=str(folder))
    shape = read_architecture(folder, order.adapter)
    if shape.adapter:
        require_adapter(shape.adapter, shape.tensors)
    genie = order.through == GENIE
    if genie and (wrong := contradictions(config, shape, soc_named(order.soc), order.context)):
        raise CheckFailed(
            f"{config} contradicts {folder}: {'; '.join(wrong)}", fix="correct it, or compile again"
        )
    if not options.text.is_file():
        raise UsageError(f"--text {options.text}: there is no such file", fix="name a text file")
    for name in ("tokenizer.json", prompts.CONFIG, prompts.TEMPLATE):
        if not _same_file(config.with_name(name), folder / name):
            raise CheckFailed(
                f"{config.with_name(name)} is not that of {folder}",
                fix="copy it from there, or compile again",
            )
    if changed := changed_files(config.parent, record, options.selection.store):
        raise CheckFailed(
            f"{config.with_name(changed[0])} is not the file that was compiled", fix="compile it again"
        )
    if options.on == "cpu" and not order.quantized:
        raise UsageError("fp16 is computed by HTP alone", fix=leave_out("--on"))
    whole = True
    if genie and options.on == "both":
        sizes = commands.sizes_of(config)
        commands.require_loadable(sizes, *KINDS)
        whole = "prefill" in commands.kinds_for_genie(sizes)
    text = prompts.judged_text(
        order,
        shape,
        options.text,
        options.tokens,
        options.prefixes,
        decode_tokens=options.decode_tokens,
        whole=whole,
        calibrated_by=record.calibrated_by,
    )
    if hint := longer_windows(text, order.context, len(shape.beginning)):
        sys.stderr.write(f"{hint}\n")
    return Check(options, config, record, order, shape, text)


def _same_file(one: Path, other: Path) -> bool:
    if one.is_file() and other.is_file():
        return filecmp.cmp(one, other, shallow=False)
    return one.is_file() == other.is_file()


def longer_windows(text: JudgedText, context: int, beginning: int) -> str:
    """What reads the whole context in all windows, where they end before it; so many tokens begin one."""
    length, count = len(text.rows[0]), prompts.WINDOWS
    if length >= context:
        return ""
    needed = count * (context - beginning)
    longer = f" --text FILE, of {needed} tokens or more," if text.count < needed else ""
    return (
        f"windows end at place {length} of {context}: --tokens {count * (context - 1)}{longer}"
        " reads them to the end"
    )


@dataclass
class Check:
    """A compiled checkpoint, what is asked of its worker, and what is found."""

    options: CheckOptions
    config: Path
    record: Record
    order: CompileOrder
    """By which it was compiled, of the checkpoint where that is now."""
    shape: Architecture
    text: JudgedText
    row: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    fix: str = ""
    """Where it is known before anything is measured."""

    @property
    def by_genie(self) -> bool:
        return self.order.through == GENIE and self.options.on == "both"

    def all(self) -> None:
        options, order, record = self.options, self.order, self.record
        self.row |= {"soc": order.soc, "context": order.context, "through": order.through}
        self.row |= {"precision": order.precision, "bytes": record.size, "peak": record.peak}
        self.row |= {"cpu_seconds": record.cpu_seconds, "comparisons": 0, "figures": {}, "positions": {}}
        logs = options.selection.reports.absolute() / "llm"
        with options.emulated.worker(order.through, options.selection, logs, options.timeout) as ask:
            if self.by_genie:
                fix = "report it with the checkpoint's tokenizer.json"
                self._add(self._tokenizer_problems(), "llm-text", fix)
            bounds = self._bounds(ask)
            figures: dict[str, verdicts.Figures] = {}
            if options.on != "parts":
                figures |= self._figures(ask, bounds)
            if self.by_genie:
                figures |= self._genie(ask, bounds)
            rows = self._parts(ask, figures, bounds) if options.on != "cpu" else []
        if self.findings:
            fix = self.fix or verdicts.FIXES[verdicts.cause_of(rows, figures, bounds)]
            self.findings = [replace(finding, fix=finding.fix or fix) for finding in self.findings]
        if bounds.warning:
            fix = "take a higher precision; calibrating by other text helps where activations are cut off"
            self._add([bounds.warning], "llm-rounding", fix, Severity.WARNING)
        sys.stdout.write(f"{self.row['comparisons']} comparisons with a limit\n")
        if order.through == GENIE and options.on != "both":
            sys.stdout.write(f"Genie was not run: --on {options.on}\n")

    def _add(
        self,
        messages: Iterable[str],
        rule: str = "llm-accuracy",
        fix: str = "",
        severity: Severity = Severity.ERROR,
    ) -> None:
        name = self.options.model.absolute().name
        self.findings += [Finding(rule, severity, name, message, fix) for message in messages]

    @property
    def _what(self) -> dict[str, str]:
        return {"model": self.order.model, "compiled": str(self.config.parent)}

    def _tokenizer_problems(self) -> list[str]:
        """Genie has a tokenizer of its own, and reads the chat template's special tokens by it."""
        folder, texts = self.config.parent, [self.text.sample]
        tokenizer, bos = load_tokenizer(folder), setting(self.config, "context", "bos-token")
        if prompts.has_template(folder):
            texts.append(prompts.chat_text(folder, texts[0][: prompts.PREFIX], ""))
            prompts.without_beginning(prompts.tokens_of(tokenizer, texts[-1]), bos)
        with commands.limited(self.config, 1) as copy:
            ours = [prompts.tokens_of(tokenizer, text) for text in texts]
            genies = self.options.emulated.genie_tokenizer(copy, texts, timeout=self.options.timeout)
        if ours == genies:
            return read_by_genie(Path(self.order.model), genies, texts, bos)
        return ["Genie's tokenizer tokenizes otherwise than the tokenizers library"]

    def _bounds(self, ask: Asker) -> verdicts.Bounds:
        """What rounding alone costs the checkpoint: as `compile` measured it, where the same tokens are read;
        or now, with the ranges that `compile` saw."""
        order, record, kept = self.order, self.record, self.record.rounded
        before = record.source
        now = float_of(Path(order.model), order.adapter, self.options.selection.store) if kept else before
        if changed := [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]:
            sys.stderr.write(
                f"{order.model}: changed since it was compiled: {', '.join(changed)}. What quantizing saw may"
                " be something else now: limits are those of the text that is read\n"
            )
            self.fix, kept = "compile it again, then check", None
        if kept and record.judged == self.text.digest:
            rounded = kept
        else:
            ranges = kept.ranges if kept else None
            asked = RoundingOrder(compiled=replace(order, calibrate=""), text=self.text, ranges=ranges)
            rounded = read(Rounded, ask(do="rounding", **as_json(asked)))
        bounds = verdicts.Bounds.of(order.precision, rounded, self.text.lengths, self.options.limits)
        self.row |= {"tie": bounds.tie, "rounding": verdicts.figures_row(bounds.rounding)}
        for name, figures in bounds.rounding.items():
            if self.by_genie or not verdicts.is_genies(name):
                words = verdicts.READER_NAMES.get(name, name)
                sys.stdout.write(f"rounding alone, {words}: {verdicts.in_words(figures)}\n")
        sys.stdout.write(f"a tie: float's logit of the choice is within {bounds.tie:.2g} of its best\n")
        return bounds

    def _figures(self, ask: Asker, bounds: verdicts.Bounds) -> dict[str, verdicts.Figures]:
        rows, cpu = self.text.rows, self.options.on == "cpu"
        tokens, windows = sum(len(row) - 1 for row in rows), plural(len(rows), "window")
        sys.stderr.write(f"reading {tokens} tokens in {windows}\n")
        rates: dict[str, float] = {}
        figures: dict[str, verdicts.Figures] = {}
        # The worker answers in a fork each time, so that the emulator's memory is free again.
        for kind, length in self.text.lengths.items():
            some = [row[:length] for row in rows]
            order = FiguresOrder(**self._what, kind=kind, rows=some, cpu=cpu)
            readings = read(Readings, ask(do="figures", **as_json(order)))
            rates |= readings.rates
            figures |= self._judge(readings, bounds)
        self.row["speed"] = verdicts.speed_of(rates)
        return figures

    def _judge(self, readings: Readings, bounds: verdicts.Bounds) -> dict[str, verdicts.Figures]:
        figures: dict[str, verdicts.Figures] = {
            name: verdicts.figures_of(windows, bounds.tie) for name, windows in readings.read.items()
        }
        for name, some in figures.items():
            limits = bounds.of_reader(name)
            self.row["comparisons"] += len(limits)
            sys.stdout.write(f"{verdicts.READER_NAMES[name]}: {verdicts.in_words(some, limits)}\n")
        self.row["figures"] |= verdicts.figures_row(figures)
        self.row["positions"] |= verdicts.positions_row(readings.read)
        self._add(verdicts.figure_problems(figures, bounds))
        return figures

    def _genie(self, ask: Asker, bounds: verdicts.Bounds) -> dict[str, verdicts.Figures]:
        """The logits that Genie itself chooses by, after many prefixes and to the end of a long text."""
        texts = self.text.texts
        sys.stderr.write(f"Genie reads {plural(len(texts), 'text')}\n")
        with commands.limited(self.config, prompts.CONTINUED) as copy:
            order = GenieOrder(**self._what, config=str(copy), texts=texts, timeout=self.options.timeout)
            return self._judge(read(Readings, ask(do="genie", **as_json(order))), bounds)

    def _parts(
        self, ask: Asker, figures: Mapping[str, verdicts.Figures], bounds: verdicts.Bounds
    ) -> list[verdicts.PartRow]:
        sys.stderr.write(f"each of {plural(self.order.parts, 'part')} by itself\n")
        orders = [PartsOrder(**self._what, kind=kind, row=self.text.few) for kind in KINDS]
        parts = [part for order in orders for part in read(Parts, ask(do="parts", **as_json(order))).parts]
        rows = verdicts.part_rows(parts, bounds)
        found, others = verdicts.culprit(rows, figures, bounds), self.findings
        if found:
            # What to look at, before what follows from it.
            self.findings = []
            self._add([found])
            self.findings += others
        if found or self.options.on == "parts":
            for row in rows:
                sys.stdout.write(f"{row.as_text()}\n")
        self.row["comparisons"] += 2 * len(rows)
        self.row["parts"] = [row.as_metric() for row in rows]
        return rows


def read_by_genie(checkpoint: Path, genies: Sequence[list[int]], texts: Sequence[str], bos: int) -> list[str]:
    """Where the whole of what Genie reads, with the token that it puts first, is not what transformers' own
    tokenizer gives by its defaults: for a text, and for a chat, whose template writes the first token."""
    if not tokenizer_decides(checkpoint):
        return []
    encode, problems = encoder_of(checkpoint), []
    for chat, (text, tokens) in enumerate(zip(texts, genies, strict=True)):
        seen = [*([] if bos == NONE else [bos]), *prompts.without_beginning(tokens, bos)]
        expected, _ = encode(text, not chat)
        if seen != expected:
            place = next(at for at, pair in enumerate(zip_longest(seen, expected)) if pair[0] != pair[1])
            here = slice(max(0, place - 1), place + 3)
            problems.append(
                f"of a {'chat' if chat else 'text'} Genie reads {seen[here]} from place {here.start}, and"
                f" transformers' tokenizer gives {expected[here]}"
            )
    return problems
