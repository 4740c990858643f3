"""Measures a compiled language model: its logits beside float's, each part of its layers, and what rounding
alone costs the checkpoint. Only workers import this. An order is about one kind of graph, because the
emulator cannot load all binaries of a large model at once."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ci.lanes.llm.architecture import Architecture, read_architecture
from ci.lanes.llm.decoder import Decoder, load_decoder
from ci.lanes.llm.genie import CONFIG, forced_logits
from ci.lanes.llm.graphs import (
    Step,
    blocks,
    compared_places,
    empty_caches,
    inputs_of_call,
    outputs_of,
    place_axis,
)
from ci.lanes.llm.orders import (
    EXECUTORCH,
    GENIE,
    KINDS,
    AnswerOrder,
    CompileOrder,
    Decibels,
    ForcedText,
    MeasuredProgram,
    MeasureOrder,
    PartDistances,
    Parts,
    Readings,
    Rounded,
    SpokenText,
    SuiteOrder,
    Window,
    Windows,
    measure_program,
)
from ci.lanes.llm.rounding import (
    SCHEMES,
    load_reference,
    logits_of,
    require_rope,
    rounded_model,
)
from ci.lanes.llm.text import judged_text, windows
from ci.lanes.llm.tiny import JUDGED, QUANTIZED_BY
from ci.lanes.llm.verdicts import WINDOWS, window_of
from ci.lanes.llm.worker import facts_of
from ci.models.inputs import Array, Sample
from provisioning.base.units import EXACT_DB

TINY = 1e-30
RUNTIMES = {GENIE: "ci.lanes.llm.contexts", EXECUTORCH: "ci.lanes.llm.executorch"}
"""These modules have `compile_checkpoint`, `htp_step` and `cpu_step`. They are imported when needed, because
both load a QNN."""
SUITE_TOKENS, SUITE_PREFIXES = 1016, 100
"""A suite reads this many tokens of its text, eight windows that fill the context, and makes Genie continue
this many prefixes."""


def _runtime_of(order: CompileOrder) -> Any:
    return importlib.import_module(RUNTIMES[order.through])


def order_suite(order: SuiteOrder) -> MeasuredProgram:
    """Compile a program of a suite as `compile` does, and measure it as `check` does."""
    compiling, folder = replace(order.compiled, into=order.into), Path(order.compiled.model)
    shape = read_architecture(folder)
    if compiling.quantized:
        rows = windows(folder, shape, folder / QUANTIZED_BY, compiling.context)
        compiling = replace(compiling, calibration=rows)
    facts = _runtime_of(compiling).compile_checkpoint(compiling)
    text = judged_text(compiling, shape, folder / JUDGED, SUITE_TOKENS, SUITE_PREFIXES)
    measure = MeasureOrder(compiled=compiling, text=text, timeout=order.timeout)
    return measure_program(lambda **order: facts_of(order), measure, facts.size)


def order_figures(order: MeasureOrder) -> Readings:
    """Compare what a kind of graph computes of rows of text with the float model."""
    compiled, rows = order.compiled, order.text.rows
    shape = read_architecture(Path(compiled.model))
    # Float's weights are released before the reader loads its own: of 1B both were 9 GB.
    reference = load_reference(Path(compiled.model))
    require_rope(reference, shape, compiled.context)
    exact = [logits_of(reference, row) for row in rows]
    del reference
    gc.collect()
    reader, results = reader_of(compiled, shape, order.kind), list[Window]()
    for row, logits in zip(rows, exact, strict=True):
        reader.restart()
        results.append(window_of(reader.read(row[:-1]), logits[:-1], row[1:]))
    return Readings({f"{order.kind}_htp": results})


def order_answer(order: AnswerOrder) -> SpokenText:
    """Let the compiled model answer a prompt with decode; it chooses its top token each time."""
    compiled = order.compiled
    shape = read_architecture(Path(compiled.model))
    reader, tokens = reader_of(compiled, shape, "decode"), list[int]()
    row = reader.read([*shape.beginning, *order.prompt])[-1]
    while (token := int(row.argmax())) not in shape.eos:
        tokens.append(token)
        if len(tokens) == order.most:
            return SpokenText(tokens, "length")
        # With this token, which nobody has read.
        if reader.position + 1 == compiled.context:
            return SpokenText(tokens, "context")
        row = reader.read([token])[-1]
    return SpokenText(tokens, "eos")


def _all_tokens(shape: Architecture, text: ForcedText) -> list[int]:
    return [*shape.beginning, *text.prompt, *text.tokens]


def _logits_count(text: ForcedText) -> int:
    """Count the last logits of a whole text that are needed: its tokens are chosen from all of them but the
    last."""
    return len(text.tokens) + 1


def order_genie(order: MeasureOrder) -> Readings:
    """Compare Genie's own logits with the float model's."""
    compiled, texts = order.compiled, order.text.texts
    shape, config = read_architecture(Path(compiled.model)), Path(compiled.into, CONFIG)
    logits = forced_logits(config, texts, shape.vocab_size, timeout=order.timeout)
    return Readings(genie_windows(shape, load_reference(Path(compiled.model)), texts, logits))


def genie_windows(
    shape: Architecture, reference: Any, texts: Sequence[ForcedText], logits: Sequence[Array]
) -> Windows:
    """Compare prefill's logits at the end of each prompt, and decode's after it."""
    exact = [logits_of(reference, _all_tokens(shape, text), _logits_count(text))[:-1] for text in texts]
    return _windows_of_texts(texts, exact, logits)


def _windows_of_texts(
    texts: Sequence[ForcedText], exact: Sequence[Array], logits: Sequence[Array]
) -> Windows:
    results: Windows = {f"{kind}_genie": [] for kind in KINDS}
    for text, floats, rows in zip(texts, exact, logits, strict=True):
        for of_kind, part in zip(results.values(), (slice(0, 1), slice(1, None)), strict=True):
            if following := text.tokens[part]:
                of_kind.append(window_of(rows[part], floats[part], following))
    return results


def order_rounding(order: MeasureOrder) -> Rounded:
    """Measure a checkpoint in which everything is right and only rounded: what it makes of windows and of
    Genie's texts, and what each part of the layers keeps of a row."""
    compiled, text = order.compiled, order.text
    folder, texts, rows = Path(compiled.model), text.texts, text.rows
    shape, scheme = read_architecture(folder), SCHEMES[compiled.through, compiled.precision]
    model = rounded_model(
        load_reference(folder),
        [*rows, *(_all_tokens(shape, text) for text in texts)],
        text.few,
        scheme,
        last=[*(0 for _ in rows), *map(_logits_count, texts)],
        calibration=compiled.calibration,
    )
    count = len(rows)
    exact = [logits[:-1] for logits in model.exact]
    rounded = [logits[:-1] for logits in model.rounded]
    results = _windows_of_texts(texts, exact[count:], rounded[count:]) if texts else {}
    results[WINDOWS] = [
        window_of(rounded_row, exact_row, row[1:])
        for rounded_row, exact_row, row in zip(rounded, exact, rows, strict=False)
    ]
    layers = [shape.part(number, compiled.parts) for number in range(compiled.parts)]
    values = model.outputs_from([first for first, _ in layers])
    return Rounded(results, [_decibels_of(shape, part, model.outputs, values) for part in layers])


