"""Compiles a checkpoint for Genie, part by part: graphs, QNN contexts of them, and the files beside these.
Contexts run on the HTP emulator, graphs as written on the CPU. Only workers import this."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from ci.lanes.llm.architecture import HIDDEN, Architecture, read_architecture
from ci.lanes.llm.decoder import load_decoder, require_halves
from ci.lanes.llm.genie import write_config
from ci.lanes.llm.graphs import (
    Encoding,
    Ranges,
    Step,
    edge_encodings,
    export,
    outputs_of_rows,
    preprocess_graph,
    quantize,
    ranges_of,
    samples,
    shared_encodings,
)
from ci.lanes.llm.orders import KINDS, CompileOrder, Written
from ci.lanes.llm.suite import FOUR_BITS
from ci.lanes.llm.tokenizer import SETTINGS, TEMPLATE
from ci.models.inputs import Sample
from ci.suite.onnx_runtime import (
    ERRORS_ONLY,
    FALLBACK,
    device,
    htp_options,
    session_on_cpu,
    session_on_htp,
)
from ci.work import doing
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.manifest import Soc, soc_named

GRAPH = re.compile(rb"QNNExecutionProvider_QNNExecutionProvider_(\d+)_1_0")
MOST = 256


def compile_checkpoint(order: CompileOrder) -> Written:
    folder, out = Path(order.model), Path(order.into)
    shape, soc = read_architecture(folder), soc_named(order.soc)
    binaries, losses = write_binaries(order, shape, soc)
    for name in ("tokenizer.json", SETTINGS, TEMPLATE):
        if (folder / name).is_file():
            shutil.copy(folder / name, out)
    write_config(out, shape, binaries, soc, context=order.context, most=min(MOST, order.context))
    return Written(len(binaries), sum(binary.stat().st_size for binary in binaries), losses)


@dataclass(frozen=True)
class LayerPart:
    """Holds some layers of a checkpoint, to be written as graphs. They are fp16 if there are no `rows` to
    quantize by."""

    order: CompileOrder
    shape: Architecture
    number: int
    rows: Sequence[Any]
    outputs: Sequence[Sample]
    """The float model computed these outputs of the rows."""
    encodings: Mapping[str, Encoding]

    def write_graph(self, name: str, count: int, ranges: Ranges) -> tuple[Path, Ranges]:
        """Write a graph that reads that many tokens at once, in its own folder. The first graph is calibrated
        by all places of the rows. Others reuse its `ranges`, because single tokens would be too many, and
        values that a few of them do not show would be cut off."""
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
        plain = preprocess_graph(work / "float.onnx")
        calibration = samples(decoder, self.rows, self.outputs, context, count)
        first = next(calibration)
        ranges = ranges or ranges_of(plain, chain([first], calibration))
        # Quantizing needs the memory.
        del decoder, calibration
        quantize(plain, ranges, first, graph, self.encodings, four_bits=self.order.precision == FOUR_BITS)
        shutil.copy(graph, out / cpu_graph_name(name, self.number))
        return graph, ranges


def write_binaries(order: CompileOrder, shape: Architecture, soc: Soc) -> tuple[list[Path], list[float]]:
    """Write the context binaries, and return them in the order of Genie's configuration: prefill's, then
    decode's. Also return what the float model loses on each row of the calibration."""
    folder, out, parts, context = Path(order.model), Path(order.into), order.parts, order.context
    binaries: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    encodings: dict[str, Encoding] = {}
    rows: Sequence[Any] = order.calibration
    losses: list[float] = []
    for number in range(parts):
        doing(f"part {number + 1}/{parts}")
        outputs: list[Sample] = []
        if rows:
            decoder = load_decoder(folder, shape, context, context, *shape.part(number, parts))
            # What comes in is encoded as it went out of the part before.
            into = {name: encoding for name, encoding in encodings.items() if name == decoder.inputs[0]}
            outputs, losses = outputs_of_rows(decoder, rows, order.calibration)
            encodings = into | shared_encodings(outputs, shape.ropes)
            # Quantizing needs the memory.
            del decoder
        part = LayerPart(order, shape, number, rows, outputs, encodings)
        ranges: Ranges = []
        for index, kind in enumerate(KINDS):
            graph, ranges = part.write_graph(kind, order.count(kind), ranges)
            binary = out / f"{kind}_{number}.bin"
            compile_context(graph, index * parts + number, soc, binary, fp16=not rows)
            binaries[kind].append(binary)
            shutil.rmtree(graph.parent)
        rows = [output[name][0] for output in outputs for name in output if name.startswith(HIDDEN)]
    return [binary for kind in KINDS for binary in binaries[kind]], losses


