"""`llm check`: the verdicts on a compiled checkpoint. Workers compute; this asks them and judges."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ci.lanes.llm import quality
from ci.lanes.llm.adapters import require_adapter
from ci.lanes.llm.architecture import read_architecture
from ci.lanes.llm.beginning import encoder_of, load_tokenizer, tokenizer_decides
from ci.lanes.llm.behaviour import (
    FLOAT_FIX,
    Behaviour,
    float_alone,
    kept_in_words,
    lost,
    read_behaviour,
)
from ci.lanes.llm.commands import (
    LOG,
    beginning_of,
    compiled_file,
    kinds_for_genie,
    limited,
    record_of,
    require_loadable,
    sizes_of,
    worker_for,
)
from ci.lanes.llm.estimate import estimated
from ci.lanes.llm.findings import READER_NAMES, figures_from
from ci.lanes.llm.genie import (
    KINDS,
    NONE,
    PROGRAM,
    RECORD,
    ForcedText,
    contradictions,
    encoded,
    generate,
    setting,
    through,
)
from ci.lanes.llm.judge import (
    DIVERGENCES,
    EXCUSED,
    FIGURES,
    HIGHER_IS_BETTER,
    OF_WINDOWS,
    STANDARD_ERRORS,
    Figure,
    choice_misses,
    misses,
)
from ci.lanes.llm.prompts import (
    CONTINUED,
    PREFIX,
    chat_text,
    has_template,
    prefix_lengths,
    prefixes_of,
    read_corpus,
    share_of_runs,
    to_the_end,
    tokens_for,
    tokens_of,
    with_chats,
    without_beginning,
)
from ci.pipeline.findings import verdict
from ci.pipeline.precision import written_name
from ci.pipeline.steps import Asker, asking
from provisioning.base.commands import typed
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Finding, Severity
from provisioning.base.rendering.text import plural
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.base.units import in_decibels, seconds
from provisioning.manifest import soc_named

LIMITS: dict[str, dict[str, float]] = {
    name: dict(zip(FIGURES, limits, strict=True))
    for names, limits in {
        ("fp16",): (0.98, 1.005, 0.0001, 0.0001, 0.001, 0.005),
        ("u16u8", "16a8w"): (0.9, 1.05, 0.05, 0.05, 0.5, 0.1),
        ("8a8w", "16a4w"): (0.75, 1.2, 0.15, 0.15, 1.5, 0.2),
    }.items()
    for name in names
}
"""By precision, where the command line names no other."""
MAX_OVERLAP = 0.05
"""At most this share of the text may be known from quantizing."""
TOKENIZER_CHARS = 4000
WINDOWS = 4
"""At least so many, because figures' errors come from windows."""
MIN_TOKENS = 256
"""Tokens to find the part by."""
FP16_LEAST_DB, QUANTIZED_LEAST_DB, CHIP_DB, LOSS_DB = 30.0, 10.0, 6.0, 4.0
"""A part is wrong below the least of its precision (where rounding alone leaves little more, LOSS_DB below
that), and a quantized one also if it is CHIP_DB worse than on the CPU, or at most places LOSS_DB worse than
rounding alone makes it: right ones: at most 2.2 dB worse."""
FIXES = {
    "fp16": "compile it again, or with --precision 16a8w; if that stays, report it",
    "quantized": "calibrate by more or other text, or take fp16",
}
CUT_OFF = {"divergence": 0.001, "divergence_99": 0.02}
"""What a right model may lose anyway: calibration cuts off some values, which the median does not see."""
CHIP = 2
"""How often a right model may lose the median that rounding alone costs: HTP's was 1.05 and 1.7 times."""
HALVES, HALVES_DB = 16, 12.0
"""What HTP may lose in fp16, which also adds in halves, for each nat and below each dB that rounding every
operator's output alone costs: right models had 5 to 8 times the divergence, and 8 to 10 dB less."""
READ_OTHERWISE = (
    "either rounding hides what is wrong there, or the checkpoint is read otherwise than transformers reads"
    " it, or has changed"
)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """`llm check`."""

    model: Path
    text: Path
    checkpoint: Path | None
    behaviour: Path | None
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


