"""What is measured of a compiled language model: its logits beside float's, each part of its layers, and what
rounding alone costs the checkpoint. For workers. An order is about one kind of graph: the emulator cannot
load all binaries of a large model at once."""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ci.lanes.llm.architecture import Architecture, read_architecture
from ci.lanes.llm.decoder import Decoder, load_decoder
from ci.lanes.llm.genie import CONFIG, forced_logits
from ci.lanes.llm.graphs import blocks, compared_places, outputs_of, place_axis
from ci.lanes.llm.orders import (
    EXECUTORCH,
    GENIE,
    KINDS,
    AnswerOrder,
    CompileOrder,
    Distance,
    ForcedText,
    MeasuredProgram,
    MeasureOrder,
    PartDistances,
    Parts,
    Readings,
    Rounded,
    SpokenText,
    SuiteOrder,
    Windows,
)
from ci.lanes.llm.prompts import judged_text, windows
from ci.lanes.llm.readers import Step, readers, steps
from ci.lanes.llm.rounding import (
    SCHEMES,
    greedy_text,
    load_reference,
    logits_of,
    require_ends,
    require_rope,
    rounded_model,
)
from ci.lanes.llm.verdicts import tie_of, window_of
from ci.models.arrays import Array, Sample
from ci.suite.accuracy import Pair, Unusable, compare
from provisioning.base.units import EXACT_DB

TINY = 1e-30
COMPILERS = {
    GENIE: ("ci.lanes.llm.checkpoint_compile", "order_compile"),
    EXECUTORCH: ("ci.lanes.llm.programs", "order_program"),
}
"""Imported when needed, as each loads another QNN."""
SUITE_TOKENS, SUITE_PREFIXES = 1016, 100
"""Of a suite's text: eight windows that fill the context, and texts that Genie is made to say."""


def _shape_of(order: CompileOrder) -> Architecture:
    return read_architecture(Path(order.model), order.adapter)


def order_suite(order: SuiteOrder) -> MeasuredProgram:
    """A program of a suite, as `compile` makes it and `check` reads it."""
    compiling, folder = replace(order.compiled, into=order.into), Path(order.compiled.model)
    shape = _shape_of(compiling)
    if compiling.quantized:
        rows = windows(folder, shape, Path(order.calibrate), compiling.context)
        compiling = replace(compiling, calibration=rows)
    module, name = COMPILERS[compiling.through]
    written = getattr(importlib.import_module(module), name)(compiling)
    text = judged_text(compiling, shape, Path(order.judged), SUITE_TOKENS, SUITE_PREFIXES)
    config = str(Path(order.into, CONFIG))
    measure = MeasureOrder(compiled=compiling, text=text, config=config, timeout=order.timeout)
    of_kinds = [replace(measure, kind=kind) for kind in KINDS]
    readings = [order_figures(of_kind) for of_kind in of_kinds]
    if text.texts:
        readings.append(order_genie(measure))
    return MeasuredProgram(
        written.size,
        Readings.of(readings),
        order_rounding(measure),
        [part for of_kind in of_kinds for part in order_parts(of_kind).parts],
        text.lengths,
    )


def order_figures(order: MeasureOrder) -> Readings:
    """What each reader makes of rows of text beside float, and those on HTP beside the same on the CPU."""
    compiled, shape = order.compiled, _shape_of(order.compiled)
    rows = [row[: order.text.lengths[order.kind]] for row in order.text.rows]
    # Float's weights are released before the readers load theirs: of 1B both were 9 GB.
    reference = load_reference(Path(compiled.model), shape.adapter)
    require_rope(reference, shape, compiled.context)
    require_ends(reference, shape)
    exact = [logits_of(reference, row) for row in rows]
    del reference
    gc.collect()
    of_kind = readers(compiled, shape, order.kind, cpu=order.cpu)
    found: Windows = {}
    times = dict.fromkeys(of_kind, 0.0)
    for row, expected in zip(rows, exact, strict=True):
        logits: dict[str, Array] = {}
        for name, reader in of_kind.items():
            began = time.monotonic()
            reader.restart()
            logits[name] = reader.read(row[:-1])
            times[name] += time.monotonic() - began
        for name, ours in logits.items():
            found.setdefault(name, []).append(window_of(ours, expected[: len(ours)], row[1:]))
            on_cpu = name.replace("_htp", "_cpu")
            if on_cpu != name and on_cpu in logits:
                found.setdefault(f"{name}_cpu", []).append(window_of(ours, logits[on_cpu], row[1:]))
    count = sum(len(row) - 1 for row in rows)
    return Readings(found, {name: round(count / max(seconds, 1e-9), 2) for name, seconds in times.items()})


