"""`check`: the verdicts on a compiled checkpoint. Workers measure; this asks them."""

from __future__ import annotations

import filecmp
import hashlib
import itertools
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ci.lanes.llm import commands, prompts, verdicts
from ci.lanes.llm.adapters import require_adapter
from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.beginning import encoder_of, load_tokenizer, tokenizer_decides
from ci.lanes.llm.config import read_architecture
from ci.lanes.llm.genie import (
    KINDS,
    NONE,
    RECORD,
    ROUNDING,
    ForcedText,
    contradictions,
    setting,
    through,
)
from ci.lanes.llm.work import changed_files, float_of
from ci.suite.findings import verdict
from ci.suite.precision import written_name
from ci.work import Asker
from provisioning.base.commands import leave_out, session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Finding, Severity
from provisioning.base.rendering.text import plural
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.base.units import in_decibels
from provisioning.manifest import soc_named

MAX_OVERLAP = 0.05
"""At most this share of the text may be known from quantizing."""
WINDOWS = 4
"""At least so many, because figures' errors come from windows."""
MIN_TOKENS = 256
"""Tokens to find the part by."""
TOKENIZER_CHARS = 4000


@dataclass(frozen=True, slots=True)
class JudgedText:
    """What of a text `check` reads: known before any worker starts. `compile` measures by the same tokens
    of our own text what rounding costs."""

    words: str
    count: int
    """Of its tokens."""
    rows: Sequence[Sequence[int]]
    """Windows of one length."""
    decode: int
    """How many places of each decode reads: of a large model it takes seconds for each."""
    few: Sequence[int]
    """What parts are judged by."""
    prefixes: Sequence[ForcedText]
    """With what follows each in the text."""
    to_the_end: ForcedText

    @property
    def lengths(self) -> dict[str, int]:
        """Of each window, by the kind of graph that reads it."""
        return dict(zip(KINDS, (len(self.rows[0]), self.decode), strict=True))

    @property
    def texts(self) -> list[dict[str, Any]]:
        """Those that Genie is made to say, for workers."""
        every = (*self.prefixes, self.to_the_end)
        return [{"prompt": list(text.prompt), "tokens": list(text.tokens)} for text in every]

    def short_of(self, context: int, beginning: int) -> str:
        """What reads the whole context in all windows, where they end before it; so many tokens begin one."""
        length = len(self.rows[0])
        if length >= context:
            return ""
        needed = WINDOWS * (context - beginning)
        longer = f" --text FILE, of {needed} tokens or more," if self.count < needed else ""
        return (
            f"windows end at place {length} of {context}: --tokens {WINDOWS * (context - 1)}{longer}"
            " reads them to the end"
        )

    def digest(self, *, genie: bool) -> str:
        """Of all the tokens that are judged."""
        every = [self.rows, self.texts if genie else []]
        return hashlib.sha256(json.dumps(every).encode()).hexdigest()