@dataclass
class CheckedModel:
    """What is found of a model, and the row of its report."""

    name: str
    fix: str
    row: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(
        self,
        messages: Iterable[str],
        rule: str = "llm-accuracy",
        severity: Severity = Severity.ERROR,
        fix: str = "",
    ) -> None:
        self.findings += [
            Finding(rule, severity, self.name, message, fix or self.fix) for message in messages
        ]

    @property
    def inaccurate(self) -> bool:
        return any(finding.rule == "llm-accuracy" for finding in self.findings)


def check_model(options: CheckOptions) -> int:
    stage = StageRun("llm_check", "", "", typed("python -m ci llm", sys.argv[2:]))
    reports, name = options.selection.reports, options.model.absolute().name
    with stage.reported(reports, "llm-refused", name):
        found = _check(options, name)
    stage.findings += found.findings
    stage.metrics["programs"] = {name: {"verdict": verdict(found.findings), **found.row}}
    return stage.close(reports)


def _check(options: CheckOptions, name: str) -> CheckedModel:
    config = compiled_file(options.model)
    record = record_of(config)
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
    text = read_corpus(options.text)
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
    asked = None
    if options.behaviour:
        asked = read_behaviour(options.behaviour, config.parent, tokenizer, record, beginning_of(config))
    by_genie = genie and options.on == "both"
    places: dict[str, int] = {}
    if by_genie:
        sizes = sizes_of(config)
        require_loadable(sizes, *KINDS)
        # Prefill reads whole blocks, decode single tokens.
        reader, block = "decode_htp", 1
        if "prefill" in kinds_for_genie(sizes):
            reader, block = "prefill_htp", record["prefill"]
        read = 2 * sum(-(-(1 + length) // block) * block for length in [*lengths, PREFIX])
        places = {"decode_htp": 2 * CONTINUED * len(lengths) + max(length, PREFIX + CONTINUED)}
        places[reader] = places.get(reader, 0) + read
    given = {name: value for name, value in options.limits.items() if value is not None}
    limits = {**LIMITS[record["precision"]], **given}
    found = CheckedModel(name, FIXES["fp16" if record["precision"] == "fp16" else "quantized"])
    found.row |= {
        key: record[key] for key in ("soc", "context", "bytes", "cpu_seconds", "peak") if key in record
    }
    found.row |= {"through": through(record), "precision": written_name(record["precision"])}
    expected = [record[key] for key in ("precision", "parts", "context")]
    if genie and (cost := estimated(shape, *expected)):
        found.row["estimate"] = {"bytes": cost.bytes, "peak": cost.memory, "cpu_seconds": cost.seconds}
    log = options.selection.reports.absolute() / "llm" / LOG.name
    with asking(worker_for(record, options.selection, log.parent, options.timeout), log) as ask:
        texts: list[ForcedText] = []
        if by_genie:
            # Before the figures, which take the emulator's time.
            read_by = _tokenizer(config, folder, [text[:TOKENIZER_CHARS]], tokenizer, options.timeout)
            found.add(read_by, "llm-text")
            texts = prefixes_of(tokens, lengths)
            texts = with_chats(texts, folder, tokenizer, shape, record["context"] - record["prefill"])
            texts.append(to_the_end(tokens, max(own, PREFIX + CONTINUED)))
        bounds = _by_noise(ask, order, texts, limits, given, found)
        if options.on != "parts":
            order["tie"] = bounds.tie
            _figures(ask, order, places, bounds, found, by_genie=by_genie)
        if by_genie:
            found.add(_choices(ask, order, config, texts[:-1], bounds.limits))
            _genie_figures(ask, order, config, texts, bounds, found)
        if asked:
            _behaviour(ask, order, asked, config, options, found)
        if options.on != "cpu":
            few = {**order, **order["few"]}
            if options.on == "parts":
                _say_how_long(ask, few, record["parts"])
            guilty = _parts(ask, few, bounds, found, shown=options.where or options.on == "parts")
            if not guilty and found.inaccurate and (parts := found.row["parts"]):
                guilty = [_nearest(parts)]
            found.add(guilty)
        if genie and options.on != "both":
            sys.stdout.write(f"Genie was not run: --on {options.on}\n")
    return found


def _tokenizer(config: Path, checkpoint: Path, texts: list[str], tokenizer: Any, timeout: float) -> list[str]:
    """Genie has a tokenizer of its own, and reads the chat template's special tokens by it."""
    bos = setting(config, "context", "bos-token")
    if has_template(config.parent):
        texts = [*texts, chat_text(config.parent, texts[0][:PREFIX], "")]
        without_beginning(tokens_of(tokenizer, texts[-1]), bos)
    with limited(config, 1) as copy:
        ours, genies = [tokens_of(tokenizer, text) for text in texts], encoded(copy, texts, timeout=timeout)
    if ours == genies:
        return read_by_genie(checkpoint, genies, texts, bos)
    return ["Genie's tokenizer tokenizes otherwise than the tokenizers library"]


def read_by_genie(checkpoint: Path, genies: Sequence[list[int]], texts: Sequence[str], bos: int) -> list[str]:
    """Where the whole of what Genie reads, with the token that it puts first, is not what transformers' own
    tokenizer gives by its defaults: for a text, and for a chat, whose template writes the first token."""
    if not tokenizer_decides(checkpoint):
        return []
    encode, problems = encoder_of(checkpoint), []
    for chat, (text, tokens) in enumerate(zip(texts, genies, strict=True)):
        read = [*([] if bos == NONE else [bos]), *without_beginning(tokens, bos)]
        expected, _ = encode(text, not chat)
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
    parts: Sequence[Mapping[str, float]] = ()
    """Of each, what rounding alone leaves of its outputs, in dB: `typical_db` at most places, and `db`."""
    tie: float = 0.0
    """Float's logits are as good as equal if they are no further apart."""

    def of(self, reader: str) -> Mapping[str, float]:
        return self.narrow.get(reader) or self.narrow.get(OF_WINDOWS) or self.limits


def _by_noise(
    ask: Asker,
    order: Mapping[str, Any],
    texts: Sequence[ForcedText],
    limits: Mapping[str, float],
    given: Mapping[str, float],
    found: CheckedModel,
) -> Bounds:
    """Of each figure the limit, or what rounding alone costs this checkpoint, with its error, where that is
    less: a wider limit would hide a mistake. `given` are the user's own."""
    reply = ask(**{**order, "do": "noise", "texts": _as_json(texts)})
    narrow: dict[str, dict[str, float]] = {}
    halves = order["precision"] == "fp16"
    for reader, facts in reply["noise"].items():
        figures = figures_from(facts)
        whose = f", {READER_NAMES[reader]}" if reader in READER_NAMES else ""
        sys.stdout.write(f"rounding alone{whose}: {_in_words(figures)}\n")
        narrow[reader] = {
            name: _narrowed(name, limits[name], figure, halves=halves) for name, figure in figures.items()
        } | dict(given)
    # A comparison with float does not see a damaged checkpoint or tokenizer.
    absolute = found.row["absolute"] = reply["absolute"]
    sys.stdout.write(f"{quality.in_words(absolute)}\n")
    found.add(quality.warnings(absolute), "llm-perplexity", Severity.WARNING, quality.FIX)
    tie = found.row["tie"] = reply["tie"] * math.sqrt(HALVES if halves else CHIP)
    sys.stdout.write(f"a choice by which float loses at most {tie:.2g} logits is as good as its own\n")
    return Bounds(narrow[OF_WINDOWS], narrow, reply["parts"], tie)


def _narrowed(name: str, limit: float, noise: Figure, *, halves: bool) -> float:
    if halves:
        return min(limit, HALVES * noise.value) if name in DIVERGENCES else limit
    allowed = STANDARD_ERRORS * noise.error
    if name in HIGHER_IS_BETTER:
        return max(limit, noise.value - allowed)
    expected = noise.value * (CHIP if name == "divergence_50" else 1)
    return min(limit, max(expected + allowed, CUT_OFF.get(name, 0.0)))


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
    places: Mapping[str, int],
    bounds: Bounds,
    found: CheckedModel,
    *,
    by_genie: bool,
) -> None:
    """Of logits on held-out text. `places` is how many of them Genie reads at the pace of which reader."""
    replies = _of_each_kind(ask, order, "pace")
    pace = {name: cost for reply in replies for name, cost in reply["pace"].items()}
    count, total = order["windows"] * (order["length"] - 1), 0.0
    for name, cost in pace.items():
        # What each reads for the figures, and for the parts.
        lengths = [
            _for_kind(form, name.partition("_")[0])["length"] - 1 for form in (order, order | order["few"])
        ]
        total += cost * (order["windows"] * lengths[0] + lengths[1] * by_genie + places.get(name, 0))
    # Each loads the same again: the figures and, where Genie is asked, its two answers and the parts.
    total += sum(reply["ready"] for reply in replies) * (4 if by_genie else 1)
    with_genie = " with Genie's and each part's" if by_genie else ""
    sys.stderr.write(f"{count} tokens in {order['windows']} windows, about {seconds(total)}{with_genie}\n")
    rates = {"tokens_per_second": "decode_htp", "read_per_second": "prefill_htp"}
    found.row["speed"] = {name: round(1 / pace[rate], 2) for name, rate in rates.items() if pace.get(rate)}
    facts, positions = dict[str, Any](), dict[str, Any]()
    for reply in _of_each_kind(ask, order, "figures"):
        positions |= reply["positions"]
        facts |= reply
    found.row["figures"] = {**facts, "positions": positions}
    _judged(facts, bounds, found)


def _judged(facts: Mapping[str, Any], bounds: Bounds, found: CheckedModel) -> None:
    """A figure may be beyond its limit by three standard errors of its own."""
    for name, words in READER_NAMES.items():
        if name not in facts:
            continue
        figures, limits = figures_from(facts[name]), bounds.of(name)
        sys.stdout.write(f"{words}: {_in_words(figures)}\n")
        found.add(f"{words}: {miss}" for miss in misses(figures, limits, chance=True))


def _behaviour(
    ask: Asker,
    order: Mapping[str, Any],
    asked: Behaviour,
    config: Path,
    options: CheckOptions,
    found: CheckedModel,
) -> None:
    """What it does after prompts, beside float. The quantized graphs answer on the CPU, too."""
    who = ["float", *(["cpu"] if order["precision"] != "fp16" else [])]
    who += ["htp"] if config.name == PROGRAM and options.on == "both" else []
    prompts = [prompt.tokens for prompt in asked.prompts]
    request = {**order, "do": "answers", "prompts": prompts, "most": asked.tokens}
    answers = {name: ask(**request, who=name)["answers"] for name in who}
    if config.name != PROGRAM and options.on == "both":
        with limited(config, asked.tokens) as copy:
            texts = generate(copy, prompts, timeout=options.timeout)
        answers["htp"] = [{"tokens": text.tokens, "stopped": text.stopped} for text in texts]
    rows = found.row["behaviour"] = asked.judged(answers, load_tokenizer(config.parent))
    for line in kept_in_words(rows):
        sys.stdout.write(f"{line}\n")
    found.add(lost(rows), "llm-behaviour")
    found.add(float_alone(rows), "llm-behaviour-float", Severity.WARNING, FLOAT_FIX)


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
    for kind, row in facts.items():
        sys.stdout.write(
            f"Genie's {kind}: first choice as float's {row['first_choice']:.1%} of {row['tokens']} tokens;"
            f" float loses {row['regret']:.4f} logits by a choice, {row['worst_regret']:.3f} by the worst\n"
        )
    if order["precision"] != "fp16":
        return choice_misses(facts, limits["first_choice"])
    count, ties = (sum(row[name] for row in facts.values()) for name in ("tokens", "near_ties"))
    others = round(sum((1 - row["first_choice"]) * row["tokens"] for row in facts.values()))
    if others <= min(ties, max(1, EXCUSED * count)):
        return choice_misses(facts, 0.0)
    return [f"Genie chooses unlike float at {others} tokens, {ties} of them near ties"]


def _genie_figures(
    ask: Asker,
    order: Mapping[str, Any],
    config: Path,
    texts: Sequence[ForcedText],
    bounds: Bounds,
    found: CheckedModel,
) -> None:
    """Of the logits that Genie itself chooses by."""
    with limited(config, CONTINUED) as copy:
        facts = ask(**{**order, "do": "genie figures", "config": str(copy), "texts": _as_json(texts)})
    if not set(facts) & set(READER_NAMES):
        sys.stdout.write("This build's libGenie.so gives no logits: Genie is judged by its choices alone\n")
    found.row["figures"] |= facts
    _judged(facts, bounds, found)


def _as_json(texts: Sequence[ForcedText]) -> list[dict[str, Any]]:
    return [{"prompt": list(text.prompt), "tokens": list(text.tokens)} for text in texts]


def _say_how_long(ask: Asker, order: Mapping[str, Any], parts: int) -> None:
    """Of all parts, by the last one."""
    replies = _of_each_kind(ask, order, "part pace")
    cost = sum(reply["ready"] + order["length"] * reply["token"] for reply in replies)
    sys.stderr.write(f"{plural(2 * parts, 'part')}, about {seconds(cost * parts)}\n")


def _parts(
    ask: Asker, order: Mapping[str, Any], bounds: Bounds, found: CheckedModel, *, shown: bool
) -> list[str]:
    """The first part that is worse than its precision explains."""
    guilty = ""
    rows = found.row["parts"] = []
    for row in (row for reply in _of_each_kind(ask, order, "parts") for row in reply["parts"]):
        htp, cpu = row["htp"], row.get("cpu")
        first, last = row["layers"]
        name = f"{row['kind']}_{row['part']}, layers {first} to {last}"
        beside = f", {in_decibels(cpu['db'])} on the CPU" if cpu else ""
        rounding = bounds.parts[row["part"]] if bounds.parts else {"typical_db": -math.inf, "db": math.inf}
        loss = HALVES_DB if order["precision"] == "fp16" else LOSS_DB
        typical, worst = rounding["typical_db"] - loss, rounding["db"] - loss
        least = max(min(QUANTIZED_LEAST_DB, worst), cpu["db"] - CHIP_DB) if cpu else FP16_LEAST_DB
        wrong = ""
        if not htp["db"] >= least:
            wrong = f"{htp['output']} has {in_decibels(htp['db'])}, expected {least:.1f}{beside}"
        elif not htp["typical_db"] >= typical:
            wrong = f"most places have {in_decibels(htp['typical_db'])}, expected {typical:.1f}"
        if wrong and not guilty:
            guilty = f"it goes wrong in {name}: {wrong}"
        if shown or guilty or found.inaccurate:
            sys.stdout.write(
                f"{name}: {htp['output']} {in_decibels(htp['db'])} from float, most places"
                f" {in_decibels(htp['typical_db'])}{beside}\n"
            )
        shown_row = {"name": name, **htp, "least_db": least, "typical_least_db": max(typical, least)}
        rows.append(shown_row | ({"cpu_db": cpu["db"]} if cpu else {}))
    return [guilty] if guilty else []


def _nearest(parts: Sequence[Mapping[str, Any]]) -> str:
    """What to say where the whole is wrong, and each part is within its limit."""
    part = min(parts, key=lambda row: row["typical_db"] - row["typical_least_db"])
    found, least = (in_decibels(part[name]) for name in ("typical_db", "typical_least_db"))
    return (
        f"no part misses its limit; nearest comes {part['name']}: most places have {found}, at least {least}"
        f" is right. {READ_OTHERWISE.capitalize()}"
    )
