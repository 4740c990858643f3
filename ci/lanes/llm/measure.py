"""What is measured of a compiled language model: its texts and logits beside float's, each part of its
layers, and what rounding alone costs the checkpoint. For workers. An order is about one kind of graph: the
emulator cannot load all binaries of a large model at once."""

from __future__ import annotations

import gc
import importlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ci.lanes.llm import verdicts
from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.beginning import load_tokenizer
from ci.lanes.llm.compiled import Compiled, CompiledReader, TokenReader
from ci.lanes.llm.config import read_architecture
from ci.lanes.llm.decoder import Decoder, load_decoder
from ci.lanes.llm.genie import KINDS, RECORD, ForcedText, GeneratedText, forced_logits, through
from ci.lanes.llm.graphs import blocks, outputs_of, starts
from ci.lanes.llm.prompts import special_places, windows, words_after
from ci.lanes.llm.reference import ends_of, greedy_text, load_reference, logits_of, require_rope, text_of
from ci.lanes.llm.rounding import rounded_model, scheme_of
from ci.lanes.llm.suite import LlmRun
from ci.models.arrays import Array, Sample
from ci.suite.accuracy import Pair, Unusable, compare
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
    prompts = [
        stream[97 * (place.run.prompts * index + turn) :][:length]
        for index, length in enumerate(PROMPTS)
        for turn in range(place.run.prompts)
    ]
    generated = generate(prompts, MOST, endless=False)
    tokenizer = load_tokenizer(place.model)
    ends, endless = ends_of(reference), place.endless().eos
    rows = [
        text_row(reference, place.shape, tokenizer, prompt, text, MOST, ends)
        for prompt, text in zip(prompts, generated, strict=True)
    ]
    [long] = generate([stream[:1]], 2 * place.context, endless=True)
    rows.append(text_row(reference, place.shape, tokenizer, stream[:1], long, 2 * place.context, endless))
    every = [text for text in generated if len(text.tokens) > 1]
    later = sum(text.seconds - text.first_seconds for text in every)
    return rows, {
        "tokens_per_second": round(sum(len(text.tokens) - 1 for text in every) / later, 1) if later else 0.0,
        "first_token_seconds": round(sum(text.first_seconds for text in every) / max(1, len(every)), 2),
    }


def text_row(
    reference: Any,
    shape: Architecture,
    tokenizer: Any,
    prompt: Sequence[int],
    text: GeneratedText,
    most: int,
    ends: Sequence[int],
) -> dict[str, Any]:
    """A text of HTP's after a prompt beside float's, and what float loses by each of its tokens."""
    before = [*shape.beginning, *prompt]
    expected = text_of(reference, before, most, ends, shape.context)
    lost = lost_after(reference, shape, prompt, (text.tokens, text.stopped), most, ends)
    said = {
        "float": {"text": words_after(tokenizer, prompt, expected.tokens, special=True)},
        "htp": {
            "text": words_after(tokenizer, prompt, text.tokens, special=True),
            "stopped": text.stopped,
            "difference": verdicts.first_difference(lost),
        },
    }
    return {"prompt": tokenizer.decode(list(prompt), skip_special_tokens=False), "said": said, "lost": lost}


def lost_after(
    reference: Any,
    shape: Architecture,
    prompt: Sequence[int],
    text: tuple[Sequence[int], str],
    most: int,
    ends: Sequence[int],
) -> list[float]:
    """What float loses by each token of a text after a prompt, and by its end, if it has read all before.
    `text` is its tokens and why it stopped; a prompt lacks the token that begins a text."""
    tokens, stopped = text
    before = [*shape.beginning, *prompt]
    room = min(most, shape.context - len(before))
    rows = logits_of(reference, [*before, *tokens], len(tokens) + 1)
    return verdicts.lost_by(tokens, stopped, rows, ends, room)


def figures(place: ProgramFolders, reference: Any, readers: Mapping[str, TokenReader]) -> dict[str, Any]:
    rows = place.rows("judged")[:JUDGED_WINDOWS]
    read = read_windows(rows, (logits_of(reference, row) for row in rows), readers)[0]
    return {name: verdicts.figures_as_json(verdicts.figures_of(windows)) for name, windows in read.items()}


def read_windows(
    rows: Sequence[Sequence[int]], exact: Iterable[Array], readers: Mapping[str, TokenReader]
) -> tuple[dict[str, list[verdicts.Window]], dict[str, float]]:
    """What each reader makes of rows of text beside float, whose logits are `exact`, and those on HTP
    beside the same on the CPU. With the tokens that each read in a second."""
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
            found.setdefault(name, []).append(verdicts.window_of(logits, expected[: len(logits)], row[1:]))
            on_cpu = name.replace("_htp", "_cpu")
            if on_cpu != name and on_cpu in read:
                beside = verdicts.window_of(logits, read[on_cpu], row[1:])
                found.setdefault(f"{name}_cpu", []).append(beside)
    count = sum(len(row) - 1 for row in rows)
    return found, {name: round(count / max(seconds, 1e-9), 2) for name, seconds in times.items()}


def _whole(shape: Architecture, text: ForcedText) -> list[int]:
    return [*shape.beginning, *text.prompt, *text.tokens]


def _needed(text: ForcedText) -> int:
    """How many of the last logits of a whole text: its tokens are chosen from all of them but the last."""
    return len(text.tokens) + 1


