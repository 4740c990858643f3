"""Compile a checkpoint, part by part, to a folder that Genie runs, on a device or here. For workers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.llm.architecture import Architecture, read_architecture
from ci.llm.arrays import Sample
from ci.llm.contexts import compile_context
from ci.llm.decoder import load_decoder, require_halves
from ci.llm.genie import write_config
from ci.llm.graphs import export, quantize, samples, shared_encodings
from ci.llm.measure import windows
from provisioning.manifest import soc_named

MOST = 256
README = """\
# {name} for Genie

Made by `llm compile` for {soc}, {precision}, a context of {context} tokens, prefill by {prefill}.

Push this folder to the device with genie-t2t-run, libGenie.so, libQnnHtp.so, libQnnSystem.so, the stub and
the skel of the chip's Hexagon version, all of one QNN build, and run in it:

    LD_LIBRARY_PATH=. ADSP_LIBRARY_PATH=. ./genie-t2t-run -c genie_config.json -p "The answer is"

Genie puts the token that begins a text first by itself: leave it out of the prompt.
"""


def order_compile(order: Mapping[str, Any]) -> dict[str, Any]:
    folder, out = Path(order["model"]), Path(order["into"])
    shape, soc, context = read_architecture(folder), soc_named(order["soc"]), int(order["context"])
    counts, parts = (int(order["prefill"]), 1), int(order["parts"])
    fp16 = order["precision"] == "fp16"
    rows = [] if fp16 else windows(folder, shape.bos, Path(order["calibrate"]), context)
    shared: dict[str, Any] = {}
    binaries = []
    for number, (count, part) in enumerate((count, part) for count in counts for part in range(parts)):
        first, last = shape.layers * part // parts, shape.layers * (part + 1) // parts
        work = out / f"ar{count}_{part}"
        work.mkdir()
        graph = work / f"ar{count}_{part}.onnx"
        decoder = load_decoder(folder, shape, count, context, first, last)
        if fp16:
            require_halves(decoder)
            export(decoder, graph)
        else:
            export(decoder, work / "float.onnx")
            calibration = _calibration(folder, shape, context, count, rows)
            shared = shared or shared_encodings(calibration, "uint8")
            plain = work / "float.onnx"
            quantize(plain, calibration, graph, activations="QUInt16", weights="QUInt8", encodings=shared)
        # The graph has the weights now.
        del decoder
        made, session = compile_context(graph, soc, work / "compiled", fp16=fp16, number=number)
        del session
        binary = out / f"{'prefill' if count > 1 else 'decode'}_{part}.bin"
        shutil.move(made, binary)
        shutil.rmtree(work)
        binaries.append(binary)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            shutil.copy(folder / name, out)
    write_config(out, shape, binaries, soc, context=context, most=min(MOST, context))
    text = README.format(
        name=folder.name, prefill=counts[0], **{k: order[k] for k in ("soc", "precision", "context")}
    )
    (out / "README.md").write_text(text, encoding="utf-8")
    return {"binaries": len(binaries), "bytes": sum(binary.stat().st_size for binary in binaries)}


def _calibration(
    folder: Path, shape: Architecture, context: int, count: int, rows: Sequence[Sequence[int]]
) -> list[Sample]:
    return samples(load_decoder(folder, shape, context, context), rows, context, count)
