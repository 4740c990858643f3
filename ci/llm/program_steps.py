"""What ExecuTorch's workers do. They never import onnxruntime-qnn, which loads another QNN."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ci.llm.architecture import read_architecture
from ci.llm.arrays import Array
from ci.llm.decoder import load_decoder
from ci.llm.genie import Spoken
from ci.llm.graphs import samples
from ci.llm.measure import DECODE, PREFILL, ProgramFolders, Reader, figures, texts
from ci.llm.programs import (
    DECODE_METHOD,
    PREFILL_METHOD,
    RunnerLayout,
    Stateful,
    StatefulReader,
    TensorReader,
    in_pytorch,
    lower,
    metadata,
    methods,
    quantized,
)
from ci.llm.reference import load_reference
from ci.llm.suite import Run

PROGRAM = "program.pte"
STATEFUL_ROWS = 4
"""Windows to calibrate by, each token of which is a call."""


def order_executorch(order: Mapping[str, Any]) -> dict[str, Any]:
    torch.set_grad_enabled(False)
    run = Run.model_validate_json(json.dumps(order["run"]))
    model, into = Path(order["model"]), Path(order["into"])
    place = ProgramFolders(model, into, read_architecture(model), run, order["soc"], order["timeout"])
    readers = stateful_readers(place) if run.state == "buffers" else tensor_readers(place)
    reference = load_reference(model)
    facts: dict[str, Any] = {"bytes": (into / PROGRAM).stat().st_size}

    def say(prompts: Sequence[Sequence[int]], most: int, *, endless: bool) -> list[Spoken]:
        ends = place.endless().eos if endless else place.shape.eos
        return [spoken(place, readers, prompt, most, ends) for prompt in prompts]

    facts["texts"], facts["speed"] = texts(place, reference, say)
    if run.quantized:
        facts["figures"] = figures(place, reference, readers)
    return facts


def tensor_readers(place: ProgramFolders) -> dict[str, Reader]:
    """Prefill and decode as two methods of one program, on HTP and, quantized, as PyTorch computes them."""
    names = {PREFILL: PREFILL_METHOD, DECODE: DECODE_METHOD}
    layouts = {
        name: RunnerLayout(load_decoder(place.model, place.shape, count, place.context))
        for count, name in names.items()
    }
    modules: dict[str, Any] = dict(layouts)
    if place.run.quantized:
        whole = load_decoder(place.model, place.shape, place.context, place.context)
        for count, name in names.items():
            calls = samples(whole, place.calibration(), place.context, count)
            modules[name] = quantized(
                layouts[name], layouts[name].calibration(calls), place.run.precision, place.chip
            )
    inputs = {name: layout.inputs([0], 0, layout.empty()) for name, layout in layouts.items()}
    path = place.into / PROGRAM
    lower(
        modules,
        inputs,
        metadata(place.shape, place.context, PREFILL),
        place.chip,
        path,
        fp16=not place.run.quantized,
    )
    steps = methods(path, list(layouts))
    readers: dict[str, Reader] = {}
    for what, name in (("prefill", PREFILL_METHOD), ("decode", DECODE_METHOD)):
        readers[f"{what}_htp"] = TensorReader(layouts[name], steps[name])
        if place.run.quantized:
            readers[f"{what}_cpu"] = TensorReader(layouts[name], in_pytorch(modules[name]))
    return readers


def stateful_readers(place: ProgramFolders) -> dict[str, Reader]:
    """Decode alone: two methods would have a cache each."""
    module = Stateful(load_decoder(place.model, place.shape, DECODE, place.context))
    example, lowered = module.inputs(0, 0), module
    if place.run.quantized:
        calls = [
            module.inputs(token, position)
            for row in place.calibration()[:STATEFUL_ROWS]
            for position, token in enumerate(row[:-1])
        ]
        lowered = quantized(module, calls, place.run.precision, place.chip)
    path = place.into / PROGRAM
    constants = metadata(place.shape, place.context, DECODE)
    lower(
        {DECODE_METHOD: lowered},
        {DECODE_METHOD: example},
        constants,
        place.chip,
        path,
        fp16=not place.run.quantized,
    )
    readers: dict[str, Reader] = {
        "decode_htp": StatefulReader(module, methods(path, [DECODE_METHOD])[DECODE_METHOD])
    }
    if place.run.quantized:
        readers["decode_cpu"] = StatefulReader(module, in_pytorch(lowered))
    return readers


def spoken(
    place: ProgramFolders,
    readers: Mapping[str, Reader],
    prompt: Sequence[int],
    most: int,
    ends: Collection[int],
) -> Spoken:
    """What the program says, taking its first choice each time."""
    assert place.shape.bos is not None
    began = time.monotonic()
    text, tokens = [place.shape.bos, *prompt], list[int]()
    row = _prompted(readers, text)
    first = time.monotonic() - began
    while True:
        token = int(row.argmax())
        if token in ends:
            stopped = "eos"
            break
        tokens.append(token)
        if len(text) + len(tokens) >= place.context:
            stopped = "context"
            break
        if len(tokens) == most:
            stopped = "length"
            break
        row = readers["decode_htp"].read([token])[-1]
    return Spoken(tuple(tokens), stopped, time.monotonic() - began, first)


def _prompted(readers: Mapping[str, Reader], text: Sequence[int]) -> Array:
    """The logits after the prompt, and decode ready to go on."""
    decode, prefill = readers["decode_htp"], readers.get("prefill_htp")
    decode.restart()
    if not isinstance(decode, TensorReader) or not isinstance(prefill, TensorReader):
        return _last(decode.read(text))
    prefill.restart()
    # Its cache is shorter: what lies beyond would be lost to decode.
    together = min(len(text), prefill.context - prefill.count)
    rows = prefill.read(text[:together])
    decode.take(prefill)
    return _last(decode.read(text[together:]) if together < len(text) else rows)


def _last(rows: Array) -> Array:
    row: Array = rows[-1]
    return row