def _decibels_of(
    shape: Architecture, part: tuple[int, int], exact: Mapping[str, Array], rounded: Mapping[str, Array]
) -> Decibels:
    """Return the SQNR of the outputs of some layers."""
    first, last = part
    caches = (f"past_{kind}_{layer}_out" for layer in range(first, last) for kind in ("key", "value"))
    names = ["logits" if last == shape.num_layers else f"hidden_{last}", *caches]
    return {name: _typical([_errors(exact[name], rounded[name], -2)]) for name in names}


def _errors(reference: Array, values: Array, axis: int) -> Array:
    """Return the error per unit of signal at each position; positions are along `axis`."""
    axes = tuple(index for index in range(reference.ndim) if index != axis % reference.ndim)
    error, signal = (np.square(x, dtype=np.float64).sum(axes) for x in (values - reference, reference))
    ratios: Array = error / np.maximum(signal, TINY)
    return ratios


def _typical(errors: Sequence[Array]) -> float:
    """Return the SQNR at the median position in dB; the lowest if any value is not finite."""
    ratios = np.concatenate(errors)
    if not np.isfinite(ratios).all():
        return -EXACT_DB
    return float(-10 * np.log10(max(np.median(ratios), TINY)))


def order_parts(order: MeasureOrder) -> Parts:
    """Measure how far each part's outputs are from float's if its inputs are float's."""
    compiled, distances = order.compiled, list[PartDistances]()
    shape, runtime = read_architecture(Path(compiled.model)), _runtime_of(compiled)
    x: Array | Sequence[int] = order.text.few
    count = compiled.count(order.kind)
    for number in range(compiled.parts):
        first, last = shape.part(number, compiled.parts)
        decoder = load_decoder(Path(compiled.model), shape, len(x), len(x), first, last)
        outputs = outputs_of(decoder, x)
        # One part's binary at a time: that of the part before is released.
        of_part = compiled, shape, order.kind, [number]
        sides = [_distance(runtime.htp_step(*of_part), compiled.context, count, decoder, x, outputs)]
        if compiled.quantized:
            sides.append(_distance(runtime.cpu_step(*of_part), compiled.context, count, decoder, x, outputs))
        distances.append(PartDistances(number, order.kind, (first, last - 1), *sides))
        x = outputs[decoder.outputs[0]][0]
    return Parts(distances)


