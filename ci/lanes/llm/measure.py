"""What is measured of a compiled language model: its texts and logits beside float's, each part of its
layers, and what rounding alone costs the checkpoint. For workers. An order is about one kind of graph: the
emulator cannot load all binaries of a large model at once."""

from __future__ import annotations

import functools
import gc
import importlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ci.lanes.llm import verdicts
from ci.lanes.llm.architecture import Architecture, read_architecture
from ci.lanes.llm.beginning import load_tokenizer
from ci.lanes.llm.compiled import Compiled, CompiledReader, TokenReader
from ci.lanes.llm.decoder import Decoder, load_decoder
from ci.lanes.llm.genie import KINDS, RECORD, ForcedText, GeneratedText, forced_logits, generate, through
from ci.lanes.llm.graphs import FAR, MARGIN, blocks, outputs_of, starts
from ci.lanes.llm.prompts import CONTINUED, special_places, windows, windows_of
from ci.lanes.llm.reference import ends_of, greedy_text, load_reference, logits_of, require_rope, text_of
from ci.lanes.llm.suite import FOUR_BITS, LlmRun
from ci.pipeline.accuracy import Pair, Unusable, compare
from ci.pipeline.models.arrays import Array, Sample
from provisioning.base.errors import CheckFailed
from provisioning.base.units import EXACT_DB
from provisioning.manifest import Soc, soc_named

PREFILL, DECODE = 32, 1
"""Tokens that a graph reads at once."""
PROMPTS = (1, 31, 32, 33, 65)
"""Lengths around one and two blocks of prefill."""
MOST = 60
"""Tokens of a text that ends by itself."""
CALIBRATED_WINDOWS, JUDGED_WINDOWS = 12, 8
"""Of `test_llm`."""
TINY = 1e-30
COMPILED = {
    "genie": ("ci.lanes.llm.compiled", "Compiled"),
    "executorch": ("ci.lanes.llm.program_steps", "LoweredProgram"),
}
"""Imported when needed, as each loads another QNN."""


@dataclass(frozen=True)
class ProgramFolders:
    """The folders of a model of `test_llm` and of its program."""

    model: Path
    into: Path
    shape: Architecture
    run: LlmRun
    chip: str
    timeout: float

    @classmethod
    def of(cls, order: Mapping[str, Any]) -> ProgramFolders:
        model, run = Path(order["model"]), LlmRun.model_construct(**order["run"])
        shape = read_architecture(model)
        return cls(model, Path(order["into"]), shape, run, order["soc"], order["timeout"])

    @property
    def soc(self) -> Soc:
        return soc_named(self.chip)

    @property
    def context(self) -> int:
        return self.shape.context

    def rows(self, kind: str) -> list[list[int]]:
        """Windows of held-out text that fill the context; each begins like a text."""
        texts: list[list[int]] = json.loads((self.model / "texts.json").read_text(encoding="utf-8"))[kind]
        beginning = self.shape.beginning
        stream = [token for text in texts for token in (*beginning, *text, self.shape.eos[0])]
        length, first = self.context - len(beginning), len(beginning)
        starts = range(first, len(stream) - length, length)
        return [[*beginning, *stream[at : at + length]] for at in starts]

    def calibration(self) -> list[list[int]]:
        rows = self.rows("calibration")[:CALIBRATED_WINDOWS]
        if len(rows) < CALIBRATED_WINDOWS:
            raise CheckFailed(
                f"{len(rows)} windows of text to calibrate by, and {CALIBRATED_WINDOWS} are needed"
            )
        return rows

    def endless(self) -> Architecture:
        """One that speaks until the context is full."""
        return replace(self.shape, eos=(self.shape.vocab_size - 1,))


class Speaker(Protocol):
    def __call__(
        self, prompts: Sequence[Sequence[int]], most: int, *, endless: bool
    ) -> Sequence[GeneratedText]:
        """Answers to prompts without the token that begins a text."""


