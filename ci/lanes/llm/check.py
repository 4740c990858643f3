"""`llm check`: the verdicts on a compiled checkpoint. Workers compute; this asks them and judges."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ci.lanes.llm import quality
from ci.lanes.llm.adapters import require_adapter
from ci.lanes.llm.architecture import Architecture, read_architecture
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
    Emulated,
    beginning_of,
    compiled_file,
    kinds_for_genie,
    limited,
    record_of,
    require_loadable,
    sizes_of,
)
from ci.lanes.llm.estimate import estimated
from ci.lanes.llm.findings import READER_NAMES, figures_from
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
from ci.lanes.llm.judged import JudgedText, as_json, digest_of, judged, windows_of
from ci.lanes.llm.prompts import (
    CONTINUED,
    PREFIX,
    chat_text,
    has_template,
    tokens_of,
    without_beginning,
    words_after,
)
from ci.lanes.llm.time_left import Work, for_kind, measured_pace
from ci.lanes.llm.work import float_of
from ci.pipeline.findings import verdict
from ci.pipeline.precision import written_name
from ci.pipeline.steps import Asker
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
TOKENIZER_CHARS = 4000
TEXTS, SAID = 3, 24
"""Texts for the page, and tokens of each, at most: fewer where decode is judged by few."""
FP16_LEAST_DB, QUANTIZED_LEAST_DB, CHIP_DB, LOSS_DB = 30.0, 10.0, 6.0, 4.0
"""A part is wrong below the least of its precision (where rounding alone leaves little more, LOSS_DB below
that), and a quantized one also if it is CHIP_DB worse than on the CPU, or at most places LOSS_DB worse than
rounding alone makes it: right ones: at most 2.2 dB worse."""
FIXES = {
    "fp16": "compile it again, or with --precision 16a8w; if that stays, report it",
    "quantized": "calibrate by more or other text, or take fp16",
}
CUT_OFF = {"divergence": 0.001, "divergence_99": 0.02}
"""What a right model may lose anyway where it is not known which values quantizing saw: it cuts off the
others, which the median does not see."""
CHIP = 2
"""How often a right model may lose the median that rounding alone costs: HTP's was 1.05 and 1.7 times."""
HALVES, HALVES_DB = 16, 12.0
"""What HTP may lose in fp16, which also adds in halves, for each nat and below each dB that rounding every
operator's output alone costs: right models had 5 to 8 times the divergence, and 8 to 10 dB less."""
RIGHT = {"perplexity_ratio": 1.0}
"""A figure that is always right: rounding may make a text likelier than float does."""
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
    emulated: Emulated


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
        *,
        first: bool = False,
    ) -> None:
        new = [Finding(rule, severity, self.name, message, fix or self.fix) for message in messages]
        self.findings = [*new, *self.findings] if first else [*self.findings, *new]

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
    tokenizer = load_tokenizer(config.parent)
    if tokenizer.to_str() != load_tokenizer(folder).to_str():
        raise CheckFailed(
            f"{config.with_name('tokenizer.json')} is not that of {folder}",
            fix="copy it from there, or compile again",
        )
    by_genie = genie and options.on == "both"
    reads = [*KINDS]
    if by_genie:
        sizes = sizes_of(config)
        require_loadable(sizes, *KINDS)
        reads = kinds_for_genie(sizes)
    read = judged(
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
    order = {
        **read.order,
        "model": str(folder),
        "adapter": record.get("adapter", ""),
        "compiled": str(config.parent),
        "through": through(record),
        "precision": record["precision"],
        "parts": record["parts"],
        "prefill": record["prefill"],
        "cpu": options.on == "cpu",
        "decode_tokens": options.decode_tokens or options.tokens,
    }
    if options.on == "cpu" and record["precision"] == "fp16":
        raise UsageError("fp16 is computed by HTP alone", fix="leave out --on cpu")
    asked = None
    if options.behaviour:
        asked = read_behaviour(options.behaviour, config.parent, tokenizer, record, beginning_of(config))
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
    logs = options.selection.reports.absolute() / "llm"
    with options.emulated.worker(record, options.selection, logs, options.timeout) as ask:
        texts = read.texts
        if by_genie:
            # Before the figures, which take the emulator's time.
            read_by = _tokenizer(config, folder, [read.words[:TOKENIZER_CHARS]], tokenizer, options)
            found.add(read_by, "llm-text")
        rounding = _rounding(ask, order, read, shape, record, options.selection.store, found)
        bounds = _bounds(rounding, order, limits, given, found, by_genie=by_genie)
        if options.on != "parts":
            order["tie"] = bounds.tie
            heard = _prompts(read.prefixes, order["decode_tokens"])
            questions = [([prompt.tokens for prompt in asked.prompts], asked.tokens)] if asked else []
            quantized = record["precision"] != "fp16"
            who = [*["cpu"] * quantized, *["htp"] * (options.on == "both" and not genie)]
            forced = texts if by_genie else []
            block = record["prefill"] if "prefill" in reads else 0
            _figures(ask, Work(order, who, [heard, *questions], forced, block), bounds, found)
            _texts(ask, order, heard, config, options, found)
        if by_genie:
            found.add(_choices(ask, order, config, texts[:-1], bounds.limits))
            _genie_figures(ask, order, config, texts, bounds, found)
        if asked:
            _behaviour(ask, order, asked, config, options, found)
        if options.on != "cpu":
            few = {**order, **order["few"]}
            if options.on == "parts":
                _say_how_long(ask, few, record["parts"])
            culprit = _parts(ask, few, bounds, found, shown=options.where or options.on == "parts")
            if not culprit and found.inaccurate and (parts := found.row["parts"]):
                culprit = [_nearest(parts)]
            # What to look at, before what follows from it.
            found.add(culprit, first=True)
        if genie and options.on != "both":
            sys.stdout.write(f"Genie was not run: --on {options.on}\n")
    return found


def _tokenizer(
    config: Path, checkpoint: Path, texts: list[str], tokenizer: Any, options: CheckOptions
) -> list[str]:
    """Genie has a tokenizer of its own, and reads the chat template's special tokens by it."""
    bos = setting(config, "context", "bos-token")
    if has_template(config.parent):
        texts = [*texts, chat_text(config.parent, texts[0][:PREFIX], "")]
        without_beginning(tokens_of(tokenizer, texts[-1]), bos)
    with limited(config, 1) as copy:
        ours = [tokens_of(tokenizer, text) for text in texts]
        genies = options.emulated.genie_tokenizer(copy, texts, timeout=options.timeout)
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
    narrow: Mapping[str, Mapping[str, float]]
    """By reader, those by what rounding alone costs on the tokens that it reads."""
    parts: Sequence[Mapping[str, Any]]
    """Of each, what rounding alone leaves of its outputs, in dB: `typical_db` at most places, and `db` of the
    worst block, by the kind of graph."""
    tie: float
    """Float's logits are as good as equal if they are no further apart."""

    def of(self, reader: str) -> Mapping[str, float]:
        return self.narrow.get(reader) or self.narrow.get(OF_WINDOWS) or self.limits


def _rounding(
    ask: Asker,
    order: Mapping[str, Any],
    read: JudgedText,
    shape: Architecture,
    record: Mapping[str, Any],
    store: Path,
    found: CheckedModel,
) -> Mapping[str, Any]:
    """What rounding alone costs the checkpoint: as `compile` measured it, where the same tokens are read; or
    now, with the ranges that `compile` saw."""
    kept: Mapping[str, Any] = record.get(ROUNDING, {})
    folder, texts = Path(order["model"]), read.forced(order["through"])
    if kept and (changed := _changed(record.get("float", {}), float_of(folder, order["adapter"], store))):
        sys.stderr.write(
            f"{folder}: changed since it was compiled: {', '.join(changed)}. What quantizing saw may be"
            " something else now: limits are those of the text that is read\n"
        )
        found.fix = "compile it again, then check"
        kept = {}
    if kept and kept["judged"] == digest_of(windows_of(folder, shape, order), texts):
        return kept
    measured = ask(**{**order, "do": "noise", "texts": texts, "ranges": kept.get("ranges")})
    return measured if kept else {**measured, "allowed": CUT_OFF}


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]