def genie_windows(
    shape: Architecture, reference: Any, texts: Sequence[ForcedText], logits: Sequence[Array]
) -> dict[str, list[verdicts.Window]]:
    """Of Genie's own logits: prefill's at the end of each prompt, and decode's after it."""
    expected = [logits_of(reference, _whole(shape, text), _needed(text))[:-1] for text in texts]
    return _windows_of_texts(texts, expected, logits)


def _windows_of_texts(
    texts: Sequence[ForcedText], expected: Sequence[Array], logits: Sequence[Array]
) -> dict[str, list[verdicts.Window]]:
    found: dict[str, list[verdicts.Window]] = {f"{kind}_genie": [] for kind in KINDS}
    for text, theirs, rows in zip(texts, expected, logits, strict=True):
        for some, part in zip(found.values(), (slice(0, 1), slice(1, None)), strict=True):
            if len(following := text.tokens[part]):
                some.append(verdicts.window_of(rows[part], theirs[part], following))
    return found


def _as_json(read: Mapping[str, Sequence[verdicts.Window]]) -> dict[str, list[dict[str, list[float]]]]:
    return {name: [window.as_json() for window in windows] for name, windows in read.items()}


def compiled_of(order: Mapping[str, Any]) -> Compiled:
    out, folder = Path(order["compiled"]), Path(order["model"])
    record = json.loads((out / RECORD).read_text(encoding="utf-8"))
    module, name = COMPILED[through(record)]
    kind: type[Compiled] = getattr(importlib.import_module(module), name)
    shape = read_architecture(folder, record.get("adapter", ""))
    return kind(out, folder, shape, soc_named(record["soc"]), record)


def order_figures(order: Mapping[str, Any]) -> dict[str, Any]:
    compiled, rows = compiled_of(order), order["rows"]
    # Float's weights are released before the readers load theirs: of 1B both were 9 GB.
    reference = load_reference(compiled.folder, compiled.shape.adapter)
    require_rope(reference, compiled.shape, compiled.context)
    exact = [logits_of(reference, row) for row in rows]
    del reference
    gc.collect()
    read, rates = read_windows(rows, exact, compiled.readers(order["kind"], cpu=order["cpu"]))
    return {"read": _as_json(read), "rates": rates}


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


def order_genie_figures(order: Mapping[str, Any]) -> dict[str, Any]:
    """Of Genie's own logits."""
    compiled, texts = compiled_of(order), [ForcedText(**text) for text in order["texts"]]
    shape = compiled.shape
    logits = forced_logits(Path(order["config"]), texts, shape.vocab_size, timeout=order["timeout"])
    reference = load_reference(compiled.folder, shape.adapter)
    return {"read": _as_json(genie_windows(shape, reference, texts, logits))}


def order_rounding(order: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoint where all is right and only rounded: what it makes of windows, and of the texts that
    Genie is made to say; how near two logits must be to change places; and in dB what each part of the layers
    keeps of a row. Activations' ranges are those given, or those of the text to `calibrate` by."""
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
    rows, row = order["rows"], order["few"]
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
    exact, rounded = ([logits[:-1] for logits in every] for every in (model.exact, model.rounded))
    read = _windows_of_texts(texts, exact[count:], rounded[count:]) if texts else {}
    read["windows"] = [
        verdicts.window_of(some, every, row[1:])
        for some, every, row in zip(rounded, exact, rows, strict=False)
    ]
    layers = [shape.part(number, order["parts"]) for number in range(order["parts"])]
    kept = model.kept_from([first for first, _ in layers])
    return {
        "read": _as_json(read),
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
    """Of the outputs of a part how far each is at most places, in dB, and the worst block, by the kind of
    graph: each reads other places, and a token that quantizing never saw is a whole block of decode."""
    first, last = part
    caches = (f"past_{kind}_{layer}_out" for layer in range(first, last) for kind in ("key", "value"))
    names = ["logits" if last == shape.num_layers else f"hidden_{last}", *caches]

    def of_kind(count: int) -> dict[str, Any]:
        typical, pairs = {}, []
        for name in names:
            length, ratios = exact[name].shape[-2], []
            for start in starts(length, count, ()):
                block = np.s_[..., start : start + count, :]
                pairs.append(Pair(name, exact[name][block], rounded[name][block]))
                ratios.append(_by_place(exact[name][block], rounded[name][block], -2))
            typical[name] = _typical_db(ratios)
        return {"typical": typical, "db": compare(pairs)["sqnr_db"]}

    return {kind: of_kind(count) for kind, count in zip(KINDS, (prefill, 1), strict=True)}


def _by_place(expected: Array, found: Array, axis: int) -> Array:
    """How loud the error is beside what is expected, at each place."""
    others = tuple(index for index in range(expected.ndim) if index != axis % expected.ndim)
    error, signal = (np.square(x, dtype=np.float64).sum(others) for x in (found - expected, expected))
    ratios: Array = error / np.maximum(signal, TINY)
    return ratios


def _typical_db(ratios: Sequence[Array]) -> float:
    """The median: values beyond what calibration saw are cut off at few places, and a mistake is at all."""
    return float(-10 * np.log10(max(float(np.median(np.concatenate(ratios))), TINY)))


def order_parts(order: Mapping[str, Any]) -> dict[str, Any]:
    """How far each part's outputs are from float's, in dB, where its inputs are float's."""
    compiled, kind, x = compiled_of(order), order["kind"], order["few"]
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