def judged_text(
    folder: Path,
    tokenizer: Any,
    shape: Architecture,
    text: Path,
    sizes: Mapping[str, Any],
    *,
    tokens: int,
    prefixes: int,
    decode_tokens: int | None = None,
    whole: bool = True,
    calibrated_by: Collection[str] = (),
) -> JudgedText:
    """`sizes` are the context and how many tokens prefill reads. Unless `whole`, Genie's text ends where the
    windows do: where decode reads the prompt, too, all of the context would take too long."""
    context, words = sizes["context"], prompts.read_corpus(text)
    stream = prompts.tokens_of(tokenizer, words)
    length = min(context, max(2, tokens // WINDOWS + 1))
    count = -(-tokens // (length - 1))
    lengths = prompts.prefix_lengths(prefixes, sizes["prefill"], context)
    own = length - len(shape.beginning)
    for_prefixes = max(lengths) + (len(lengths) - 1) * prompts.PREFIX + prompts.CONTINUED
    few = min(context, max(MIN_TOKENS, sizes["prefill"] + 1))
    wanted = max(for_prefixes, count * own, few - len(shape.beginning))
    if len(stream) < wanted:
        raise UsageError(
            f"{text} has {len(stream)} tokens: {prefixes} prefixes and {count} windows of {own} need"
            f" {wanted}",
            fix=f"name a text of {wanted} tokens, --text FILE, or give fewer --tokens and --prefixes",
        )
    if (seen := prompts.share_of_runs(stream[:wanted], calibrated_by)) > MAX_OVERLAP:
        raise UsageError(
            f"{seen:.0%} of what would be read of {text} is in the text that it was quantized by, too",
            fix="give another text",
        )
    most = context - sizes["prefill"]
    chats = prompts.with_chats(prompts.prefixes_of(stream, lengths), folder, tokenizer, shape, most)
    said = max(own, prompts.PREFIX + prompts.CONTINUED)
    end = context - len(shape.beginning) if whole else said
    # A shorter text is read again: the places are what counts.
    long = list(itertools.islice(itertools.cycle(stream), end))
    prompt = max(prompts.PREFIX, min(end - said + prompts.PREFIX, most))
    decode = min(length, max(1, (decode_tokens or tokens) // count) + 1)
    end_text = ForcedText(long[:prompt], long[prompt:])
    rows, [row] = (prompts.windows(folder, shape, text, *window) for window in ((length, count), (few, 1)))
    return JudgedText(words, len(stream), rows, decode, row, chats, end_text)


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
    record = commands.record_of(config)
    if not isinstance(record.get("files"), dict):
        raise UsageError(f"{options.model}: there is no {RECORD} of this release", fix="compile it again")
    genie = through(record) == "genie"
    folder = (options.checkpoint or Path(record["checkpoint"])).absolute()
    if not folder.is_dir():
        raise UsageError(
            f"{folder}, from which {options.model} was compiled, is not there",
            fix="name where the checkpoint is now: --checkpoint FOLDER",
        )
    shape = read_architecture(folder, record.get("adapter", ""))
    if shape.adapter:
        require_adapter(shape.adapter, shape.tensors)
    if genie and (wrong := contradictions(config, shape, soc_named(record["soc"]), record["context"])):
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
    tokenizer = load_tokenizer(config.parent)
    if options.on == "cpu" and record["precision"] == "fp16":
        raise UsageError("fp16 is computed by HTP alone", fix=leave_out("--on"))
    reads = [*KINDS]
    if genie and options.on == "both":
        sizes = commands.sizes_of(config)
        commands.require_loadable(sizes, *KINDS)
        reads = commands.kinds_for_genie(sizes)
    read = judged_text(
        folder,
        tokenizer,
        shape,
        options.text,
        record,
        tokens=options.tokens,
        prefixes=options.prefixes,
        decode_tokens=options.decode_tokens,
        whole="prefill" in reads,
        calibrated_by=record["calibrated by"],
    )
    if hint := read.short_of(record["context"], len(shape.beginning)):
        sys.stderr.write(f"{hint}\n")
    return Check(options, config, record, folder, shape, tokenizer, read)


def _same_file(one: Path, other: Path) -> bool:
    if one.is_file() and other.is_file():
        return filecmp.cmp(one, other, shallow=False)
    return one.is_file() == other.is_file()


@dataclass
class Check:
    """A compiled checkpoint, what is asked of its worker, and what is found."""

    options: CheckOptions
    config: Path
    record: Mapping[str, Any]
    folder: Path
    shape: Architecture
    tokenizer: Any
    read: JudgedText
    row: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    fix: str = ""
    """Where it is known before anything is measured."""

    def __post_init__(self) -> None:
        record = self.record
        self.genie = through(record) == "genie"
        self.by_genie = self.genie and self.options.on == "both"
        self.order: dict[str, Any] = {
            "few": self.read.few,
            **{name: record[name] for name in ("precision", "parts", "prefill")},
            "model": str(self.folder),
            "adapter": record.get("adapter", ""),
            "compiled": str(self.config.parent),
            "through": through(record),
            "cpu": self.options.on == "cpu",
        }
        kept = ("soc", "context", "bytes", "cpu_seconds", "peak")
        self.row |= {key: record[key] for key in kept if key in record}
        self.row |= {
            "comparisons": 0,
            "through": through(record),
            "precision": written_name(record["precision"]),
        }

    def all(self) -> None:
        options, logs = self.options, self.options.selection.reports.absolute() / "llm"
        with options.emulated.worker(self.record, options.selection, logs, options.timeout) as ask:
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
        if warning := verdicts.rounding_warning(bounds):
            fix = "take a higher precision; calibrating by other text helps where activations are cut off"
            self._add([warning], "llm-rounding", fix, Severity.WARNING)
        sys.stdout.write(f"{self.row['comparisons']} comparisons with a limit\n")
        if self.genie and options.on != "both":
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

    def _tokenizer_problems(self) -> list[str]:
        """Genie has a tokenizer of its own, and reads the chat template's special tokens by it."""
        config, texts = self.config, [self.read.words[:TOKENIZER_CHARS]]
        bos = setting(config, "context", "bos-token")
        if prompts.has_template(config.parent):
            texts.append(prompts.chat_text(config.parent, texts[0][: prompts.PREFIX], ""))
            prompts.without_beginning(prompts.tokens_of(self.tokenizer, texts[-1]), bos)
        with commands.limited(config, 1) as copy:
            ours = [prompts.tokens_of(self.tokenizer, text) for text in texts]
            genies = self.options.emulated.genie_tokenizer(copy, texts, timeout=self.options.timeout)
        if ours == genies:
            return read_by_genie(self.folder, genies, texts, bos)
        return ["Genie's tokenizer tokenizes otherwise than the tokenizers library"]

    def _bounds(self, ask: Asker) -> verdicts.Bounds:
        """What rounding alone costs the checkpoint: as `compile` measured it, where the same tokens are read;
        or now, with the ranges that `compile` saw."""
        kept: Mapping[str, Any] = self.record.get(ROUNDING, {})
        texts = self.read.texts if self.genie else []
        before = self.record.get("float", {})
        now = float_of(self.folder, self.order["adapter"], self.options.selection.store) if kept else before
        if changed := [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]:
            sys.stderr.write(
                f"{self.folder}: changed since it was compiled: {', '.join(changed)}. What quantizing saw may"
                " be something else now: limits are those of the text that is read\n"
            )
            self.fix, kept = "compile it again, then check", {}
        if kept and kept["judged"] == self.read.digest(genie=self.genie):
            rounding = kept
        else:
            order = {**self.order, "do": "rounding", "rows": self.read.rows}
            rounding = ask(**order, texts=texts, ranges=kept.get("ranges"))
        read = {name: verdicts.windows_from(rows) for name, rows in rounding["read"].items()}
        for kind, length in self.read.lengths.items():
            read[kind] = [window.first(length - 1) for window in read["windows"]]
        del read["windows"]
        precision = self.record["precision"]
        self.tie = self.row["tie"] = verdicts.width_of_tie(rounding["tie"], precision)
        costs = {name: verdicts.figures_of(windows, self.tie) for name, windows in read.items()}
        self.row["rounding"] = {name: verdicts.figures_as_json(cost) for name, cost in costs.items()}
        for name, figures in costs.items():
            if self.by_genie or not verdicts.is_genies(name):
                words = verdicts.READER_NAMES.get(name, name)
                sys.stdout.write(f"rounding alone, {words}: {verdicts.in_words(figures)}\n")
        sys.stdout.write(f"a tie: float's logit of the choice is within {self.tie:.2g} of its best\n")
        return verdicts.Bounds(precision, costs, rounding["parts"], self.options.limits)

    def _figures(self, ask: Asker, bounds: verdicts.Bounds) -> dict[str, verdicts.Figures]:
        order, read = self.order, self.read
        tokens, windows = sum(len(row) - 1 for row in read.rows), plural(len(read.rows), "window")
        sys.stderr.write(f"reading {tokens} tokens in {windows}\n")
        self.row["figures"] = {"positions": {}}
        rates: dict[str, float] = {}
        figures: dict[str, verdicts.Figures] = {}
        # The worker answers in a fork each time, so that the emulator's memory is free again.
        for kind, first in read.lengths.items():
            reply = ask(**order, do="figures", kind=kind, rows=[row[:first] for row in read.rows])
            rates |= reply["rates"]
            figures |= self._judge(reply["read"], bounds)
            for name, rows in reply["read"].items():
                self.row["figures"]["positions"][name] = verdicts.along(verdicts.windows_from(rows))
        readers = {"tokens_per_second": "decode_htp", "read_per_second": "prefill_htp"}
        self.row["speed"] = {name: rates[reader] for name, reader in readers.items() if reader in rates}
        return figures

    def _judge(
        self, read: Mapping[str, Sequence[Mapping[str, Any]]], bounds: verdicts.Bounds
    ) -> dict[str, verdicts.Figures]:
        figures: dict[str, verdicts.Figures] = {}
        for name, rows in read.items():
            figures[name] = verdicts.figures_of(verdicts.windows_from(rows), self.tie)
            limits = bounds.of_reader(name)
            self.row["comparisons"] += len(limits)
            self.row["figures"][name] = verdicts.figures_as_json(figures[name])
            sys.stdout.write(f"{verdicts.READER_NAMES[name]}: {verdicts.in_words(figures[name], limits)}\n")
        self._add(verdicts.figure_problems(figures, bounds))
        return figures

    def _genie(self, ask: Asker, bounds: verdicts.Bounds) -> dict[str, verdicts.Figures]:
        """The logits that Genie itself chooses by, after many prefixes and to the end of a long text."""
        sys.stderr.write(f"Genie reads {plural(len(self.read.texts), 'text')}\n")
        with commands.limited(self.config, prompts.CONTINUED) as copy:
            order = {**self.order, "config": str(copy), "texts": self.read.texts}
            reply = ask(**order, do="genie figures", timeout=self.options.timeout)
        return self._judge(reply["read"], bounds)

    def _parts(
        self, ask: Asker, figures: Mapping[str, verdicts.Figures], bounds: verdicts.Bounds
    ) -> list[dict[str, Any]]:
        sys.stderr.write(f"each of {plural(self.record['parts'], 'part')} by itself\n")
        parts = [part for kind in KINDS for part in ask(**self.order, do="parts", kind=kind)["parts"]]
        rows = verdicts.part_rows(parts, bounds)
        found, others = verdicts.culprit(rows, figures, bounds), self.findings
        self.findings = []
        if found:
            # What to look at, before what follows from it.
            self._add([found])
        self.findings += others
        if found or self.options.on == "parts":
            for row in rows:
                beside = f", {in_decibels(row['cpu_db'])} on the CPU" if "cpu_db" in row else ""
                sys.stdout.write(
                    f"{row['name']}: {row['output']} {in_decibels(row['db'])} from float, most places"
                    f" {in_decibels(row['typical_db'])}{beside}\n"
                )
        self.row["comparisons"] += 2 * len(rows)
        self.row["parts"] = rows
        return rows


def read_by_genie(checkpoint: Path, genies: Sequence[list[int]], texts: Sequence[str], bos: int) -> list[str]:
    """Where the whole of what Genie reads, with the token that it puts first, is not what transformers' own
    tokenizer gives by its defaults: for a text, and for a chat, whose template writes the first token."""
    if not tokenizer_decides(checkpoint):
        return []
    encode, problems = encoder_of(checkpoint), []
    for chat, (text, tokens) in enumerate(zip(texts, genies, strict=True)):
        read = [*([] if bos == NONE else [bos]), *prompts.without_beginning(tokens, bos)]
        expected, _ = encode(text, not chat)
        if read != expected:
            place = next(at for at, pair in enumerate(zip_longest(read, expected)) if pair[0] != pair[1])
            here = slice(max(0, place - 1), place + 3)
            problems.append(
                f"of a {'chat' if chat else 'text'} Genie reads {read[here]} from place {here.start}, and"
                f" transformers' tokenizer gives {expected[here]}"
            )
    return problems