def _distance(
    step: Step, context: int, count: int, decoder: Decoder, x: Array | Sequence[int], outputs: Sample
) -> Decibels:
    errors: dict[str, list[Array]] = {}
    for start, inputs in blocks(decoder, x, outputs, context, count, compared_places(len(x), count)):
        for name, values in step(inputs).items():
            axis = place_axis(name) if name.startswith("past_") else 1
            reference = outputs[name].take(range(start, start + count), axis)
            errors.setdefault(name, []).append(_errors(reference, values.reshape(reference.shape), axis))
    return {name: _typical(rows) for name, rows in errors.items()}


# What reads tokens with graphs of static shapes.


def reader_of(order: CompileOrder, shape: Architecture, kind: str) -> GraphReader:
    """Return a reader that runs all parts of a kind of graph on HTP."""
    step = _runtime_of(order).htp_step(order, shape, kind, range(order.parts))
    return GraphReader(shape, order.context, order.count(kind), step)


@dataclass
class GraphReader:
    """Reads tokens block by block, and keeps their cache."""

    shape: Architecture
    context: int
    count: int
    step: Step

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        layers = range(self.shape.num_layers)
        self.position, self._caches = 0, empty_caches(self.shape, layers, self.context - self.count)

    def read(self, tokens: Sequence[int]) -> Array:
        rows = []
        for start in range(0, len(tokens), self.count):
            block = tokens[start : start + self.count]
            outputs = self.step(
                inputs_of_call(self.shape, self.context, self.count, block, self.position, self._caches)
            )
            for name in (name for name in outputs if name.startswith("past_")):
                self._keep(name.replace("_out", "_in"), outputs[name], len(block))
            self.position += len(block)
            rows.append(outputs["logits"].reshape(self.count, -1)[: len(block)])
        return np.concatenate(rows).astype(np.float32)

    def _keep(self, name: str, new: Array, count: int) -> None:
        """Store the first `count` values behind those in the cache. Values that do not fit are read in this
        call only."""
        cache, axis = self._caches[name], place_axis(name)
        target = (slice(None),) * axis + (slice(self.position, self.position + count),)
        source = (slice(None),) * axis + (slice(0, cache[target].shape[axis]),)
        cache[target] = new[source]
