"""A compiled checkpoint's logits held to float's, and the part that loses them. For workers.

Each order is about one kind of graph, because the emulator cannot load all binaries of a large model in one
process."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ci.lanes.llm.architecture import Architecture, read_architecture
from ci.lanes.llm.arrays import Array, Sample
from ci.lanes.llm.checkpoint_compile import on_cpu_name
from ci.lanes.llm.contexts import ContextReader, load_context, on_cpu
from ci.lanes.llm.decoder import Decoder, load_decoder
from ci.lanes.llm.genie import RECORD, ForcedText, forced_logits, generate
from ci.lanes.llm.graphs import Encoding, blocks, edge_encodings, outputs_of
from ci.lanes.llm.judge import OF_WINDOWS, figures_of, window_of
from ci.lanes.llm.measure import (
    choices,
    choosing,
    figures_beside,
    figures_on,
    genie_figures,
    whole_text,
    windows,
)
from ci.lanes.llm.reference import load_reference, logits_of, require_rope
from ci.lanes.llm.suite import FOUR_BITS
from ci.pipeline.accuracy import Pair, Unusable, compare
from provisioning.base.units import EXACT_DB
from provisioning.manifest import Soc, soc_named


@dataclass(frozen=True)
class Compiled:
    """Context binaries, and the checkpoint that they were made from."""

    out: Path
    folder: Path
    shape: Architecture
    soc: Soc
    context: int
    parts: int
    quantized: bool

    @classmethod
    def of(cls, order: Mapping[str, Any]) -> Compiled:
        """What `compile` wrote."""
        out, folder = Path(order["compiled"]), Path(order["model"])
        record = json.loads((out / RECORD).read_text(encoding="utf-8"))
        shape, soc = read_architecture(folder, record.get("adapter", "")), soc_named(record["soc"])
        quantized = record["precision"] != "fp16"
        return cls(out, folder, shape, soc, record["context"], record["parts"], quantized=quantized)

    def readers(self, kind: str, *, cpu: bool = False, only: int | None = None) -> dict[str, ContextReader]:
        """One on HTP, unless `cpu`, and of a quantized model another one on the CPU. `only` is a part."""
        parts = range(self.parts) if only is None else [only]
        graphs = [self.out / on_cpu_name(kind, part) for part in parts if self.quantized]
        encodings: dict[str, Encoding] = {}
        for graph in graphs:
            encodings |= edge_encodings(graph)
        readers = {}
        if not cpu:
            wrappers = [self.out / f"{kind}_{part}.onnx" for part in parts]
            sessions = [load_context(wrapper, self.soc) for wrapper in wrappers]
            readers[f"{kind}_htp"] = ContextReader(self.shape, sessions, encodings)
        if graphs:
            readers[f"{kind}_cpu"] = ContextReader(self.shape, [on_cpu(graph) for graph in graphs], encodings)
        return readers


def _rows(compiled: Compiled, order: Mapping[str, Any]) -> list[list[int]]:
    text, shape = Path(order["text"]), compiled.shape
    return windows(compiled.folder, shape, text, order["length"], order["windows"], "fewer --tokens")


def order_pace(order: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds until all is loaded, and then for a token, by reader."""
    compiled, paces = Compiled.of(order), {}
    row = _rows(compiled, order)[0]
    began = time.monotonic()
    readers = compiled.readers(order["kind"], cpu=order["cpu"])
    for reader in readers.values():
        # The first time takes longer.
        reader.read(row[: reader.count])
        reader.restart()
    ready = time.monotonic() - began
    for name, reader in readers.items():
        began = time.monotonic()
        reader.read(row[: reader.count])
        paces[name] = (time.monotonic() - began) / min(len(row), reader.count)
    return {"ready": ready, "pace": paces}


