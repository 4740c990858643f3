"""`check`: the verdicts on a compiled checkpoint. Workers measure; this asks them."""

from __future__ import annotations

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
from ci.lanes.llm.architecture import Architecture, read_architecture
from ci.lanes.llm.beginning import encoder_of, load_tokenizer, tokenizer_decides
from ci.lanes.llm.genie import (
    KINDS,
    NONE,
    PROGRAM,
    RECORD,
    ROUNDING,
    ForcedText,
    contradictions,
    setting,
    through,
)
from ci.lanes.llm.work import float_of
from ci.pipeline.findings import verdict
from ci.pipeline.precision import written_name
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
TEXTS, SAID = 3, 24
"""Texts for the page, and tokens of each, at most: fewer where decode is judged by few."""


@dataclass(frozen=True, slots=True)
class JudgedText:
    """What of a text `check` reads: known before any worker starts. `compile` measures by the same tokens
    of our own text what rounding costs."""

    text: Path
    words: str
    count: int
    """Of its tokens."""
    windows: int
    length: int
    """Of each window, in tokens."""
    few: int
    """The length of the one window that parts are judged by."""
    prefixes: Sequence[ForcedText]
    """With what follows each in the text."""
    to_the_end: ForcedText

    @property
    def texts(self) -> list[dict[str, Any]]:
        """Those that Genie is made to say, for workers."""
        every = (*self.prefixes, self.to_the_end)
        return [{"prompt": list(text.prompt), "tokens": list(text.tokens)} for text in every]

    def short_of(self, context: int, beginning: int) -> str:
        """What reads the whole context in all windows, where they end before it; so many tokens begin one."""
        if self.length >= context:
            return ""
        needed = WINDOWS * (context - beginning)
        longer = f" --text FILE, of {needed} tokens or more," if self.count < needed else ""
        return (
            f"windows end at place {self.length} of {context}: --tokens {WINDOWS * (context - 1)}{longer}"
            " reads them to the end"
        )

    @property
    def order(self) -> dict[str, Any]:
        windows = {"text": str(self.text.absolute()), "windows": self.windows, "length": self.length}
        return {**windows, "few": {"windows": 1, "length": self.few}}