def order_answer(order: AnswerOrder) -> SpokenText:
    """What the compiled model says after a prompt, by decode."""
    shape = _shape_of(order.compiled)
    reader = readers(order.compiled, shape, "decode")["decode_htp"]
    reader.restart()
    began = time.monotonic()
    tokens, stopped = greedy_text(
        lambda some: reader.read(some)[-1],
        [*shape.beginning, *order.prompt],
        order.most,
        shape.eos,
        order.compiled.context,
    )
    return SpokenText(tokens, stopped, time.monotonic() - began)


def _whole(shape: Architecture, text: ForcedText) -> list[int]:
    return [*shape.beginning, *text.prompt, *text.tokens]


def _needed(text: ForcedText) -> int:
    """How many of the last logits of a whole text: its tokens are chosen from all of them but the last."""
    return len(text.tokens) + 1


def order_genie(order: MeasureOrder) -> Readings:
    """Of Genie's own logits."""
    shape, texts = _shape_of(order.compiled), order.text.texts
    logits = forced_logits(Path(order.config), texts, shape.vocab_size, timeout=order.timeout)
    reference = load_reference(Path(order.compiled.model), shape.adapter)
    return Readings(genie_windows(shape, reference, texts, logits), {})


def genie_windows(
    shape: Architecture, reference: Any, texts: Sequence[ForcedText], logits: Sequence[Array]
) -> Windows:
    """Prefill's at the end of each prompt, and decode's after it."""
    expected = [logits_of(reference, _whole(shape, text), _needed(text))[:-1] for text in texts]
    return _windows_of_texts(texts, expected, logits)


def _windows_of_texts(
    texts: Sequence[ForcedText], expected: Sequence[Array], logits: Sequence[Array]
) -> Windows:
    found: Windows = {f"{kind}_genie": [] for kind in KINDS}
    for text, theirs, rows in zip(texts, expected, logits, strict=True):
        for some, part in zip(found.values(), (slice(0, 1), slice(1, None)), strict=True):
            if following := text.tokens[part]:
                some.append(window_of(rows[part], theirs[part], following))
    return found


def order_rounding(order: MeasureOrder) -> Rounded:
    """The checkpoint where all is right and only rounded: what it makes of windows and of Genie's texts, and
    what each part of the layers keeps of a row."""
    compiled, text = order.compiled, order.text
    folder, texts, rows = Path(compiled.model), text.texts, text.rows
    shape, scheme = _shape_of(compiled), SCHEMES[compiled.through, compiled.precision]
    model = rounded_model(
        load_reference(folder, shape.adapter),
        [*rows, *(_whole(shape, text) for text in texts)],
        text.few,
        scheme,
        last=[*(0 for _ in rows), *map(_needed, texts)],
        calibration=compiled.calibration,
    )
    count = len(rows)
    exact, rounded = ([logits[:-1] for logits in every] for every in (model.exact, model.rounded))
    read = _windows_of_texts(texts, exact[count:], rounded[count:]) if texts else {}
    read["windows"] = [
        window_of(some, every, row[1:]) for some, every, row in zip(rounded, exact, rows, strict=False)
    ]
    layers = [shape.part(number, compiled.parts) for number in range(compiled.parts)]
    kept = model.kept_from([first for first, _ in layers])
    return Rounded(
        read,
        tie_of(model.exact[:count], model.rounded[:count]),
        [_distances(shape, part, compiled.prefill, model.kept, kept) for part in layers],
    )


