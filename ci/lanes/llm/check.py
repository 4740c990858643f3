"""`llm check`: the verdicts on a compiled checkpoint. Workers compute; this asks them and judges."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ci.lanes.llm.adapters import require_adapter
from ci.lanes.llm.architecture import read_architecture
from ci.lanes.llm.beginning import tokenizer_decides, transformers_tokenizer
from ci.lanes.llm.commands import (
    LOG,
    config_of,
    kinds_for_genie,
    limited,
    record_of,
    require_loadable,
    sizes_of,
)
from ci.lanes.llm.findings import READER_NAMES, figures_from
from ci.lanes.llm.genie import KINDS, NONE, RECORD, ForcedText, contradictions, encoded, setting
from ci.lanes.llm.judge import (
    EXCUSED,
    HIGHER_IS_BETTER,
    OF_WINDOWS,
    STANDARD_ERRORS,
    Figure,
    choice_misses,
    close,
    misses,
)
from ci.lanes.llm.prompts import (
    CONTINUED,
    PREFIX,
    chat_text,
    has_template,
    load_tokenizer,
    prefix_lengths,
    prefixes_of,
    read_text,
    share_of_runs,
    to_the_end,
    tokens_for,
    tokens_of,
    with_chats,
    without_beginning,
)
from ci.lanes.llm.suite import FOUR_BITS
from ci.lanes.llm.work import setup_of
from ci.pipeline.steps import Asker, asking
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.rendering.text import plural
from provisioning.base.units import in_decibels, seconds
from provisioning.manifest import soc_named

LIMITS: Mapping[str, Mapping[str, float]] = {
    "fp16": {
        "first_choice": 0.98,
        "perplexity_ratio": 1.005,
        "divergence": 0.0001,
        "divergence_99": 0.001,
        "regret": 0.005,
    },
    "u16u8": {
        "first_choice": 0.9,
        "perplexity_ratio": 1.05,
        "divergence": 0.05,
        "divergence_99": 0.5,
        "regret": 0.1,
    },
    FOUR_BITS: {
        "first_choice": 0.75,
        "perplexity_ratio": 1.2,
        "divergence": 0.15,
        "divergence_99": 1.5,
        "regret": 0.2,
    },
}
"""By precision, where the command line names no other."""
MAX_OVERLAP = 0.05
"""At most this share of the text may be known from quantizing."""
TOKENIZER_CHARS = 4000
WINDOWS = 4
"""At least so many, because figures' errors come from windows."""
MIN_TOKENS = 256
"""Tokens to find the part by."""
FP16_LEAST_DB, QUANTIZED_LEAST_DB, QUANTIZED_LOSS_DB = 30.0, 10.0, 6.0
"""A part is wrong below the least of its precision, and a quantized one also if it is this much worse than on
the CPU. Right quantized parts were seen at 21 to 35 dB."""
READ_OTHERWISE = (
    "each part computes what it was compiled from, so the checkpoint is read otherwise than transformers"
    " reads it, or has changed"
)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """`llm check`."""

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