def judged_text(
    folder: Path,
    tokenizer: Any,
    shape: Architecture,
    text: Path,
    sizes: Mapping[str, Any],
    *,
    tokens: int,
    prefixes: int,
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
    wanted = max(for_prefixes, count * own)
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
    few = min(context, max(MIN_TOKENS, sizes["prefill"] + 1))
    return JudgedText(
        text, words, len(stream), count, length, few, chats, ForcedText(long[:prompt], long[prompt:])
    )


def digest_of(rows: Sequence[Sequence[int]], texts: Sequence[Mapping[str, Any]]) -> str:
    """Of all the tokens that are judged."""
    return hashlib.sha256(json.dumps([rows, texts]).encode()).hexdigest()


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
    where: bool
    limits: Mapping[str, float | None]
    """By figure; None for the precision's own."""
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
    if not record:
        raise UsageError(f"{options.model}: there is no {RECORD}", fix="compile it again")
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
    tokenizer = load_tokenizer(config.parent)
    if tokenizer.to_str() != load_tokenizer(folder).to_str():
        raise CheckFailed(
            f"{config.with_name('tokenizer.json')} is not that of {folder}",
            fix="copy it from there, or compile again",
        )
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
        whole="prefill" in reads,
        calibrated_by=record["calibrated by"],
    )
    if hint := read.short_of(record["context"], len(shape.beginning)):
        sys.stderr.write(f"{hint}\n")
    return Check(options, config, record, folder, shape, tokenizer, read)


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
            **self.read.order,
            **{name: record[name] for name in ("precision", "parts", "prefill")},
            "model": str(self.folder),
            "adapter": record.get("adapter", ""),
            "compiled": str(self.config.parent),
            "through": through(record),
            "cpu": self.options.on == "cpu",
            "decode_tokens": self.options.decode_tokens or self.options.tokens,
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
            self.order["tie"] = self.row["tie"] = bounds.tie
            if options.on != "parts":
                self._figures(ask, bounds)
                self._texts(ask)
            if self.by_genie:
                self._genie(ask, bounds)
            if options.on != "cpu":
                self._parts(ask, bounds)
        if self.findings:
            parts, figures = self.row.get("parts", ()), self.row.get("figures", {})
            fix = self.fix or verdicts.FIXES[verdicts.cause_of(parts, figures, bounds)]
            self.findings = [replace(finding, fix=finding.fix or fix) for finding in self.findings]
        sys.stdout.write(f"{self.row['comparisons']} comparisons with a limit\n")
        if self.genie and options.on != "both":
            sys.stdout.write(f"Genie was not run: --on {options.on}\n")

    def _add(self, messages: Iterable[str], rule: str = "llm-accuracy", fix: str = "") -> None:
        name = self.options.model.absolute().name
        self.findings += [Finding(rule, Severity.ERROR, name, message, fix) for message in messages]

    def _of_each_kind(self, ask: Asker, order: Mapping[str, Any], do: str) -> list[dict[str, Any]]:
        """The worker answers in a fork each time, so that the emulator's memory is free again."""
        # Decode of a large model takes seconds for each token.
        most = max(1, order["decode_tokens"] // order["windows"]) + 1
        lengths = {"prefill": order["length"], "decode": min(order["length"], most)}
        return [ask(**{**order, "do": do, "kind": kind, "length": lengths[kind]}) for kind in KINDS]

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
        if kept and kept["judged"] == digest_of(
            prompts.windows_of(self.folder, self.shape, self.order), texts
        ):
            rounding = kept
        else:
            rounding = ask(**{**self.order, "do": "rounding", "texts": texts, "ranges": kept.get("ranges")})
        given = {name: value for name, value in self.options.limits.items() if value is not None}
        bounds = verdicts.Bounds.of(rounding, self.record["precision"], given)
        for reader, figures in bounds.rounding.items():
            if not verdicts.is_genies(reader):
                sys.stdout.write(f"rounding alone: {verdicts.in_words(figures)}\n")
            elif self.by_genie:
                sys.stdout.write(
                    f"rounding alone, {verdicts.READER_NAMES[reader]}: {verdicts.in_words(figures)}\n"
                )
        sys.stdout.write(f"top-1 agrees where float's logit of it is within {bounds.tie:.2g} of its best\n")
        return bounds

    def _figures(self, ask: Asker, bounds: verdicts.Bounds) -> None:
        order = self.order
        count = order["windows"] * (order["length"] - 1)
        sys.stderr.write(f"reading {count} tokens in {plural(order['windows'], 'window')}\n")
        facts = self.row["figures"] = {"positions": {}}
        rates: dict[str, float] = {}
        for reply in self._of_each_kind(ask, order, "figures"):
            positions = facts["positions"] | reply["positions"]
            rates |= reply["rates"]
            facts |= {**reply, "positions": positions}
        readers = {"tokens_per_second": "decode_htp", "read_per_second": "prefill_htp"}
        self.row["speed"] = {name: rates[reader] for name, reader in readers.items() if reader in rates}
        self._judge(facts, bounds)

    def _judge(self, facts: Mapping[str, Any], bounds: verdicts.Bounds) -> None:
        for name, words in verdicts.READER_NAMES.items():
            if name in facts:
                self.row["comparisons"] += len(bounds.of_reader(name))
                sys.stdout.write(f"{words}: {verdicts.in_words(verdicts.figures_from(facts[name]))}\n")
        self._add(verdicts.figure_problems(facts, bounds))

    def _texts(self, ask: Asker) -> None:
        """What is said beside float, for who reads the page; figures judge it. No more are read than decode
        is judged by, which reads prompts, too, where the emulator does not load both kinds of binaries."""
        most = max(1, min(SAID, self.order["decode_tokens"] // 4))
        shortest = sorted((list(text.prompt) for text in self.read.prefixes[:TEXTS]), key=len)
        read = itertools.accumulate(len(prompt) + most for prompt in shortest)
        few = [
            prompt
            for prompt, total in zip(shortest, read, strict=True)
            if total <= self.order["decode_tokens"]
        ]
        request = {**self.order, "prompts": few or shortest[:1], "most": most}
        emulated = self.options.on == "both"
        who = ["cpu"] if self.record["precision"] != "fp16" else []
        who += ["htp"] if emulated and self.config.name == PROGRAM else []
        answers = {name: ask(**request, do="answers", who=name)["answers"] for name in who}
        if self.by_genie:
            with commands.limited(self.config, most) as copy:
                texts = self.options.emulated.genie(copy, request["prompts"], timeout=self.options.timeout)
            answers["htp"] = [{"tokens": list(text.tokens), "stopped": text.stopped} for text in texts]
        rows = ask(**request, do="beside float", answers=answers)["texts"]
        for prompt, row in zip(request["prompts"], rows, strict=True):
            row["prompt"] = self.tokenizer.decode(prompt, skip_special_tokens=False)
            for said in row["said"].values():
                said["text"] = prompts.words_after(self.tokenizer, prompt, said.pop("tokens"), special=True)
        self.row["texts"] = rows

    def _genie(self, ask: Asker, bounds: verdicts.Bounds) -> None:
        """The shipped sampler's choices after each of many prefixes, and the logits that Genie itself chooses
        by, beside float's."""
        sys.stderr.write(f"Genie reads {plural(len(self.read.texts), 'text')}\n")
        with commands.limited(self.config, prompts.CONTINUED) as copy:
            order = {**self.order, "config": str(copy)}
            reply = ask(**order, do="genie choices", texts=self.read.texts[:-1])
            facts = ask(**order, do="genie figures", texts=self.read.texts)
        chosen = {kind: reply[kind] for kind in KINDS}
        for kind, row in chosen.items():
            sys.stdout.write(
                f"Genie's {kind}: top-1 agreement {row['first_choice']:.1%} of {row['tokens']} tokens;"
                f" mean regret {row['regret']:.4f} logits, at most {row['worst_regret']:.3f}\n"
            )
        self.row["comparisons"] += len(chosen)
        self._add(verdicts.choice_problems(chosen, bounds))
        if not set(facts) & set(verdicts.READER_NAMES):
            sys.stdout.write("libGenie.so of this build gives no logits: choices alone are judged\n")
        self.row["figures"] |= facts
        self._judge(facts, bounds)

    def _parts(self, ask: Asker, bounds: verdicts.Bounds) -> None:
        sys.stderr.write(f"each of {plural(self.record['parts'], 'part')} by itself\n")
        few = {**self.order, **self.order["few"]}
        replies = self._of_each_kind(ask, few, "parts")
        rows = verdicts.part_rows([part for reply in replies for part in reply["parts"]], bounds)
        inaccurate = any(finding.rule == "llm-accuracy" for finding in self.findings)
        found, others = verdicts.culprit(rows, inaccurate=inaccurate), self.findings
        self.findings = []
        # What to look at, before what follows from it.
        self._add([found] * bool(found))
        self.findings += others
        if found or self.options.where or self.options.on == "parts":
            for row in rows:
                beside = f", {in_decibels(row['cpu_db'])} on the CPU" if "cpu_db" in row else ""
                sys.stdout.write(
                    f"{row['name']}: {row['output']} {in_decibels(row['db'])} from float, most places"
                    f" {in_decibels(row['typical_db'])}{beside}\n"
                )
        self.row["comparisons"] += 2 * len(rows)
        self.row["parts"] = rows


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