def _bounds(
    rounding: Mapping[str, Any],
    order: Mapping[str, Any],
    limits: Mapping[str, float],
    given: Mapping[str, float],
    found: CheckedModel,
    *,
    by_genie: bool,
) -> Bounds:
    """Of each figure the limit, or what rounding alone costs this checkpoint, with its error, where that is
    less: a wider limit would hide a mistake. `given` are the user's own."""
    narrow: dict[str, dict[str, float]] = {}
    halves = order["precision"] == "fp16"
    allowed = {} if halves else rounding.get("allowed", {})
    for reader, facts in rounding["noise"].items():
        if reader in READER_NAMES and not by_genie:
            continue
        figures = figures_from(facts)
        whose = f", {READER_NAMES[reader]}" if reader in READER_NAMES else ""
        sys.stdout.write(f"rounding alone{whose}: {_in_words(figures)}\n")
        narrow[reader] = {
            name: max(_narrowed(name, limits[name], figure, halves=halves), allowed.get(name, 0.0))
            for name, figure in figures.items()
        } | dict(given)
    # A comparison with float does not see a damaged checkpoint or tokenizer.
    absolute = found.row["absolute"] = rounding["absolute"]
    sys.stdout.write(f"{quality.in_words(absolute)}\n")
    found.add(quality.warnings(absolute), "llm-perplexity", Severity.WARNING, quality.FIX)
    tie = found.row["tie"] = rounding["tie"] * math.sqrt(HALVES if halves else CHIP)
    sys.stdout.write(f"a choice by which float loses at most {tie:.2g} logits is as good as its own\n")
    return Bounds(narrow[OF_WINDOWS], narrow, rounding["parts"], tie)