def order_part_pace(order: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds that the last part of a kind takes, where the head is: to be ready, and for each token. The
    binaries of all parts may be more than the emulator loads."""
    compiled, kind = Compiled.of(order), order["kind"]
    number = compiled.parts - 1
    first, last = compiled.shape.part(number, compiled.parts)
    began = time.monotonic()
    readers = compiled.readers(kind, only=number)
    count = next(iter(readers.values())).count
    row: Any = _rows(compiled, order)[0][: 2 * count + 1]
    if first:
        row = np.random.default_rng(1).normal(size=(len(row), compiled.shape.hidden_size)).astype(np.float32)
    decoder = load_decoder(compiled.folder, compiled.shape, len(row), len(row), first, last)
    outputs = outputs_of(decoder, row)
    blocks_of = {
        name: list(blocks(decoder, row, outputs, reader.context, reader.count))[:2]
        for name, reader in readers.items()
    }
    for name, reader in readers.items():
        reader.alone(blocks_of[name][0][1])
    ready = time.monotonic() - began
    began = time.monotonic()
    for name, reader in readers.items():
        reader.alone(blocks_of[name][-1][1])
    return {"ready": ready, "token": (time.monotonic() - began) / count}


def order_figures(order: Mapping[str, Any]) -> dict[str, Any]:
    compiled = Compiled.of(order)
    rows = _rows(compiled, order)
    exact = _exact(compiled, rows)
    return figures_on(rows, exact, compiled.readers(order["kind"], cpu=order["cpu"]))


def _exact(compiled: Compiled, rows: Sequence[Sequence[int]]) -> list[Array]:
    """Float's logits. Its weights are released before the readers load theirs: of 1B both were 9 GB."""
    reference = load_reference(compiled.folder, compiled.shape.adapter)
    require_rope(reference, compiled.shape, compiled.context)
    exact = [logits_of(reference, row) for row in rows]
    del reference
    gc.collect()
    return exact


def order_noise(order: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of the checkpoint where all is right and only rounded, on the same tokens: of windows, and of
    the texts that Genie is made to say."""
    from ci.lanes.llm.noise import rounded_logits

    compiled, texts = Compiled.of(order), [ForcedText(**each) for each in order["texts"]]
    shape, rows = compiled.shape, _rows(compiled, order)
    every = [*rows, *(whole_text(shape, text) for text in texts)]
    four_bits = order["precision"] == FOUR_BITS
    exact, rounded = rounded_logits(
        load_reference(compiled.folder, shape.adapter), every, four_bits=four_bits
    )
    count = len(rows)
    noise = {OF_WINDOWS: figures_of_rows(rows, exact[:count], rounded[:count])}
    if texts:
        both = [
            [choosing(shape, text, each) for text, each in zip(texts, logits[count:], strict=True)]
            for logits in (exact, rounded)
        ]
        noise |= figures_beside(texts, *both)
    return {"noise": noise}


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
    compiled, prefixes = Compiled.of(order), [each["prompt"] for each in order["texts"]]
    generated = generate(Path(order["config"]), prefixes, timeout=order["timeout"])
    reference = load_reference(compiled.folder, compiled.shape.adapter)
    return choices(compiled.shape, reference, prefixes, generated)


def order_genie_figures(order: Mapping[str, Any]) -> dict[str, Any]:
    """Of Genie's own logits; nothing where it cannot be asked for them."""
    compiled, texts = Compiled.of(order), [ForcedText(**each) for each in order["texts"]]
    shape = compiled.shape
    logits = forced_logits(Path(order["config"]), texts, shape.vocab_size, timeout=order["timeout"])
    if not logits:
        return {}
    return genie_figures(shape, load_reference(compiled.folder, shape.adapter), texts, logits)


def order_parts(order: Mapping[str, Any]) -> dict[str, Any]:
    """How far each part's outputs are from float's, in dB, where its inputs are float's."""
    compiled, kind = Compiled.of(order), order["kind"]
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


def _worst(reader: ContextReader, decoder: Decoder, x: Any, outputs: Sample) -> dict[str, Any]:
    """Of the outputs of a part, the one that is furthest from float's."""
    pairs: dict[str, list[Pair]] = {}
    for start, inputs in blocks(decoder, x, outputs, reader.context, reader.count):
        for name, values in reader.alone(inputs).items():
            axis = 3 if "_key_" in name else 2 if "_value_" in name else 1
            expected = outputs[name].take(range(start, start + reader.count), axis)
            pairs.setdefault(name, []).append(Pair(name, expected, values.reshape(expected.shape)))
    try:
        ratios = {name: compare(each)["sqnr_db"] for name, each in pairs.items()}
    except Unusable as error:
        return {"db": -EXACT_DB, "output": str(error)}
    worst = min(ratios, key=lambda name: ratios[name])
    return {"db": ratios[worst], "output": worst}
