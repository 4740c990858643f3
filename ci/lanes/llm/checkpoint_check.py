"""A compiled checkpoint's logits held to float's, and the part that loses them. For workers.

Each order is about one kind of graph, because the emulator cannot load all binaries of a large model in one
process."""

from __future__ import annotations

import functools
import gc
import importlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ci.lanes.llm.architecture import Architecture, read_architecture
from ci.lanes.llm.arrays import Array, Sample
from ci.lanes.llm.beginning import load_tokenizer
from ci.lanes.llm.compiled import Compiled, CompiledReader
from ci.lanes.llm.decoder import Decoder, load_decoder
from ci.lanes.llm.genie import KINDS, RECORD, ForcedText, forced_logits, generate, through
from ci.lanes.llm.graphs import blocks, outputs_of, starts
from ci.lanes.llm.judge import OF_WINDOWS, compare_text, figures_of, tie_of, window_of
from ci.lanes.llm.judged import windows_of
from ci.lanes.llm.measure import (
    choices,
    choosing,
    chosen_of,
    figures_beside,
    figures_on,
    genie_figures,
    whole_text,
    windows,
)
from ci.lanes.llm.prompts import CHAT_PLACE, CHAT_SHARE, read_corpus, special_places
from ci.lanes.llm.quality import absolute
from ci.lanes.llm.reference import (
    Text,
    ends_of,
    greedy_text,
    load_reference,
    logits_of,
    require_rope,
    text_of,
)
from ci.pipeline.accuracy import Pair, Unusable, compare
from provisioning.base.units import EXACT_DB
from provisioning.manifest import soc_named

TINY = 1e-30
CALLS, ENOUGH = 20, 0.5
"""At most so many calls, and about so many seconds, to measure a pace."""


def compiled_of(order: Mapping[str, Any]) -> Compiled:
    out, folder = Path(order["compiled"]), Path(order["model"])
    record = json.loads((out / RECORD).read_text(encoding="utf-8"))
    kind = Compiled
    if through(record) == "executorch":
        # It never imports what Genie's workers do, which load another QNN.
        from ci.lanes.llm import program_steps

        kind = program_steps.LoweredProgram
    shape = read_architecture(folder, record.get("adapter", ""))
    return kind(out, folder, shape, soc_named(record["soc"]), record)


def _rows(compiled: Compiled, order: Mapping[str, Any]) -> list[list[int]]:
    return windows_of(compiled.folder, compiled.shape, order)