def _narrowed(name: str, limit: float, noise: Figure, *, halves: bool) -> float:
    if halves:
        return min(limit, HALVES * noise.value) if name in DIVERGENCES else limit
    allowed = STANDARD_ERRORS * noise.error
    if name in HIGHER_IS_BETTER:
        return max(limit, noise.value - allowed)
    expected = noise.value * (CHIP if name == "divergence_50" else 1)
    return min(limit, max(expected, RIGHT.get(name, 0.0)) + allowed)


def _in_words(figures: Mapping[str, Figure]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {figure.value:.4g} ± {figure.error:.2g}"
        for name, figure in figures.items()
    )


def _of_each_kind(ask: Asker, order: Mapping[str, Any], do: str) -> list[dict[str, Any]]:
    """The worker answers in a fork each time, so that the emulator's memory is free again."""
    return [ask(**{**for_kind(order, kind), "do": do}) for kind in KINDS]


def _figures(ask: Asker, work: Work, bounds: Bounds, found: CheckedModel) -> None:
    """Of logits on held-out text."""
    order = work.order
    pace = measured_pace(ask, order, "pace")
    count = order["windows"] * (order["length"] - 1)
    with_genie = " with Genie's and each part's" if work.forced else ""
    sys.stderr.write(
        f"{count} tokens in {order['windows']} windows, about {seconds(work.seconds(pace))}{with_genie}\n"
    )
    rates = {"tokens_per_second": "decode_htp", "read_per_second": "prefill_htp"}
    found.row["speed"] = {
        name: round(1 / pace.token[rate], 2) for name, rate in rates.items() if pace.token.get(rate)
    }
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
        if missed := misses(figures, limits, chance=True):
            found.add([f"{words}: {'; '.join(missed)}"])


def _behaviour(
    ask: Asker,
    order: Mapping[str, Any],
    asked: Behaviour,
    config: Path,
    options: CheckOptions,
    found: CheckedModel,
) -> None:
    """What it does after prompts, beside float. The quantized graphs answer on the CPU, too."""
    request = {**order, "prompts": [prompt.tokens for prompt in asked.prompts], "most": asked.tokens}
    answers = {"float": ask(**request, do="answers", who="float")["answers"]}
    answers |= _answers(ask, request, config, options)
    rows = found.row["behaviour"] = asked.judged(answers, load_tokenizer(config.parent))
    for line in kept_in_words(rows):
        sys.stdout.write(f"{line}\n")
    found.add(lost(rows), "llm-behaviour")
    found.add(float_alone(rows), "llm-behaviour-float", Severity.WARNING, FLOAT_FIX)


def _answers(
    ask: Asker, request: Mapping[str, Any], config: Path, options: CheckOptions
) -> dict[str, list[dict[str, Any]]]:
    """What the quantized graphs say on the CPU, and Genie or ExecuTorch's program on the emulator."""
    genie, emulated = config.name != PROGRAM, options.on == "both"
    who = ["cpu"] if request["precision"] != "fp16" else []
    who += ["htp"] if emulated and not genie else []
    answers = {name: ask(**request, do="answers", who=name)["answers"] for name in who}
    if emulated and genie:
        with limited(config, request["most"]) as copy:
            texts = options.emulated.genie(copy, request["prompts"], timeout=options.timeout)
        answers["htp"] = [{"tokens": list(text.tokens), "stopped": text.stopped} for text in texts]
    return answers


