"""The orders to Genie's workers. Their files go to the folder that the order names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.llm.architecture import Architecture, read_architecture
from ci.llm.contexts import Reader, compile_context, on_cpu
from ci.llm.decoder import load_decoder
from ci.llm.genie import Spoken, require_sizes, speak, write_config
from ci.llm.graphs import Encoding, edge_encodings, export, outputs_of, quantize, samples, shared_encodings
from ci.llm.judge import TINY
from ci.llm.measure import DECODE, MOST, PREFILL, ProgramFolders, figures, texts
from ci.llm.reference import load_reference, logits_of
from ci.llm.suite import Run

PREFIXES, PREFIX = 100, 20
"""Genie gives no logits, so its choice is read after this many held-out prefixes of this length."""


def order_genie(order: Mapping[str, Any]) -> dict[str, Any]:
    run = Run.model_validate_json(json.dumps(order["run"]))
    model, into = Path(order["model"]), Path(order["into"])
    place = ProgramFolders(model, into, read_architecture(model), run, order["soc"], order["timeout"])
    graphs = {count: into / f"ar{count}.onnx" for count in (PREFILL, DECODE)}
    require_sizes(place.context, list(graphs))
    encodings = _graphs(place, graphs)
    binaries, readers = [], {}
    for number, (count, graph) in enumerate(graphs.items()):
        made, session = compile_context(
            graph, place.soc, into / f"compiled{count}", fp16=not run.quantized, number=number
        )
        binary = into / f"ar{count}.bin"
        shutil.move(made, binary)
        binaries.append(binary)
        readers[count] = Reader(place.shape, [session], encodings[count])
    shutil.copy(model / "tokenizer.json", into)
    for name, most, shape in _configurations(place):
        write_config(into, shape, binaries, place.soc, context=place.context, most=most, name=name)
    reference = load_reference(model)
    facts: dict[str, Any] = {"bytes": sum(binary.stat().st_size for binary in binaries)}

    def say(prompts: Sequence[Sequence[int]], most: int, *, endless: bool) -> list[Spoken]:
        name = "endless.json" if endless else "genie_config.json"
        return speak(into / name, prompts, timeout=place.timeout)

    facts["texts"], facts["speed"] = texts(place, reference, say)
    if run.quantized:
        every: dict[str, Reader] = {}
        for count, reader in readers.items():
            name = "prefill" if count == PREFILL else "decode"
            every[f"{name}_htp"] = reader
            every[f"{name}_cpu"] = Reader(place.shape, [on_cpu(graphs[count])], encodings[count])
        facts["figures"] = figures(place, reference, every)
        facts["choices"] = choices(place, reference)
    return facts


def _graphs(place: ProgramFolders, graphs: Mapping[int, Path]) -> dict[int, dict[str, Encoding]]:
    """Write them, and give the encodings of their edges."""
    run, found = place.run, {}
    whole = load_decoder(place.model, place.shape, place.context, place.context) if run.quantized else None
    shared: dict[str, Encoding] = {}
    if whole is not None:
        shared = shared_encodings((outputs_of(whole, row) for row in place.calibration()), run.cache)
    for count in sorted(graphs):
        graph = graphs[count]
        plain = graph.with_suffix(".float.onnx") if run.quantized else graph
        export(load_decoder(place.model, place.shape, count, place.context), plain)
        if whole is not None:
            calibration = samples(whole, place.calibration(), place.context, count)
            quantize(plain, calibration, graph, activations="QUInt16", weights="QUInt8", encodings=shared)
        found[count] = edge_encodings(graph)
    return found


def _configurations(place: ProgramFolders) -> list[tuple[str, int, Architecture]]:
    """Configurations for texts that end by themselves, that fill the context, and of one token."""
    return [
        ("genie_config.json", MOST, place.shape),
        ("endless.json", 2 * place.context, place.endless()),
        ("one.json", 1, place.shape),
    ]


def choices(place: ProgramFolders, reference: Any) -> dict[str, Any]:
    """Genie's own first choices after held-out prefixes, by what float loses by them."""
    stream = [token for row in place.rows("judged") for token in row[1:]]
    prefixes = [stream[at : at + PREFIX] for at in range(0, PREFIXES * PREFIX, PREFIX)]
    spoken = speak(place.into / "one.json", prefixes, timeout=place.timeout)
    return _regret(place.shape, reference, prefixes, spoken)


def order_choices(order: Mapping[str, Any]) -> dict[str, Any]:
    """What float loses by Genie's choices: for `llm check`."""
    folder = Path(order["model"])
    spoken = [Spoken(tuple(tokens), "", 0, 0) for tokens in order["spoken"]]
    return _regret(read_architecture(folder), load_reference(folder), order["prefixes"], spoken)


def _regret(
    shape: Architecture, reference: Any, prefixes: Sequence[Sequence[int]], spoken: Sequence[Spoken]
) -> dict[str, Any]:
    regrets = []
    for prefix, one in zip(prefixes, spoken, strict=True):
        row = logits_of(reference, [shape.bos or 0, *prefix])[-1]
        # Genie prints nothing if it chooses to end; of several ends, take float's nearest.
        tokens = one.tokens[:1] or shape.eos
        regrets.append(float(row.max() - max(row[token] for token in tokens)))
    return {
        "near_ties": sum(0 < regret < TINY for regret in regrets),
        "prefixes": len(regrets),
        "first_choice": sum(regret == 0 for regret in regrets) / len(regrets),
        "regret": sum(regrets) / len(regrets),
        "worst_regret": max(regrets),
    }