def check_model(options: CheckOptions) -> int:
    config = config_of(options.model)
    record = record_of(config)
    if not record:
        raise UsageError(f"{options.model}: there is no {RECORD}", fix="compile it again")
    folder = (options.checkpoint or Path(record["checkpoint"])).absolute()
    if not folder.is_dir():
        raise UsageError(
            f"{folder}, from which {options.model} was compiled, is not there",
            fix="name where the checkpoint is now: --checkpoint FOLDER",
        )
    shape = read_architecture(folder, record.get("adapter", ""))
    if shape.adapter:
        require_adapter(shape.adapter, shape.tensors)
    if wrong := contradictions(config, shape, soc_named(record["soc"]), record["context"]):
        raise CheckFailed(
            f"{config} contradicts {folder}: {'; '.join(wrong)}", fix="correct it, or compile again"
        )
    if not options.text.is_file():
        raise UsageError(f"--text {options.text}: there is no such file", fix="name a text file")
    text = read_text(options.text)
    tokenizer = load_tokenizer(config.parent)
    if tokenizer.to_str() != load_tokenizer(folder).to_str():
        raise CheckFailed(
            f"{config.with_name('tokenizer.json')} is not that of {folder}",
            fix="copy it from there, or compile again",
        )
    tokens = tokens_of(tokenizer, text)
    length = min(record["context"], max(2, options.tokens // WINDOWS + 1))
    windows = -(-options.tokens // (length - 1))
    if length < record["context"]:
        farther = WINDOWS * (record["context"] - 1)
        sys.stderr.write(
            f"judged to place {length} of {record['context']}; --tokens {farther} reads to the end\n"
        )
    lengths = prefix_lengths(options.prefixes, record["prefill"], record["context"])
    own = length - len(shape.beginning)
    wanted = max(tokens_for(lengths), windows * own, PREFIX + CONTINUED)
    if len(tokens) < wanted:
        raise UsageError(
            f"{options.text} has {len(tokens)} tokens: {options.prefixes} prefixes and {windows} windows of"
            f" {own} need {wanted}",
            fix="give a longer text, or fewer --tokens and --prefixes",
        )
    if (seen := share_of_runs(tokens[:wanted], record["calibrated by"])) > MAX_OVERLAP:
        raise UsageError(
            f"{seen:.0%} of what would be read of {options.text} is in the text that it was quantized by,"
            " too",
            fix="give another text",
        )
    enough = max(MIN_TOKENS, record["prefill"] + 1)
    order = {
        "model": str(folder),
        "compiled": str(config.parent),
        "text": str(options.text.absolute()),
        "windows": windows,
        "length": length,
        "precision": record["precision"],
        "cpu": options.on == "cpu",
        "decode_tokens": options.decode_tokens or options.tokens,
        "few": {"windows": 1, "length": min(record["context"], enough)},
    }
    if options.on == "cpu" and record["precision"] == "fp16":
        raise UsageError("fp16 is computed by HTP alone", fix="leave out --on cpu")
    genie: dict[str, int] = {}
    if options.on == "both":
        sizes = sizes_of(config)
        require_loadable(sizes, *KINDS)
        # Prefill reads whole blocks, decode single tokens.
        name, block = "decode_htp", 1
        if "prefill" in kinds_for_genie(sizes):
            name, block = "prefill_htp", record["prefill"]
        read = 2 * sum(-(-(1 + length) // block) * block for length in [*lengths, PREFIX])
        genie = {"decode_htp": 2 * CONTINUED * len(lengths) + max(length, PREFIX + CONTINUED)}
        genie[name] = genie.get(name, 0) + read
    given = {name: value for name, value in options.limits.items() if value is not None}
    limits = {**LIMITS[record["precision"]], **given}
    log = Path.cwd() / LOG
    with asking(setup_of("generate", log.parent, options.timeout), log) as ask:
        # Before the figures, which take the emulator's time.
        problems = (
            _tokenizer(config, folder, [text[:TOKENIZER_CHARS]], tokenizer, options.timeout)
            if options.on == "both"
            else []
        )
        texts: list[ForcedText] = []
        if options.on == "both":
            texts = prefixes_of(tokens, lengths)
            texts = with_chats(texts, folder, tokenizer, shape, record["context"] - record["prefill"])
            texts.append(to_the_end(tokens, max(own, PREFIX + CONTINUED)))
        bounds = Bounds(limits)
        if record["precision"] != "fp16" and options.on != "parts":
            bounds = _by_noise(ask, order, texts, limits, given)
        if options.on != "parts":
            problems += _figures(ask, order, genie, bounds)
        if options.on == "both":
            problems += _choices(ask, order, config, texts[:-1], bounds.limits)
            problems += _genie_figures(ask, order, config, texts, bounds)
        if options.on != "cpu":
            few = {**order, **order["few"]}
            if options.on == "parts":
                _say_how_long(ask, few, record["parts"])
            guilty = _parts(ask, few, shown=options.where or bool(problems) or options.on == "parts")
            problems += guilty or ([READ_OTHERWISE] if problems else [])
        if options.on != "both":
            sys.stdout.write(f"Genie was not run: --on {options.on}\n")
    if problems:
        raise CheckFailed(
            "; ".join(problems),
            fix="compile it again, or with --precision 16a8w; if that stays, report it"
            if record["precision"] == "fp16"
            else "calibrate by more or other text, or take fp16",
        )
    return 0


def _tokenizer(config: Path, checkpoint: Path, texts: list[str], tokenizer: Any, timeout: float) -> list[str]:
    """Genie has a tokenizer of its own, and reads the chat template's special tokens by it."""
    bos = setting(config, "context", "bos-token")
    if has_template(config.parent):
        texts = [*texts, chat_text(config.parent, texts[0][:PREFIX], "")]
        without_beginning(tokens_of(tokenizer, texts[-1]), bos)
    with limited(config, 1) as copy:
        ours, genies = [tokens_of(tokenizer, text) for text in texts], encoded(copy, texts, timeout=timeout)
    if ours == genies:
        return _read_by_genie(checkpoint, genies, texts, bos)
    return ["Genie's tokenizer tokenizes otherwise than the tokenizers library"]


def _read_by_genie(
    checkpoint: Path, genies: Sequence[list[int]], texts: Sequence[str], bos: int
) -> list[str]:
    """Where the whole of what Genie reads, with the token that it puts first, is not what transformers' own
    tokenizer gives by its defaults: for a text, and for a chat, whose template writes the first token."""
    if not tokenizer_decides(checkpoint):
        return []
    own, problems = transformers_tokenizer(checkpoint), []
    for chat, (text, tokens) in enumerate(zip(texts, genies, strict=True)):
        read = [*([] if bos == NONE else [bos]), *without_beginning(tokens, bos)]
        expected = own(text, add_special_tokens=not chat)["input_ids"]
        if read != expected:
            place = next(at for at, pair in enumerate(zip_longest(read, expected)) if pair[0] != pair[1])
            here = slice(max(0, place - 1), place + 3)
            problems.append(
                f"of a {'chat' if chat else 'text'} Genie reads {read[here]} from place {here.start}, and"
                f" transformers' tokenizer gives {expected[here]}"
            )
    return problems


@dataclass(frozen=True, slots=True)
class Bounds:
    limits: Mapping[str, float]
    narrow: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By reader, those by what rounding alone costs on the tokens that it reads."""

    def of(self, reader: str) -> Mapping[str, float]:
        return self.narrow.get(reader) or self.narrow.get(OF_WINDOWS) or self.limits


def _by_noise(
    ask: Asker,
    order: Mapping[str, Any],
    texts: Sequence[ForcedText],
    limits: Mapping[str, float],
    given: Mapping[str, float],
) -> Bounds:
    """Of each figure the limit, or what rounding alone costs this checkpoint, with its error, where that is
    less: a wider limit would hide a mistake. `given` are the user's own."""
    noise, narrow = (
        ask(**{**order, "do": "noise", "texts": _as_json(texts)})["noise"],
        dict[str, dict[str, float]](),
    )
    for reader, facts in noise.items():
        figures = figures_from(facts)
        whose = f", {READER_NAMES[reader]}" if reader in READER_NAMES else ""
        sys.stdout.write(f"rounding alone{whose}: {_in_words(figures)}\n")
        narrow[reader] = {name: _narrowed(name, limits[name], each) for name, each in figures.items()} | dict(
            given
        )
    return Bounds(narrow[OF_WINDOWS], narrow)


def _narrowed(name: str, limit: float, noise: Figure) -> float:
    allowed = STANDARD_ERRORS * noise.error
    if name in HIGHER_IS_BETTER:
        return max(limit, noise.value - allowed)
    return min(limit, noise.value + allowed)


def _in_words(figures: Mapping[str, Figure]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {figure.value:.4g} ± {figure.error:.2g}"
        for name, figure in figures.items()
    )


def _of_each_kind(ask: Asker, order: Mapping[str, Any], do: str) -> list[dict[str, Any]]:
    """The worker answers in a fork each time, so that the emulator's memory is free again."""
    return [ask(**{**_for_kind(order, kind), "do": do}) for kind in KINDS]


def _for_kind(order: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Decode of a large model takes seconds for each token."""
    length = order["length"]
    if kind == "decode":
        length = min(length, max(1, order["decode_tokens"] // order["windows"]) + 1)
    return {**order, "kind": kind, "length": length}


def _figures(
    ask: Asker,
    order: dict[str, Any],
    genie: Mapping[str, int],
    bounds: Bounds,
) -> list[str]:
    """Of logits on held-out text. `genie` is how many places Genie reads at the pace of which reader."""
    replies = _of_each_kind(ask, order, "pace")
    pace = {name: cost for reply in replies for name, cost in reply["pace"].items()}
    count, forecast = order["windows"] * (order["length"] - 1), 0.0
    for name, cost in pace.items():
        # What each reads for the figures, and for the parts.
        lengths = [
            _for_kind(each, name.partition("_")[0])["length"] - 1 for each in (order, order | order["few"])
        ]
        forecast += cost * (order["windows"] * lengths[0] + lengths[1] * bool(genie) + genie.get(name, 0))
    # Each loads the same again: the figures and, where Genie is asked, its two answers and the parts.
    forecast += sum(reply["ready"] for reply in replies) * (4 if genie else 1)
    with_genie = " with Genie's and each part's" if genie else ""
    sys.stderr.write(f"{count} tokens in {order['windows']} windows, about {seconds(forecast)}{with_genie}\n")
    facts = {name: each for reply in _of_each_kind(ask, order, "figures") for name, each in reply.items()}
    return _judged(facts, bounds, chance=bool(bounds.narrow))


def _judged(facts: Mapping[str, Any], bounds: Bounds, *, chance: bool) -> list[str]:
    """With `chance` a figure may be beyond its limit by three standard errors of its own."""
    problems = []
    for name, words in READER_NAMES.items():
        if name not in facts:
            continue
        figures, limits = figures_from(facts[name]), bounds.of(name)
        sys.stdout.write(f"{words}: {_in_words(figures)}\n")
        problems += [f"{words}: {miss}" for miss in misses(figures, limits, chance=chance)]
        for near in [] if chance else close(figures, limits):
            sys.stderr.write(f"near a limit, {words}: {near}\n")
    return problems


def _choices(
    ask: Asker,
    order: Mapping[str, Any],
    config: Path,
    texts: Sequence[ForcedText],
    limits: Mapping[str, float],
) -> list[str]:
    """The shipped sampler's choices after each of many prefixes, compared with float's."""
    with limited(config, CONTINUED) as copy:
        reply = ask(**{**order, "do": "genie choices", "config": str(copy), "texts": _as_json(texts)})
    facts = {kind: reply[kind] for kind in KINDS}
    for kind, one in facts.items():
        sys.stdout.write(
            f"Genie's {kind}: first choice as float's {one['first_choice']:.1%} of {one['tokens']} tokens;"
            f" float loses {one['regret']:.4f} logits by a choice, {one['worst_regret']:.3f} by the worst\n"
        )
    if order["precision"] != "fp16":
        return choice_misses(facts, limits["first_choice"])
    count, ties = (sum(one[name] for one in facts.values()) for name in ("tokens", "near_ties"))
    others = round(sum((1 - one["first_choice"]) * one["tokens"] for one in facts.values()))
    if others <= min(ties, max(1, EXCUSED * count)):
        return choice_misses(facts, 0.0)
    return [f"Genie chooses unlike float at {others} tokens, {ties} of them near ties"]


def _genie_figures(
    ask: Asker,
    order: Mapping[str, Any],
    config: Path,
    texts: Sequence[ForcedText],
    bounds: Bounds,
) -> list[str]:
    """Of the logits that Genie itself chooses by."""
    with limited(config, CONTINUED) as copy:
        facts = ask(**{**order, "do": "genie figures", "config": str(copy), "texts": _as_json(texts)})
    if not set(facts) & set(READER_NAMES):
        sys.stdout.write("This build's libGenie.so gives no logits: Genie is judged by its choices alone\n")
    return _judged(facts, bounds, chance=True)


def _as_json(texts: Sequence[ForcedText]) -> list[dict[str, Any]]:
    return [{"prompt": list(text.prompt), "tokens": list(text.tokens)} for text in texts]


def _say_how_long(ask: Asker, order: Mapping[str, Any], parts: int) -> None:
    """Of all parts, by the last one."""
    replies = _of_each_kind(ask, order, "part pace")
    each = sum(reply["ready"] + order["length"] * reply["token"] for reply in replies)
    sys.stderr.write(f"{plural(2 * parts, 'part')}, about {seconds(each * parts)}\n")


def _parts(ask: Asker, order: Mapping[str, Any], *, shown: bool) -> list[str]:
    """The first part that is worse than its precision explains."""
    guilty = ""
    replies = _of_each_kind(ask, order, "parts")
    for row in (row for reply in replies for row in reply["parts"]):
        htp, cpu = row["htp"], row.get("cpu")
        first, last = row["layers"]
        name = f"{row['kind']}_{row['part']}, layers {first} to {last}"
        beside = f", {in_decibels(cpu['db'])} on the CPU" if cpu else ""
        least = max(QUANTIZED_LEAST_DB, cpu["db"] - QUANTIZED_LOSS_DB) if cpu else FP16_LEAST_DB
        if not guilty and not htp["db"] >= least:
            guilty = f"it goes wrong in {name}: {htp['output']} has {in_decibels(htp['db'])}{beside}"
        if shown or guilty:
            sys.stdout.write(f"{name}: {htp['output']} {in_decibels(htp['db'])} from float{beside}\n")
    return [guilty] if guilty else []