def compile_context(graph: Path, number: int, soc: Soc, binary: Path, *, fp16: bool) -> None:
    """Write the context binary of a graph, and beside it the .onnx by which ONNX Runtime loads it.

    Genie orders a model's parts by the names of their graphs, so each name begins with the number."""
    with tempfile.TemporaryDirectory(dir=binary.parent, prefix=".compile-") as folder:
        wrapper = Path(folder, "ctx.onnx")
        entries = {
            "ep.context_enable": "1",
            "ep.context_embed_mode": "0",
            "ep.context_file_path": str(wrapper),
        }
        _htp_session(graph, soc, entries, fp16=fp16)
        [compiled] = Path(folder).glob("*.bin")
        onnx.save(_rename_graph(compiled, wrapper, number, binary.name), str(binary.with_suffix(".onnx")))
        shutil.move(compiled, binary)


def load_context(wrapper: Path, soc: Soc) -> Any:
    """Return a session on the emulator with the context binary that `wrapper` names."""
    return _htp_session(wrapper, soc, {}, fp16=False)


def _htp_session(model: Path, soc: Soc, entries: Mapping[str, str], *, fp16: bool) -> Any:
    provider = {**htp_options(soc), "enable_htp_fp16_precision": "1" if fp16 else "0"}
    device()
    # Registering raised the log level of all sessions.
    ort.set_default_logger_severity(ERRORS_ONLY)
    try:
        return session_on_htp(model, provider, {FALLBACK: "1", **entries})
    except Exception as error:
        words = " ".join(str(error).split())[:600]
        if "Failed to write context cache file" in words:
            raise EnvironmentLacking(
                f"{model.parent}: no room for the context binary of {model.name}",
                fix="free some space, or name a folder on another disk",
            ) from error
        raise CheckFailed(
            f"{model.name} cannot be compiled: {words}", fix=Fix("{} explains QNN's codes", ("diagnose",))
        ) from error


def _rename_graph(binary: Path, wrapper: Path, number: int, file: str) -> Any:
    """ONNX Runtime uses a hash as the graph's name. The new name has the same length, because lengths are
    part of the file. Returns the wrapper with the new name, and with `file` as the binary's."""
    wrapping = onnx.load(str(wrapper))
    [node] = wrapping.graph.node
    data, match = binary.read_bytes(), GRAPH.fullmatch(node.name.encode())
    if match is None or match[0] not in data:
        raise CheckFailed(
            f"{binary}: expected the graph {node.name}, found none of that name",
            fix="report it, with the version of onnxruntime-qnn",
        )
    old = match[1]
    new = (b"%03d" % number).ljust(len(old), b"0")
    binary.write_bytes(data.replace(b"Provider_" + old + b"_1_0", b"Provider_" + new + b"_1_0"))
    node.name = node.name.replace(old.decode(), new.decode())
    for attribute in node.attribute:
        if attribute.name in (names := {"partition_name": node.name, "ep_cache_context": file}):
            attribute.s = names[attribute.name].encode()
    return wrapping


def htp_step(order: CompileOrder, shape: Architecture, kind: str, parts: Sequence[int]) -> Step:
    """Return a function that runs Genie's context binaries on HTP."""
    out, soc = Path(order.into), soc_named(order.soc)
    contexts = [load_context(out / f"{kind}_{part}.onnx", soc) for part in parts]
    return _step(contexts, _encodings(order, kind, parts))


def cpu_step(order: CompileOrder, shape: Architecture, kind: str, parts: Sequence[int]) -> Step:
    """Return a function that runs the quantized graphs on the CPU."""
    graphs = [session_on_cpu(Path(order.into, cpu_graph_name(kind, part))) for part in parts]
    return _step(graphs, _encodings(order, kind, parts))


def _encodings(order: CompileOrder, kind: str, parts: Sequence[int]) -> list[Mapping[str, Encoding]]:
    return [
        edge_encodings(Path(order.into, cpu_graph_name(kind, part))) if order.quantized else {}
        for part in parts
    ]


def _step(sessions: Sequence[Any], encodings: Sequence[Mapping[str, Encoding]]) -> Step:
    """Return a function that runs parts one after the other. Each reads what the one before has computed, and
    everything else in its own type: an input that is an integer in one part is a float in another that does
    not use it."""

    def step(inputs: Sample) -> Sample:
        computed, outputs = Sample(), Sample()
        for session, own in zip(sessions, encodings, strict=True):
            feed = Sample()
            for name in (value.name for value in session.get_inputs()):
                if name in computed:
                    feed[name] = computed[name]
                else:
                    feed[name] = own[name].integers(inputs[name]) if name in own else inputs[name]
            names = [value.name for value in session.get_outputs()]
            for name, values in zip(names, session.run(names, feed), strict=True):
                computed[name] = values
                outputs[name] = own[name].floats(values) if name in own else values.astype(np.float32)
        return outputs

    return step


def cpu_graph_name(kind: str, part: int) -> str:
    """Name the file of the quantized graph, which `check` runs on the CPU."""
    return f"{kind}_{part}_cpu.onnx"