def _distances(
    shape: Architecture,
    part: tuple[int, int],
    prefill: int,
    exact: Mapping[str, Array],
    rounded: Mapping[str, Array],
) -> dict[str, Distance]:
    """By the kind of graph: each reads other places, and a token that quantizing never saw is a whole block
    of decode."""
    first, last = part
    caches = (f"past_{kind}_{layer}_out" for layer in range(first, last) for kind in ("key", "value"))
    names = ["logits" if last == shape.num_layers else f"hidden_{last}", *caches]

    def of_kind(count: int) -> Distance:
        held = _Held()
        for name in names:
            for start in compared_places(exact[name].shape[-2], count):
                block = np.s_[..., start : start + count, :]
                held.add(name, exact[name][block], rounded[name][block], -2)
        return held.distance

    return {kind: of_kind(count) for kind, count in zip(KINDS, (prefill, 1), strict=True)}


class _Held:
    """The outputs of a part beside float's, block by block."""

    def __init__(self) -> None:
        self.pairs: dict[str, list[Pair]] = {}
        self.ratios: dict[str, list[Array]] = {}

    def add(self, name: str, expected: Array, found: Array, axis: int) -> None:
        """`axis` has the places."""
        others = tuple(index for index in range(expected.ndim) if index != axis % expected.ndim)
        error, signal = (np.square(x, dtype=np.float64).sum(others) for x in (found - expected, expected))
        self.pairs.setdefault(name, []).append(Pair(name, expected, found))
        self.ratios.setdefault(name, []).append(error / np.maximum(signal, TINY))

    @property
    def distance(self) -> Distance:
        try:
            worst = {name: compare(pairs)["sqnr_db"] for name, pairs in self.pairs.items()}
        except Unusable as error:
            return Distance(-EXACT_DB, str(error), dict.fromkeys(self.pairs, -EXACT_DB))
        output = min(worst, key=lambda name: worst[name])
        # The median: values beyond what calibration saw are cut off at few places, and a mistake is at all.
        medians = {name: float(np.median(np.concatenate(ratios))) for name, ratios in self.ratios.items()}
        typical = {name: float(-10 * np.log10(max(median, TINY))) for name, median in medians.items()}
        return Distance(worst[output], output, typical)


def order_parts(order: MeasureOrder) -> Parts:
    """How far each part's outputs are from float's, where its inputs are float's."""
    compiled, shape, found = order.compiled, _shape_of(order.compiled), list[PartDistances]()
    x: Any = order.text.few
    for number in range(compiled.parts):
        first, last = shape.part(number, compiled.parts)
        decoder = load_decoder(Path(compiled.model), shape, len(x), len(x), first, last)
        outputs = outputs_of(decoder, x)
        # One part's binary at a time: that of the part before is released.
        held = {
            where: _distance(step, compiled.context, compiled.count(order.kind), decoder, x, outputs)
            for where, step in steps(compiled, shape, order.kind, [number]).items()
        }
        found.append(PartDistances(number, order.kind, (first, last - 1), held["htp"], held.get("cpu")))
        x = outputs[decoder.outputs[0]][0]
    return Parts(found)


def _distance(step: Step, context: int, count: int, decoder: Decoder, x: Any, outputs: Sample) -> Distance:
    held = _Held()
    for start, inputs in blocks(decoder, x, outputs, context, count, compared_places(len(x), count)):
        for name, values in step(inputs).items():
            axis = place_axis(name) if name.startswith("past_") else 1
            expected = outputs[name].take(range(start, start + count), axis)
            held.add(name, expected, values.reshape(expected.shape), axis)
    return held.distance