def texts(
    place: ProgramFolders, reference: Any, generate: Speaker
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Texts after prompts of every length, and one that fills the context, each beside float's text; and
    the model's speed, which says nothing about a device."""
    stream = [token for row in place.rows("judged") for token in row[1:]]
    plans = [
        (False, MOST, ends_of(reference), stream[97 * (place.run.prompts * index + turn) :][:length])
        for index, length in enumerate(PROMPTS)
        for turn in range(place.run.prompts)
    ]
    prompts = [tuple(prompt) for _, _, _, prompt in plans]
    plans.append((True, 2 * place.context, place.endless().eos, stream[:1]))
    generated = dict(zip(prompts, generate(prompts, MOST, endless=False), strict=True))
    rows = []
    for endless, most, ends, prompt in plans:

        def again(
            tokens: Sequence[int], endless: bool = endless, most: int = most, prompt: Sequence[int] = prompt
        ) -> tuple[Sequence[int], str]:
            whole = (*prompt, *tokens)
            text = None if endless else generated.get(whole)
            text = text or generate([whole], most, endless=endless)[0]
            return text.tokens, text.stopped

        rows.append(_as_row(place, beside_float(reference, place.shape, prompt, most, ends, again)))
    every = [text for text in generated.values() if len(text.tokens) > 1]
    later = sum(text.seconds - text.first_seconds for text in every)
    return rows, {
        "tokens_per_second": round(sum(len(text.tokens) - 1 for text in every) / later, 1) if later else 0.0,
        "first_token_seconds": round(sum(text.first_seconds for text in every) / max(1, len(every)), 2),
    }


def beside_float(
    reference: Any,
    shape: Architecture,
    prompt: Sequence[int],
    most: int,
    ends: Sequence[int],
    generate: verdicts.Continue,
) -> verdicts.TextComparison:
    """A text after a prompt, which lacks the token that begins a text, compared with float's."""
    expected = text_of(reference, [*shape.beginning, *prompt], most, ends, shape.context)
    return verdicts.compare_text(
        prompt, expected.tokens, expected.stopped, expected.logits, ends, most, generate
    )


def _as_row(place: ProgramFolders, comparison: verdicts.TextComparison) -> dict[str, Any]:
    tokenizer = load_tokenizer(place.model)
    words = {
        f"{name}_text": str(tokenizer.decode(list(getattr(comparison, name)), skip_special_tokens=False))
        for name in ("prompt", "expected", "found")
    }
    return {**asdict(comparison), "compared": comparison.tokens, **words}


def figures(place: ProgramFolders, reference: Any, readers: Mapping[str, TokenReader]) -> dict[str, Any]:
    rows = place.rows("judged")[:JUDGED_WINDOWS]
    return figures_on(rows, (logits_of(reference, row) for row in rows), readers)


def figures_on(
    rows: Sequence[Sequence[int]],
    exact: Iterable[Array],
    readers: Mapping[str, TokenReader],
    tie: float = 0.0,
) -> dict[str, Any]:
    """Figures on held-out text: of each reader, and of those on HTP compared with the same on the CPU.
    `exact` are float's logits of each row. With the tokens that each read in a second."""
    found: dict[str, list[verdicts.Window]] = {}
    times = dict.fromkeys(readers, 0.0)
    for row, expected in zip(rows, exact, strict=True):
        read: dict[str, Array] = {}
        for name, reader in readers.items():
            began = time.monotonic()
            reader.restart()
            read[name] = reader.read(row[:-1])
            times[name] += time.monotonic() - began
        for name, logits in read.items():
            found.setdefault(name, []).append(
                verdicts.window_of(logits, expected[: len(logits)], row[1:], tie)
            )
            on_cpu = name.replace("_htp", "_cpu")
            if on_cpu != name and on_cpu in read:
                beside = verdicts.window_of(logits, read[on_cpu], row[1:], tie)
                found.setdefault(f"{name}_cpu", []).append(beside)
    count = sum(len(row) - 1 for row in rows)
    return {
        "tokens": count,
        "windows": len(rows),
        "rates": {name: round(count / max(seconds, 1e-9), 2) for name, seconds in times.items()},
        "positions": {name: verdicts.along(some) for name, some in found.items()},
        **{name: verdicts.figures_as_json(some) for name, some in found.items()},
    }


def _whole(shape: Architecture, text: ForcedText) -> list[int]:
    return [*shape.beginning, *text.prompt, *text.tokens]


def _needed(text: ForcedText) -> int:
    """How many of the last logits of a whole text: its tokens are chosen from all of them but the last."""
    return len(text.tokens) + 1


def genie_figures(
    shape: Architecture,
    reference: Any,
    texts: Sequence[ForcedText],
    logits: Sequence[Array],
    tie: float = 0.0,
) -> dict[str, Any]:
    """Figures of Genie's own logits: of prefill's at the end of each prompt, and of decode's after it."""
    expected = [logits_of(reference, _whole(shape, text), _needed(text))[:-1] for text in texts]
    return _figures_of_texts(texts, expected, logits, tie)


def _figures_of_texts(
    texts: Sequence[ForcedText], expected: Sequence[Array], logits: Sequence[Array], tie: float = 0.0
) -> dict[str, Any]:
    found: dict[str, list[verdicts.Window]] = {f"{kind}_genie": [] for kind in KINDS}
    for text, theirs, rows in zip(texts, expected, logits, strict=True):
        for some, part in zip(found.values(), (slice(0, 1), slice(1, None)), strict=True):
            if len(following := text.tokens[part]):
                some.append(verdicts.window_of(rows[part], theirs[part], following, tie))
    return {name: verdicts.figures_as_json(some) for name, some in found.items()}


def choices(
    shape: Architecture,
    reference: Any,
    prefixes: Sequence[Sequence[int]],
    generated: Sequence[GeneratedText],
    tie: float = 0.0,
) -> dict[str, dict[str, float]]:
    """What float loses by Genie's tokens after each prefix: by the first, which is prefill's choice, and by
    the second, which is decode's after the first."""
    regrets: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for prefix, text in zip(prefixes, generated, strict=True):
        said = text.tokens[:CONTINUED]
        # Genie prints nothing if it chooses to end; of several ends, take float's nearest.
        chosen = [(token,) for token in said] + [ends_of(reference)] * (len(said) < CONTINUED)
        before = [*shape.beginning, *prefix]
        rows = logits_of(reference, [*before, *said])[len(before) - 1 :]
        for kind, row, tokens in zip(KINDS, rows, chosen, strict=False):
            regrets[kind].append(float(row.max() - max(row[token] for token in tokens)))
    return {kind: _loss(regret, tie) for kind, regret in regrets.items()}


def _loss(regrets: Sequence[float], tie: float) -> dict[str, float]:
    count = len(regrets)
    return {
        "tokens": count,
        "first_choice": sum(regret <= tie for regret in regrets) / max(1, count),
        "near_ties": sum(tie < regret < verdicts.NEAR_TIE for regret in regrets),
        "regret": sum(regrets) / max(1, count),
        "worst_regret": max(regrets, default=0.0),
    }


def compiled_of(order: Mapping[str, Any]) -> Compiled:
    out, folder = Path(order["compiled"]), Path(order["model"])
    record = json.loads((out / RECORD).read_text(encoding="utf-8"))
    module, name = COMPILED[through(record)]
    kind: type[Compiled] = getattr(importlib.import_module(module), name)
    shape = read_architecture(folder, record.get("adapter", ""))
    return kind(out, folder, shape, soc_named(record["soc"]), record)


def order_figures(order: Mapping[str, Any]) -> dict[str, Any]:
    compiled = compiled_of(order)
    rows = windows_of(compiled.folder, compiled.shape, order)
    # Float's weights are released before the readers load theirs: of 1B both were 9 GB.
    reference = load_reference(compiled.folder, compiled.shape.adapter)
    require_rope(reference, compiled.shape, compiled.context)
    exact = [logits_of(reference, row) for row in rows]
    del reference
    gc.collect()
    return figures_on(rows, exact, compiled.readers(order["kind"], cpu=order["cpu"]), order["tie"])


def order_answers(order: Mapping[str, Any]) -> dict[str, Any]:
    """What the compiled model says after each prompt, by decode."""
    compiled, who = compiled_of(order), order["who"]
    shape, answers = compiled.shape, []
    reader = compiled.readers("decode", cpu=who == "cpu")[f"decode_{who}"]
    for prompt in order["prompts"]:
        began = time.monotonic()
        reader.restart()
        whole = [*shape.beginning, *prompt]
        text = greedy_text(
            lambda some: reader.read(some)[-1], whole, order["most"], shape.eos, compiled.context
        )
        seconds = time.monotonic() - began
        answers.append({"tokens": list(text.tokens), "stopped": text.stopped, "seconds": seconds})
    return {"answers": answers}


def order_beside_float(order: Mapping[str, Any]) -> dict[str, Any]:
    """Float's text after each prompt, and where those of others first differ from it."""
    compiled, most = compiled_of(order), order["most"]
    shape, reference = compiled.shape, load_reference(compiled.folder, compiled.shape.adapter)
    ends, rows = ends_of(reference), []
    for number, prompt in enumerate(order["prompts"]):
        text = text_of(reference, [*shape.beginning, *prompt], most, ends, compiled.context)
        said: dict[str, Any] = {"float": {"tokens": text.tokens, "stopped": text.stopped}}
        for who, answers in order["answers"].items():
            tokens, stopped = (answers[number][name] for name in ("tokens", "stopped"))
            found = verdicts.compare_text(
                prompt,
                text.tokens,
                text.stopped,
                text.logits,
                ends,
                most,
                lambda _, tokens=tokens, stopped=stopped: (tokens, stopped),  # type: ignore[misc]
                lambda _: False,
            )
            said[who] = {**answers[number], "difference": found.difference and asdict(found.difference)}
        rows.append({"said": said})
    return {"texts": rows}


def order_rounding(order: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of the checkpoint where all is right and only rounded: of windows, and of the texts that Genie
    is made to say; how near two logits must be to change places; and in dB what each part of the layers keeps
    of a row. With the ranges of its activations over the text to `calibrate` by, where they are not given."""
    folder, texts = Path(order["model"]), [ForcedText(**text) for text in order["texts"]]
    shape = read_architecture(folder, order["adapter"])
    # `compile` knows no other cache than the scheme's own.
    cache = compiled_of(order).cache if "compiled" in order else 0
    scheme, calibration = scheme_of(order["through"], order["precision"], cache), []
    if order.get("calibrate"):
        known = windows(folder, shape, Path(order["calibrate"]), order["context"])
        # Decode is quantized by the fewest values, so that it loses most.
        special = special_places(folder, shape, known)
        calibration = [(row, starts(len(row), 1, some)) for row, some in zip(known, special, strict=True)]
    rows, [row] = windows_of(folder, shape, order), windows_of(folder, shape, {**order, **order["few"]})
    model = rounded_model(
        load_reference(folder, shape.adapter),
        [*rows, *(_whole(shape, text) for text in texts)],
        row,
        scheme,
        last=[*(0 for _ in rows), *map(_needed, texts)],
        calibration=calibration,
        ranges=order.get("ranges"),
    )
    count = len(rows)
    of_windows = [
        verdicts.window_of(some[:-1], every[:-1], row[1:])
        for some, every, row in zip(model.rounded, model.exact, rows, strict=False)
    ]
    noise = {verdicts.OF_WINDOWS: verdicts.figures_as_json(of_windows)}
    if texts:
        exact, rounded = ([logits[:-1] for logits in every[count:]] for every in (model.exact, model.rounded))
        noise |= _figures_of_texts(texts, exact, rounded)
    layers = [shape.part(number, order["parts"]) for number in range(order["parts"])]
    kept = model.kept_from([first for first, _ in layers])
    return {
        "noise": noise,
        "tie": verdicts.tie_of(model.exact[:count], model.rounded[:count]),
        "parts": [_part_of(shape, part, order["prefill"], model.kept, kept) for part in layers],
        "ranges": model.rounding.ranges if scheme.bits else {},
    }


def _part_of(
    shape: Architecture,
    part: tuple[int, int],
    prefill: int,
    exact: Mapping[str, Array],
    rounded: Mapping[str, Array],
) -> dict[str, Any]:
    """Of the outputs of a part how far each is at most places, in dB, and the worst block that graphs of each
    kind are judged by: a token that quantizing never saw is a whole block of decode."""
    first, last = part
    caches = (f"past_{kind}_{layer}_out" for layer in range(first, last) for kind in ("key", "value"))
    names = ["logits" if last == shape.num_layers else f"hidden_{last}", *caches]

    def worst(count: int) -> float:
        found = []
        for name in names:
            for start in starts(exact[name].shape[-2], count, ()):
                block = np.s_[..., start : start + count, :]
                found.append(Pair(name, exact[name][block], rounded[name][block]))
        return compare(found)["sqnr_db"]

    return {
        "typical": {name: _typical_db([_by_place(exact[name], rounded[name], -2)]) for name in names},
        "db": {kind: worst(count) for kind, count in zip(KINDS, (prefill, 1), strict=True)},
    }


def _by_place(expected: Array, found: Array, axis: int) -> Array:
    """How loud the error is beside what is expected, at each place."""
    others = tuple(index for index in range(expected.ndim) if index != axis % expected.ndim)
    error, signal = (np.square(x, dtype=np.float64).sum(others) for x in (found - expected, expected))
    ratios: Array = error / np.maximum(signal, TINY)
    return ratios


def _typical_db(ratios: Sequence[Array]) -> float:
    """The median: values beyond what calibration saw are cut off at few places, and a mistake is at all."""
    return float(-10 * np.log10(max(float(np.median(np.concatenate(ratios))), TINY)))


def order_genie_choices(order: Mapping[str, Any]) -> dict[str, Any]:
    """Genie's choices after each prefix, by what float loses by them."""
    compiled, prefixes = compiled_of(order), [text["prompt"] for text in order["texts"]]
    generated = generate(Path(order["config"]), prefixes, timeout=order["timeout"])
    reference = load_reference(compiled.folder, compiled.shape.adapter)
    return choices(compiled.shape, reference, prefixes, generated, order["tie"])


def order_genie_figures(order: Mapping[str, Any]) -> dict[str, Any]:
    """Of Genie's own logits; nothing where it cannot be asked for them."""
    compiled, texts = compiled_of(order), [ForcedText(**text) for text in order["texts"]]
    shape = compiled.shape
    logits = forced_logits(Path(order["config"]), texts, shape.vocab_size, timeout=order["timeout"])
    if not logits:
        return {}
    reference = load_reference(compiled.folder, shape.adapter)
    return genie_figures(shape, reference, texts, logits, order["tie"])


def order_parts(order: Mapping[str, Any]) -> dict[str, Any]:
    """How far each part's outputs are from float's, in dB, where its inputs are float's."""
    compiled, kind = compiled_of(order), order["kind"]
    [x] = windows_of(compiled.folder, compiled.shape, order)
    rows: list[dict[str, Any]] = []
    for part in range(compiled.parts):
        first, last = compiled.shape.part(part, compiled.parts)
        decoder = load_decoder(compiled.folder, compiled.shape, len(x), len(x), first, last)
        outputs = outputs_of(decoder, x)
        row: dict[str, Any] = {"part": part, "kind": kind, "layers": [first, last - 1]}
        # One part's binary at a time: that of the part before is released.
        for name, reader in compiled.readers(kind, only=part).items():
            row[name.removeprefix(f"{kind}_")] = _held_to_float(reader, decoder, x, outputs)
        rows.append(row)
        x = outputs[decoder.outputs[0]][0]
    return {"parts": rows}


def _held_to_float(reader: CompiledReader, decoder: Decoder, x: Any, outputs: Sample) -> dict[str, Any]:
    """Of the outputs of a part, the one that is furthest from float's, and how far each is at most places."""
    pairs: dict[str, list[Pair]] = {}
    ratios: dict[str, list[Array]] = {}
    for start, inputs in blocks(decoder, x, outputs, reader.context, reader.count):
        for name, values in reader.alone(inputs).items():
            axis = 3 if "_key_" in name else 2 if "_value_" in name else 1
            expected = outputs[name].take(range(start, start + reader.count), axis)
            found = values.reshape(expected.shape)
            pairs.setdefault(name, []).append(Pair(name, expected, found))
            ratios.setdefault(name, []).append(_by_place(expected, found, axis))
    try:
        worst = {name: compare(pair)["sqnr_db"] for name, pair in pairs.items()}
    except Unusable as error:
        return {"db": -EXACT_DB, "output": str(error), "typical": dict.fromkeys(pairs, -EXACT_DB)}
    name = min(worst, key=lambda name: worst[name])
    typical = {name: _typical_db(ratio) for name, ratio in ratios.items()}
    return {"db": worst[name], "output": name, "typical": typical}


# What rounding alone costs: transformers' own model with the scheme's numbers, never the compiled graph, in
# which mistakes would hide.

ATTENTION = "qnn_ci_rounded"
SCORES = 1 << 24
"""Computed at a time: those of all heads of a long row would fill the memory."""
PROVIDERS_FACTORS = 8
"""Bits to which onnxruntime-qnn converts the second of two activations that MatMul multiplies."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How `compile` rounds. Without `bits` all are halves."""

    bits: int = 0
    """Of activations."""
    weights: int = 0
    cache: int = 0
    """Of keys and values."""
    factors: int = 0
    """Of keys and values in products, where they have fewer there than in the cache."""
    by_channel: float = 0.0
    """Whether each row of weights has a scale of its own, around zero: what the largest becomes."""
    head: int = 0
    """Of the head, where it has a scale for all its weights."""
    norm_in_steps: bool = True
    """Whether RMSNorm is several operators, or one."""
    far: float = FAR
    """What hides a place: the range of the scores holds it."""


SCHEMES = {
    ("genie", "fp16"): Scheme(),
    ("genie", "u16u8"): Scheme(16, 8, 8, factors=PROVIDERS_FACTORS),
    ("genie", FOUR_BITS): Scheme(16, 4, 8, factors=PROVIDERS_FACTORS, by_channel=7.5, head=8),
    ("executorch", "fp16"): Scheme(norm_in_steps=False),
    ("executorch", "16a8w"): Scheme(16, 8, 16, by_channel=127, norm_in_steps=False, far=-100.0),
    ("executorch", FOUR_BITS): Scheme(16, 4, 16, by_channel=7, norm_in_steps=False, far=-100.0),
    ("executorch", "8a8w"): Scheme(8, 8, 8, by_channel=127, norm_in_steps=False, far=-100.0),
}
"""By what the model speaks through, and precision."""


def scheme_of(through: str, precision: str, cache: int = 0) -> Scheme:
    """`cache` is how many bits the compiled graphs give keys and values, where that is a choice."""
    scheme = SCHEMES[through, precision]
    return replace(scheme, cache=cache) if cache and scheme.cache else scheme


Ranges = dict[str, tuple[float, float]]
"""The lowest and the highest value of each activation, by its name."""


@dataclass
class Rounding:
    """Values pass while their ranges are seen, and while float reads; then as numbers of the scheme."""

    scheme: Scheme
    ranges: Ranges = field(default_factory=dict)
    phase: Literal["see", "pass", "round"] = "see"
    places: tuple[int, Tensor] | None = None
    """The length of the row that is seen, and its places that count; None for all."""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """The latest values that a part of the layers hands on."""
    given: Mapping[int, Tensor] = field(default_factory=dict)
    """By layer, what it gets in place of its input."""

    def __call__(self, name: str, values: Tensor, bits: int = 0, *, cache: bool = False) -> Tensor:
        if self.phase == "pass":
            return values
        if self.phase == "round":
            low, high = self.ranges.get(name, (0.0, 0.0))
            return rounded(values, low, high, bits or self.scheme.bits)
        seen = values if cache else self._at_places(values)
        low, high = min(0.0, float(seen.min())), max(0.0, float(seen.max()))
        if cache:
            high = max(-low, high) * MARGIN
            low = -high
        known = self.ranges.get(name, (low, high))
        self.ranges[name] = min(low, known[0]), max(high, known[1])
        return values

    def _at_places(self, values: Tensor) -> Tensor:
        if self.places is None:
            return values
        length, places = self.places
        axes = [axis for axis, size in enumerate(values.shape) if axis and size == length]
        return values.index_select(axes[0], places) if axes else values


def rounded(values: Tensor, low: float, high: float, bits: int) -> Tensor:
    if not bits:
        return values.half().float()
    most = 2**bits - 1
    scale = max(high - low, 1e-9) / most
    zero = round(-low / scale)
    integers: Tensor = ((values / scale).round() + zero).clamp(0, most)
    return (integers - zero) * scale


def rounded_weight(name: str, weight: Tensor, scheme: Scheme) -> Tensor:
    bits = scheme.head if scheme.head and name == "lm_head" else scheme.weights
    if bits and (not scheme.by_channel or bits == scheme.head):
        return rounded(weight, min(0.0, float(weight.min())), max(0.0, float(weight.max())), bits)
    if not bits:
        return weight.half().float()
    scale = weight.abs().amax(-1, keepdim=True).clamp(min=1e-9) / scheme.by_channel
    lowest = -(2 ** (bits - 1)) if scheme.by_channel % 1 else -scheme.by_channel
    return (weight / scale).round().clamp(lowest, 2 ** (bits - 1) - 1) * scale


@dataclass(frozen=True)
class RoundedModel:
    """`exact` and `rounded` are the logits of rows; `kept` is what float's layers hand on while they read
    one. Keys, values and hidden values are named as the graphs' outputs."""

    reference: Any
    rounding: Rounding
    exact: list[Array]
    rounded: list[Array]
    row: Sequence[int]
    kept: Mapping[str, Array]

    def kept_from(self, cuts: Sequence[int]) -> dict[str, Array]:
        """The same of the rounded model, where each layer of `cuts` gets what float's gets."""
        given = {cut: torch.from_numpy(self.kept[f"hidden_{cut}"]) for cut in cuts if cut}
        self.rounding.given = given
        return _kept(self.reference, self.rounding, self.row)


def rounded_model(
    reference: Any,
    rows: Sequence[Sequence[int]],
    row: Sequence[int],
    scheme: Scheme,
    *,
    last: Sequence[int] = (),
    calibration: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
    ranges: Ranges | None = None,
) -> RoundedModel:
    """`reference` is not float's afterwards. `row` is the one of which all is kept. `last` says how many of
    each row's last logits are wanted, and 0 is all. The ranges of activations are those given, or those of
    the rows of `calibration` at their places, or else of the rows themselves."""
    rounding = Rounding(scheme, dict(ranges or {}))
    linear = _hooked(reference, rounding)
    tied = reference.get_input_embeddings().weight
    with torch.no_grad():
        for known, places in calibration:
            rounding.places = len(known), torch.tensor(places)
            _logits(reference, known)
        if calibration or ranges:
            rounding.phase = "pass"
        wanted = list(zip(rows, last or [0] * len(rows), strict=True))
        exact = [_logits(reference, tokens, count) for tokens, count in wanted]
        kept = _kept(reference, rounding, row)
        for name, module in linear.items():
            weight = rounded_weight(name, module.weight, scheme)
            if module.weight is tied:
                module.weight = nn.Parameter(weight)
            else:
                # In its place: a whole 1B beside its checkpoint's pages would be 10 GB.
                module.weight.copy_(weight)
        rounding.phase = "round"
        again = [_logits(reference, tokens, count) for tokens, count in wanted]
    return RoundedModel(reference, rounding, exact, again, row, kept)


def _hooked(reference: Any, rounding: Rounding) -> dict[str, Any]:
    """Its linear modules by name; all that it computes goes through `rounding` from now on."""
    from transformers import AttentionInterface
    from transformers.activations import SiLUActivation
    from transformers.modeling_layers import GradientCheckpointingLayer

    AttentionInterface.register(ATTENTION, functools.partial(_attention, rounding))
    reference.config._attn_implementation = ATTENTION

    def after(name: str, _module: Any, _inputs: Any, output: Tensor) -> Tensor:
        return rounding(name, output)

    def before(name: str, _module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (rounding(f"{name} input", inputs[0]), *inputs[1:])

    def into(layer: int, _module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (rounding.given.get(layer, inputs[0]), *inputs[1:])

    def out_of(layer: int, _module: Any, _inputs: Any, output: Any) -> Any:
        # Gemma 3's layers give a tuple.
        first, *others = output if isinstance(output, tuple) else (output,)
        hidden = rounding.kept[f"hidden_{layer + 1}"] = rounding(f"layer {layer}", first)
        return (hidden, *others) if isinstance(output, tuple) else hidden

    linear: dict[str, Any] = {}
    for name, module in reference.named_modules():
        if isinstance(module, nn.Linear):
            linear[name] = module
            module.register_forward_pre_hook(functools.partial(before, name))
        if isinstance(module, nn.Linear | nn.Embedding):
            module.register_forward_hook(functools.partial(after, name))
        elif isinstance(module, GradientCheckpointingLayer):
            layer = int(name.rpartition(".")[2])
            module.register_forward_pre_hook(functools.partial(into, layer))
            module.register_forward_hook(functools.partial(out_of, layer))
        elif type(module).__name__.endswith("Norm"):
            module.register_forward_hook(functools.partial(_norm, rounding, name))
        elif isinstance(module, nn.SiLU | SiLUActivation):
            module.register_forward_hook(functools.partial(_silu, rounding, name))
    return linear


def _kept(reference: Any, rounding: Rounding, row: Sequence[int]) -> dict[str, Array]:
    with torch.no_grad():
        logits = _logits(reference, row)
    return {**{name: tensor.numpy() for name, tensor in rounding.kept.items()}, "logits": logits}


def _logits(reference: Any, row: Sequence[int], last: int = 0) -> Array:
    result: Array = (
        reference(torch.tensor([list(row)]), use_cache=False, logits_to_keep=last).logits[0].numpy()
    )
    return result


def _norm(rounding: Rounding, name: str, module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Step by step where it is compiled so: a square has the widest range of all."""
    llama = hasattr(module, "variance_epsilon")
    eps, weight = (module.variance_epsilon, module.weight) if llama else (module.eps, 1 + module.weight)
    x = rounding(f"{name} input", inputs[0])
    if rounding.scheme.norm_in_steps:
        squares = rounding(f"{name} squares", x * x)
        mean = rounding(f"{name} mean", squares.mean(-1, keepdim=True) + eps)
        # A root that is rounded to nothing makes the largest quotient, and of nothing none.
        root = rounding(f"{name} root", mean.sqrt())
        quotient = rounding(f"{name} quotient", (x / root).nan_to_num(0.0, torch.inf, -torch.inf))
    else:
        quotient = x / ((x * x).mean(-1, keepdim=True) + eps).sqrt()
    result = rounding(name, quotient * rounding(f"{name} weight", weight))
    if rounding.phase != "round" and not torch.allclose(
        result, output, rtol=1e-3, atol=1e-4 * float(output.abs().max())
    ):
        raise CheckFailed(
            f"{name}: not the norm that is rounded here", fix="report it, with the checkpoint's config.json"
        )
    return result


def _silu(rounding: Rounding, name: str, _module: Any, inputs: tuple[Tensor, ...], _output: Tensor) -> Tensor:
    gate = inputs[0]
    return rounding(name, gate * rounding(f"{name} sigmoid", torch.sigmoid(gate)))


def _attention(
    rounding: Rounding,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' own, where no cache is used. Hidden places are far away as the runtime has them, which
    the range of the scores must hold, too."""
    scheme, layer = rounding.scheme, module.layer_idx
    name = f"layer {layer}"
    query = rounding(f"{name} query", query)
    # What is computed has integers of its own first.
    key = rounding(f"{name} keys", rounding(f"{name} new keys", key), scheme.cache, cache=True)
    value = rounding(f"{name} values", value, scheme.cache, cache=True)
    rounding.kept |= {f"past_key_{layer}_out": key, f"past_value_{layer}_out": value}
    if scheme.factors:
        key = rounding(f"{name} keys", key, scheme.factors, cache=True)
        value = rounding(f"{name} values", value, scheme.factors, cache=True)
    group, count = query.shape[1] // key.shape[1], query.shape[2]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    hidden, mixed = torch.full((count, count), scheme.far).triu(1), list[Tensor]()
    heads = (tensor.split(max(1, SCORES // count**2), 1) for tensor in (query, key, value))
    for some, others, values in zip(*heads, strict=True):
        # Places after a token are empty where decode reads it, and so is their product.
        products = (some @ others.transpose(2, 3)).tril()
        scores = rounding(f"{name} products", products) * scaling
        weights = torch.softmax(rounding(f"{name} scores", scores + hidden), -1)
        mixed.append(rounding(f"{name} mixed", rounding(f"{name} weights", weights) @ values))
    return torch.cat(mixed, 1).transpose(1, 2).contiguous(), None