def order_pace(order: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds until all is loaded, and then for a token, by reader."""
    compiled, paces = compiled_of(order), {}
    row = _rows(compiled, order)[0]
    began = time.monotonic()
    readers = compiled.readers(order["kind"], cpu=order["cpu"])
    for reader in readers.values():
        # The first time takes longer.
        reader.read(row[: reader.count])
        reader.restart()
    ready = time.monotonic() - began
    for name, reader in readers.items():

        def read(reader: CompiledReader = reader) -> None:
            reader.restart()
            reader.read(row[: reader.count])

        paces[name] = _seconds_of(read) / min(len(row), reader.count)
    return {"ready": ready, "pace": paces}


def _seconds_of(call: Callable[[], object]) -> float:
    """The mean of some calls: a short one alone says little on a busy machine."""
    began, calls = time.monotonic(), 0
    while not calls or (calls < CALLS and time.monotonic() - began < ENOUGH):
        call()
        calls += 1
    return (time.monotonic() - began) / calls


def order_part_pace(order: Mapping[str, Any]) -> dict[str, Any]:
    """The same of the last part, where the head is: the binaries of all parts may be more than the emulator
    loads. All parts read a token in as many times that."""
    compiled, kind = compiled_of(order), order["kind"]
    number = compiled.parts - 1
    first, last = compiled.shape.part(number, compiled.parts)
    began = time.monotonic()
    readers = compiled.readers(kind, only=number)
    loaded = time.monotonic() - began
    count = next(iter(readers.values())).count
    row: Any = _rows(compiled, order)[0][: 2 * count + 1]
    if first:
        row = np.random.default_rng(1).normal(size=(len(row), compiled.shape.hidden_size)).astype(np.float32)
    decoder = load_decoder(compiled.folder, compiled.shape, len(row), len(row), first, last)
    outputs, paces = outputs_of(decoder, row), dict[str, float]()
    for name, reader in readers.items():
        two = list(blocks(decoder, row, outputs, reader.context, reader.count))[:2]
        began = time.monotonic()
        # The first time takes longer.
        reader.alone(two[0][1])
        loaded += time.monotonic() - began
        paces[name] = _seconds_of(functools.partial(reader.alone, two[-1][1])) / count
    return {"ready": loaded, "pace": paces}


def order_float_pace(order: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of float: to import and to load it, for a row, for each of its tokens, and to judge one; and
    what all this took."""
    compiled = compiled_of(order)
    row, times = _rows(compiled, order)[0], [time.monotonic()]
    importlib.import_module("transformers.modeling_utils")
    times.append(time.monotonic())
    reference = load_reference(compiled.folder, compiled.shape.adapter)
    logits_of(reference, row[:2])
    times.append(time.monotonic())
    logits_of(reference, row[:1])
    times.append(time.monotonic())
    logits = logits_of(reference, row)
    times.append(time.monotonic())
    window_of(logits[:-1], logits[:-1], row[1:])
    times.append(time.monotonic())
    start, ready, one, many, judge = np.diff(times).tolist()
    paces = {"row": one, "token": max(0.0, many - one) / len(row), "judge": judge / len(row)}
    return {"start": start, "ready": ready, **paces, "spent": times[-1] - times[0]}


def order_figures(order: Mapping[str, Any]) -> dict[str, Any]:
    compiled = compiled_of(order)
    rows = _rows(compiled, order)
    exact = _exact(compiled, rows)
    return figures_on(rows, exact, compiled.readers(order["kind"], cpu=order["cpu"]), order["tie"])


def _exact(compiled: Compiled, rows: Sequence[Sequence[int]]) -> list[Array]:
    """Float's logits. Its weights are released before the readers load theirs: of 1B both were 9 GB."""
    reference = load_reference(compiled.folder, compiled.shape.adapter)
    require_rope(reference, compiled.shape, compiled.context)
    exact = [logits_of(reference, row) for row in rows]
    del reference
    gc.collect()
    return exact


def order_answers(order: Mapping[str, Any]) -> dict[str, Any]:
    """What float (`who`), or the compiled model by decode, says after each prompt."""
    compiled, who = compiled_of(order), order["who"]
    shape, most, context = compiled.shape, order["most"], compiled.context
    if who == "float":
        reference = load_reference(compiled.folder, shape.adapter)
        ends = ends_of(reference)

        def answer(tokens: Sequence[int]) -> Text:
            return text_of(reference, tokens, most, ends, context)

    else:
        reader = compiled.readers("decode", cpu=who == "cpu")[f"decode_{who}"]

        def answer(tokens: Sequence[int]) -> Text:
            reader.restart()
            return greedy_text(lambda some: reader.read(some)[-1], tokens, most, shape.eos, context)

    answers = []
    for prompt in order["prompts"]:
        began = time.monotonic()
        text = answer([*shape.beginning, *prompt])
        answers.append(
            {"tokens": list(text.tokens), "stopped": text.stopped, "seconds": time.monotonic() - began}
        )
    return {"answers": answers}


def order_beside_float(order: Mapping[str, Any]) -> dict[str, Any]:
    """Float's text after each prompt, and where those of others first differ from it."""
    compiled, most = compiled_of(order), order["most"]
    shape, reference = compiled.shape, load_reference(compiled.folder, compiled.shape.adapter)
    ends, rows = ends_of(reference), []
    for number, prompt in enumerate(order["prompts"]):
        expected = text_of(reference, [*shape.beginning, *prompt], most, ends, compiled.context)
        said: dict[str, Any] = {"float": {"tokens": expected.tokens, "stopped": expected.stopped}}
        for who, answers in order["answers"].items():
            said[who] = _beside(expected, answers[number], prompt, ends, most)
        rows.append({"said": said})
    return {"texts": rows}


def _beside(
    expected: Text, answer: Mapping[str, Any], prompt: Sequence[int], ends: Sequence[int], most: int
) -> dict[str, Any]:
    """An answer with the place at which it first differs from float's."""
    found = compare_text(
        prompt,
        expected.tokens,
        expected.stopped,
        expected.logits,
        ends,
        most,
        lambda _: (answer["tokens"], answer["stopped"]),
        lambda _: False,
    )
    return {**answer, "difference": found.difference and asdict(found.difference)}


def order_noise(order: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of the checkpoint where all is right and only rounded: of windows, and of the texts that Genie
    is made to say; how near two logits must be to change places; and in dB what each part of the layers keeps
    of a row. With the ranges of its activations over the text to `calibrate` by, where they are not given."""
    from ci.lanes.llm.noise import rounded_model, scheme_of

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
    every = [*rows, *(whole_text(shape, text) for text in texts)]
    model = rounded_model(
        load_reference(folder, shape.adapter),
        every,
        row,
        scheme,
        last=[*(0 for _ in rows), *map(chosen_of, texts)],
        calibration=calibration,
        ranges=order.get("ranges"),
    )
    count = len(rows)
    noise = {OF_WINDOWS: figures_of_rows(rows, model.exact[:count], model.rounded[:count])}
    if texts:
        both = [
            [choosing(text, row) for text, row in zip(texts, logits[count:], strict=True)]
            for logits in (model.exact, model.rounded)
        ]
        noise |= figures_beside(texts, both[0], both[1])
    layers = [shape.part(number, order["parts"]) for number in range(order["parts"])]
    exact, rounded = model.kept, model.kept_from([first for first, _ in layers])
    return {
        "noise": noise,
        "tie": tie_of(model.exact[:count], model.rounded[:count]),
        "parts": [_kept(shape, part, order["prefill"], exact, rounded) for part in layers],
        "absolute": _by_itself(folder, shape, order, rows, model.exact),
        "ranges": model.rounding.ranges if scheme.bits else {},
    }


def _by_itself(
    folder: Path,
    shape: Architecture,
    order: Mapping[str, Any],
    rows: Sequence[Sequence[int]],
    logits: Sequence[Array],
) -> dict[str, Any]:
    """Float's, of the windows that are plain text. Without a token that begins a text nothing predicts the
    first one."""
    first = max(1, len(shape.beginning))
    plain = [
        row for place, row in enumerate(zip(rows, logits, strict=False)) if place % CHAT_SHARE != CHAT_PLACE
    ]
    judged = [row[first:] for row, _ in plain]
    nats = sum(
        float(window_of(logits[first - 1 : -1], logits[first - 1 : -1], row[first:]).theirs.sum())
        for row, logits in plain
    )
    return absolute(load_tokenizer(folder), judged, nats, read_corpus(Path(order["text"])))


def _kept(
    shape: Architecture,
    part: tuple[int, int],
    prefill: int,
    exact: Mapping[str, Array],
    rounded: Mapping[str, Array],
) -> dict[str, Any]:
    """Of the outputs of a part the worst at most places, in dB, and the worst block that graphs of each kind
    are judged by: a token that quantizing never saw is a whole block of decode."""
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
        "typical_db": min(_typical_db([_by_place(exact[name], rounded[name], -2)]) for name in names),
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


def figures_of_rows(
    rows: Sequence[Sequence[int]], exact: Sequence[Array], rounded: Sequence[Array]
) -> dict[str, Any]:
    windows = [
        window_of(some[:-1], every[:-1], row[1:])
        for some, every, row in zip(rounded, exact, rows, strict=True)
    ]
    return {name: asdict(figure) for name, figure in figures_of(windows).items()}


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
    [x] = _rows(compiled, order)
    rows: list[dict[str, Any]] = []
    for part in range(compiled.parts):
        first, last = compiled.shape.part(part, compiled.parts)
        decoder = load_decoder(compiled.folder, compiled.shape, len(x), len(x), first, last)
        outputs = outputs_of(decoder, x)
        row: dict[str, Any] = {"part": part, "kind": kind, "layers": [first, last - 1]}
        # One part's binary at a time: that of the part before is released.
        for name, reader in compiled.readers(kind, only=part).items():
            row[name.removeprefix(f"{kind}_")] = _worst(reader, decoder, x, outputs)
        rows.append(row)
        x = outputs[decoder.outputs[0]][0]
    return {"parts": rows}


def _worst(reader: CompiledReader, decoder: Decoder, x: Any, outputs: Sample) -> dict[str, Any]:
    """Of the outputs of a part, the one that is furthest from float's, and how far all are at most places."""
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
        return {"db": -EXACT_DB, "output": str(error), "typical_db": -EXACT_DB}
    name = min(worst, key=lambda name: worst[name])
    return {"db": worst[name], "output": name, "typical_db": min(map(_typical_db, ratios.values()))}