def _prompts(prefixes: Sequence[ForcedText], decode_tokens: int) -> tuple[list[list[int]], int]:
    """Those of the page's texts, and of how many tokens an answer has: no more are read than decode is judged
    by, which reads prompts, too, where the emulator does not load both kinds of binaries."""
    most = max(1, min(SAID, decode_tokens // 4))
    shortest = sorted((list(text.prompt) for text in prefixes[:TEXTS]), key=len)
    read = itertools.accumulate(len(prompt) + most for prompt in shortest)
    few = [prompt for prompt, total in zip(shortest, read, strict=True) if total <= decode_tokens]
    return few or shortest[:1], most


def _texts(
    ask: Asker,
    order: Mapping[str, Any],
    heard: tuple[list[list[int]], int],
    config: Path,
    options: CheckOptions,
    found: CheckedModel,
) -> None:
    """What is said beside float, for who reads the page; figures judge it."""
    prompts, most = heard
    request = {**order, "prompts": prompts, "most": most}
    answers = _answers(ask, request, config, options)
    rows = ask(**request, do="beside float", answers=answers)["texts"]
    tokenizer = load_tokenizer(config.parent)
    for prompt, row in zip(prompts, rows, strict=True):
        row["prompt"] = tokenizer.decode(prompt, skip_special_tokens=False)
        for said in row["said"].values():
            said["text"] = words_after(tokenizer, prompt, said.pop("tokens"), special=True)
    found.row["texts"] = rows


def _choices(
    ask: Asker,
    order: Mapping[str, Any],
    config: Path,
    texts: Sequence[ForcedText],
    limits: Mapping[str, float],
) -> list[str]:
    """The shipped sampler's choices after each of many prefixes, compared with float's."""
    with limited(config, CONTINUED) as copy:
        reply = ask(**{**order, "do": "genie choices", "config": str(copy), "texts": as_json(texts)})
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
        facts = ask(**{**order, "do": "genie figures", "config": str(copy), "texts": as_json(texts)})
    if not set(facts) & set(READER_NAMES):
        sys.stdout.write("This build's libGenie.so gives no logits: Genie is judged by its choices alone\n")
    found.row["figures"] |= facts
    _judged(facts, bounds, found)


def _say_how_long(ask: Asker, order: Mapping[str, Any], parts: int) -> None:
    """Of all parts, by the last one."""
    pace = measured_pace(ask, order, "part pace")
    long = sum(pace.parts(kind, for_kind(order, kind)["length"], parts) for kind in KINDS)
    sys.stderr.write(f"{plural(2 * parts, 'part')}, about {seconds(long)}\n")


def _parts(
    ask: Asker, order: Mapping[str, Any], bounds: Bounds, found: CheckedModel, *, shown: bool
) -> list[str]:
    """The first part that is worse than its precision explains."""
    culprit = ""
    rows = found.row["parts"] = []
    for row in (row for reply in _of_each_kind(ask, order, "parts") for row in reply["parts"]):
        htp, cpu = row["htp"], row.get("cpu")
        first, last = row["layers"]
        name = f"{row['kind']}_{row['part']}, layers {first} to {last}"
        beside = f", {in_decibels(cpu['db'])} on the CPU" if cpu else ""
        rounding = bounds.parts[row["part"]]
        loss = HALVES_DB if order["precision"] == "fp16" else LOSS_DB
        typical, worst = rounding["typical_db"] - loss, rounding["db"][row["kind"]] - loss
        least = max(min(QUANTIZED_LEAST_DB, worst), cpu["db"] - CHIP_DB) if cpu else FP16_LEAST_DB
        wrong = ""
        if not htp["db"] >= least:
            wrong = f"{htp['output']} has {in_decibels(htp['db'])}, expected {least:.1f}{beside}"
        elif not htp["typical_db"] >= typical:
            wrong = f"most places have {in_decibels(htp['typical_db'])}, expected {typical:.1f}"
        if wrong and not culprit:
            culprit = f"it goes wrong in {name}: {wrong}"
        if shown or culprit or found.inaccurate:
            sys.stdout.write(
                f"{name}: {htp['output']} {in_decibels(htp['db'])} from float, most places"
                f" {in_decibels(htp['typical_db'])}{beside}\n"
            )
        shown_row = {"name": name, **htp, "least_db": least, "typical_least_db": max(typical, least)}
        rows.append(shown_row | ({"cpu_db": cpu["db"]} if cpu else {}))
    return [culprit] if culprit else []


def _nearest(parts: Sequence[Mapping[str, Any]]) -> str:
    """What to say where the whole is wrong, and each part is within its limit."""
    part = min(parts, key=lambda row: row["typical_db"] - row["typical_least_db"])
    found, least = (in_decibels(part[name]) for name in ("typical_db", "typical_least_db"))
    return (
        f"no part misses its limit; nearest comes {part['name']}: most places have {found}, at least {least}"
        f" is right. {READ_OTHERWISE.capitalize()}"
    )
