"""`check`: the verdicts on a compiled checkpoint. Workers measure; this asks them."""

from __future__ import annotations

import filecmp
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from ci.lanes.llm import commands, prompts, verdicts
from ci.lanes.llm.architecture import Architecture, read_architecture
from ci.lanes.llm.beginning import encoder_of, load_tokenizer, tokenizer_decides
from ci.lanes.llm.genie import NONE, contradictions, setting
from ci.lanes.llm.orders import (
    GENIE,
    KINDS,
    CompileOrder,
    JudgedText,
    MeasuredProgram,
    MeasureOrder,
    PartDistances,
    Parts,
    Readings,
    Record,
    record_of,
)
from ci.lanes.llm.weights import require_adapter
from ci.lanes.llm.work import changed_files, source_of
from ci.plain import as_json, read
from ci.suite.findings import verdict
from provisioning.base.commands import leave_out, session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.rendering import plural
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
        prepared(options).all(stage)
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
    order = replace(record.order, model=str(folder), into=str(config.parent))
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
        f"windows end at position {length} of {context}: --tokens {count * (context - 1)}{longer}"
        " reads them to the end"
    )


@dataclass(frozen=True)
class Check:
    """A compiled checkpoint, and the text by which it is judged."""

    options: CheckOptions
    config: Path
    record: Record
    order: CompileOrder
    """By which it was compiled, of the checkpoint where that is now."""
    shape: Architecture
    text: JudgedText

    @property
    def by_genie(self) -> bool:
        return self.order.through == GENIE and self.options.on == "both"

    def all(self, stage: StageRun) -> None:
        options, order, name = self.options, self.order, self.options.model.absolute().name

        def add(rule: str, messages: Iterable[str], fix: str, severity: Severity = Severity.ERROR) -> None:
            stage.findings += [Finding(rule, severity, name, message, fix) for message in messages]

        if self.by_genie:
            add("llm-text", self._tokenizer_problems(), "report it with the checkpoint's tokenizer.json")
        source = source_of(order, options.selection.store)
        names = sorted({*source, *self.record.source})
        changed = [file for file in names if source.get(file) != self.record.source.get(file)]
        if changed:
            sys.stderr.write(f"{order.model}: changed since it was compiled: {', '.join(changed)}\n")
        judgement = verdicts.Judgement.of(order.precision, self._measured(), options.limits)
        add("llm-accuracy", judgement.problems, "compile it again, then check" if changed else judgement.fix)
        if warning := judgement.bounds.warning:
            fix = "take a higher precision; calibrating by other text helps where activations are cut off"
            add("llm-rounding", [warning], fix, Severity.WARNING)
        for line in judgement.lines(parts=options.on == "parts"):
            sys.stdout.write(f"{line}\n")
        if order.through == GENIE and options.on != "both":
            sys.stdout.write(f"Genie was not run: --on {options.on}\n")
        row: dict[str, Metric] = {
            "verdict": verdict(stage.findings),
            "soc": order.soc,
            "context": order.context,
            "through": order.through,
            "precision": order.precision,
            "peak": self.record.peak,
            "cpu_seconds": self.record.cpu_seconds,
        }
        stage.metrics["programs"] = {name: {**row, **judgement.row}}

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

    def _measured(self) -> MeasuredProgram:
        options, order, text = self.options, self.order, self.text
        timeout, logs = options.timeout, options.selection.reports.absolute() / "llm"
        sys.stderr.write("what rounding alone costs, by float\n")
        rounded = options.emulated.rounding(order, text, options.selection, timeout)
        measure = MeasureOrder(compiled=order, text=text, cpu=options.on == "cpu", timeout=timeout)
        of_kinds = [replace(measure, kind=kind) for kind in KINDS]
        readings, parts = list[Readings](), list[PartDistances]()
        with options.emulated.worker(order.through, options.selection, logs, timeout) as ask:
            # The worker answers in a fork each time, so that the emulator's memory is free again.
            if options.on != "parts":
                windows = plural(len(text.rows), "window")
                tokens = sum(len(row) - 1 for row in text.rows)
                sys.stderr.write(f"reading {tokens} tokens in {windows}\n")
                readings += [read(Readings, ask(do="figures", **as_json(kind))) for kind in of_kinds]
            if self.by_genie:
                sys.stderr.write(f"Genie reads {plural(len(text.texts), 'text')}\n")
                with commands.limited(self.config, prompts.CONTINUED) as copy:
                    by_genie = replace(measure, config=str(copy))
                    readings.append(read(Readings, ask(do="genie", **as_json(by_genie))))
            if options.on != "cpu":
                sys.stderr.write(f"each of {plural(order.parts, 'part')} by itself\n")
                for kind in of_kinds:
                    parts += read(Parts, ask(do="parts", **as_json(kind))).parts
        return MeasuredProgram(self.record.size, Readings.of(readings), rounded, parts, text.lengths)


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
                f"of a {'chat' if chat else 'text'} Genie reads {seen[here]} from position {here.start}, and"
                f" transformers' tokenizer gives {expected[here]}"
            )
    return problems
