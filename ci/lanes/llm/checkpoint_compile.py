"""Compile a checkpoint, part by part, to a folder that Genie runs, on a device or here. For workers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.child import doing
from ci.lanes.llm.architecture import HIDDEN, Architecture
from ci.lanes.llm.config import read_architecture
from ci.lanes.llm.contexts import compile_context
from ci.lanes.llm.decoder import load_decoder, require_halves
from ci.lanes.llm.genie import write_config
from ci.lanes.llm.graphs import Encoding, export, outputs_of_rows, quantize, samples, shared_encodings
from ci.lanes.llm.prompts import TEMPLATE, special_places, windows
from ci.lanes.llm.suite import FOUR_BITS
from ci.models.arrays import Sample
from provisioning.manifest import Soc, soc_named

MOST = 256
README = """\
# {name} for Genie

Made by `compile` for {soc}, {precision}, a context of {context} tokens, prefill by {prefill}.

`nox -s bundle -- --profile wheels-2.51 --target aarch64-linux --soc {soc} FOLDER` adds QNN's libraries, the
skel and scripts to push and run it. With genie-t2t-run of the official SDK it is run so:

    LD_LIBRARY_PATH=lib ADSP_LIBRARY_PATH=dsp bin/genie-t2t-run -c genie_config.json -p "The answer is"

Genie puts the token that begins a text first by itself: leave it out of the prompt.
"""
CHECKED = """
The .onnx files are for `check` alone.
"""
SHARED = """
Prefill and decode share their weights in each binary, which the emulator refuses: compile without
`--shared-weights` to check what they say.
"""


def order_compile(order: Mapping[str, Any]) -> dict[str, Any]:
    folder, out = Path(order["model"]), Path(order["into"])
    shape, soc = read_architecture(folder, order["adapter"]), soc_named(order["soc"])
    context = int(order["context"])
    rows: list[Any] = []
    if order["precision"] != "fp16":
        rows = windows(folder, shape, Path(order["calibrate"]), context)
    counts = {"prefill": int(order["prefill"]), "decode": 1}
    binaries = write_binaries(
        folder,
        out,
        soc,
        rows,
        context=context,
        counts=counts,
        parts=order["parts"],
        shared=order["shared"],
        four_bits=order["precision"] == FOUR_BITS,
        adapter=order["adapter"],
    )
    for name in ("tokenizer.json", "tokenizer_config.json", TEMPLATE):
        if (folder / name).is_file():
            shutil.copy(folder / name, out)
    write_config(out, shape, binaries, soc, context=context, most=min(MOST, context))
    values = {key: order[key] for key in ("soc", "precision", "context", "prefill")}
    text = README + (SHARED if order["shared"] else CHECKED)
    (out / "README.md").write_text(text.format(name=folder.name, **values), encoding="utf-8")
    return {"binaries": len(binaries), "bytes": sum(binary.stat().st_size for binary in binaries)}


@dataclass(frozen=True)
class LayerPart:
    """Some layers of a checkpoint, to be written as graphs. Without `rows` to quantize by they are fp16."""

    folder: Path
    shape: Architecture
    context: int
    number: int
    first: int
    last: int
    rows: Sequence[Any]
    outputs: Sequence[Sample]
    """Float's, of the rows."""
    special: Sequence[Sequence[int]]
    """The places of each row that decode's calibration must see."""
    encodings: Mapping[str, Encoding]
    four_bits: bool

    def write_graph(self, name: str, count: int, out: Path) -> Path:
        """A graph for that many tokens at once, in a folder of its own below `out`."""
        work = out / f"{name}_{self.number}"
        work.mkdir()
        graph = work / f"{name}_{self.number}.onnx"
        decoder = load_decoder(self.folder, self.shape, count, self.context, self.first, self.last)
        if not self.rows:
            require_halves(decoder)
            export(decoder, graph)
            return graph
        plain = work / "float.onnx"
        export(decoder, plain)
        calibration = samples(decoder, self.rows, self.outputs, self.context, count, self.special)
        # Quantizing needs the memory, once all samples are drawn.
        del decoder
        quantize(
            plain,
            calibration,
            graph,
            activations="QUInt16",
            weights="QUInt8",
            encodings=self.encodings,
            four_bits=self.four_bits,
        )
        shutil.copy(graph, out / on_cpu_name(name, self.number))
        return graph


def write_binaries(
    folder: Path,
    out: Path,
    soc: Soc,
    rows: Sequence[Any],
    *,
    context: int,
    counts: Mapping[str, int],
    parts: int,
    cache: str = "uint8",
    shared: bool = False,
    four_bits: bool = False,
    adapter: str = "",
) -> list[Path]:
    """The context binaries in the order of Genie's configuration: one for each part and count, or with
    `shared` one for each part. `rows` of tokens are to quantize by; without them it is fp16."""
    shape = read_architecture(folder, adapter)
    binaries: dict[int, Path] = {}
    encodings: dict[str, Encoding] = {}
    numbers = {name: index * parts for index, name in enumerate(counts)}
    special = special_places(folder, shape, rows) if rows else []
    for number in range(parts):
        doing(f"part {number + 1}/{parts}")
        first, last = shape.part(number, parts)
        outputs: list[Sample] = []
        if rows:
            decoder = load_decoder(folder, shape, context, context, first, last)
            # What comes in is encoded as it went out of the part before.
            into = {name: encoding for name, encoding in encodings.items() if name == decoder.inputs[0]}
            outputs = outputs_of_rows(decoder, rows)
            encodings = into | shared_encodings(outputs, cache, shape.ropes)
            # Quantizing needs the memory.
            del decoder
        part = LayerPart(
            folder, shape, context, number, first, last, rows, outputs, special, encodings, four_bits
        )
        for names in [tuple(counts)] if shared else [(name,) for name in counts]:
            graphs = {numbers[name] + number: part.write_graph(name, counts[name], out) for name in names}
            binary = binaries[min(graphs)] = out / f"{'shared' if shared else names[0]}_{number}.bin"
            compile_context(graphs, soc, binary, fp16=not rows)
            for graph in graphs.values():
                shutil.rmtree(graph.parent)
        rows = [output[name][0] for output in outputs for name in output if name.startswith(HIDDEN)]
    return [binaries[number] for number in sorted(binaries)]


def on_cpu_name(kind: str, part: int) -> str:
    """The quantized graph, which `check` runs on the CPU."""
    return f"{kind}_{part}_cpu.onnx"
