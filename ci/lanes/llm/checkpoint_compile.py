"""Compile a checkpoint, part by part, to a folder that Genie runs, on a device or here. For workers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ci.child import doing
from ci.lanes.llm.architecture import HIDDEN, Architecture, read_architecture
from ci.lanes.llm.contexts import compile_context, on_cpu_name
from ci.lanes.llm.decoder import load_decoder, require_halves
from ci.lanes.llm.genie import write_config
from ci.lanes.llm.graphs import (
    Encoding,
    Ranges,
    export,
    outputs_of_rows,
    prepared,
    quantize,
    ranges_of,
    samples,
    shared_encodings,
)
from ci.lanes.llm.orders import KINDS, README_OF_RECORD, CompileOrder, Written
from ci.lanes.llm.prompts import TEMPLATE
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


def order_compile(order: CompileOrder) -> Written:
    folder, out = Path(order.model), Path(order.into)
    shape, soc = read_architecture(folder, order.adapter), soc_named(order.soc)
    binaries = write_binaries(order, shape, soc)
    for name in ("tokenizer.json", "tokenizer_config.json", TEMPLATE):
        if (folder / name).is_file():
            shutil.copy(folder / name, out)
    write_config(out, shape, binaries, soc, context=order.context, most=min(MOST, order.context))
    text = (README + (SHARED if order.shared else CHECKED)).format(
        name=folder.name,
        soc=order.soc,
        precision=order.precision,
        context=order.context,
        prefill=order.prefill,
    )
    text += README_OF_RECORD if order.quantized else ""
    (out / "README.md").write_text(text, encoding="utf-8")
    return Written(len(binaries), sum(binary.stat().st_size for binary in binaries))


@dataclass(frozen=True)
class LayerPart:
    """Some layers of a checkpoint, to be written as graphs. Without `rows` to quantize by they are fp16."""

    order: CompileOrder
    shape: Architecture
    number: int
    rows: Sequence[Any]
    outputs: Sequence[Sample]
    """Float's, of the rows."""
    encodings: Mapping[str, Encoding]

    def write_graph(self, name: str, count: int, ranges: Ranges) -> tuple[Path, Ranges]:
        """A graph for that many tokens at once, in a folder of its own. The first one is calibrated by all
        places of the rows, and others have its `ranges`: single tokens would be too many, and what a few of
        them do not show would be cut off."""
        out, context = Path(self.order.into), self.order.context
        work = out / f"{name}_{self.number}"
        work.mkdir()
        graph = work / f"{name}_{self.number}.onnx"
        layers = self.shape.part(self.number, self.order.parts)
        decoder = load_decoder(Path(self.order.model), self.shape, count, context, *layers)
        if not self.rows:
            require_halves(decoder)
            export(decoder, graph)
            return graph, ranges
        export(decoder, work / "float.onnx")
        plain = prepared(work / "float.onnx")
        calibration = samples(decoder, self.rows, self.outputs, context, count)
        first = next(calibration)
        ranges = ranges or ranges_of(plain, chain([first], calibration))
        # Quantizing needs the memory.
        del decoder, calibration
        quantize(plain, ranges, first, graph, self.encodings, four_bits=self.order.precision == FOUR_BITS)
        shutil.copy(graph, out / on_cpu_name(name, self.number))
        return graph, ranges


def write_binaries(order: CompileOrder, shape: Architecture, soc: Soc) -> list[Path]:
    """The context binaries in the order of Genie's configuration: one for each part and count, or where
    weights are shared one for each part."""
    folder, out, parts, context = Path(order.model), Path(order.into), order.parts, order.context
    counts = dict(zip(KINDS, (order.prefill, 1), strict=True))
    together = [tuple(counts)] if order.shared else [(name,) for name in counts]
    numbers = {name: index * parts for index, name in enumerate(counts)}
    binaries: dict[int, Path] = {}
    encodings: dict[str, Encoding] = {}
    rows: Sequence[Any] = order.calibration
    for number in range(parts):
        doing(f"part {number + 1}/{parts}")
        outputs: list[Sample] = []
        if rows:
            decoder = load_decoder(folder, shape, context, context, *shape.part(number, parts))
            # What comes in is encoded as it went out of the part before.
            into = {name: encoding for name, encoding in encodings.items() if name == decoder.inputs[0]}
            outputs = outputs_of_rows(decoder, rows)
            encodings = into | shared_encodings(outputs, shape.ropes)
            # Quantizing needs the memory.
            del decoder
        part = LayerPart(order, shape, number, rows, outputs, encodings)
        ranges: Ranges = []
        for names in together:
            graphs: dict[int, Path] = {}
            for name in names:
                graph, ranges = part.write_graph(name, counts[name], ranges)
                graphs[numbers[name] + number] = graph
            kind = "shared" if order.shared else names[0]
            binary = binaries[min(graphs)] = out / f"{kind}_{number}.bin"
            compile_context(graphs, soc, binary, fp16=not rows)
            for graph in graphs.values():
                shutil.rmtree(graph.parent)
        rows = [output[name][0] for output in outputs for name in output if name.startswith(HIDDEN)]
    return [binaries[number] for number in sorted(binaries)]
