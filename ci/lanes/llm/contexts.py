"""Graphs compiled to QNN contexts and run, on the HTP emulator or as written on the CPU. Only for workers."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.graphs import Encoding, edge_encodings
from ci.lanes.llm.orders import CompileOrder
from ci.lanes.llm.readers import Step
from ci.models.arrays import Sample
from ci.suite.qnn_provider import ERRORS_ONLY, device, htp_options
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.manifest import Soc, soc_named

GRAPH = re.compile(rb"QNNExecutionProvider_QNNExecutionProvider_(\d+)_1_0")


def on_cpu(model: Path) -> Any:
    options = _options()
    # Optimizing would compute quantized operators in integers, which round differently.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def compile_context(graphs: Mapping[int, Path], soc: Soc, binary: Path, *, fp16: bool) -> None:
    """Write the context binary of these graphs by their numbers; several of them share their weights. Beside
    the binary of a single one is the .onnx by which ONNX Runtime loads it.

    Genie orders a model's parts by the names of their graphs, so each name begins with the number."""
    with tempfile.TemporaryDirectory(dir=binary.parent, prefix=".compile-") as folder:
        wrappers = {number: Path(folder, f"{number}_ctx.onnx") for number in graphs}
        sessions = []
        for number, model in graphs.items():
            entries = {
                "ep.context_enable": "1",
                "ep.context_embed_mode": "0",
                "ep.context_file_path": str(wrappers[number]),
            }
            if len(graphs) > 1:
                last = "1" if number == max(graphs) else "0"
                entries |= {"ep.share_ep_contexts": "1", "ep.stop_share_ep_contexts": last}
            # The weights are shared for as long as all sessions live.
            sessions.append(_on_htp(model, soc, entries, fp16=fp16))
        compiled, *more = Path(folder).glob("*.bin")
        if more:
            names = ", ".join(model.name for model in graphs.values())
            raise CheckFailed(f"{names}: became {1 + len(more)} contexts instead of one", fix="report it")
        for number, wrapper in wrappers.items():
            wrapping = _named(compiled, wrapper, number, binary.name)
            if len(graphs) == 1:
                onnx.save(wrapping, str(binary.with_suffix(".onnx")))
        shutil.move(compiled, binary)


def load_context(wrapper: Path, soc: Soc) -> Any:
    """A session on the emulator with the context binary that `wrapper` names."""
    return _on_htp(wrapper, soc, {}, fp16=False)


def _on_htp(model: Path, soc: Soc, entries: Mapping[str, str], *, fp16: bool) -> Any:
    options = _options()
    for name, value in {"session.disable_cpu_ep_fallback": "1", **entries}.items():
        options.add_session_config_entry(name, value)
    provider = {**htp_options(soc), "enable_htp_fp16_precision": "1" if fp16 else "0"}
    options.add_provider_for_devices([device()], provider)
    # Registering raised the log level of all sessions.
    ort.set_default_logger_severity(ERRORS_ONLY)
    try:
        session = ort.InferenceSession(str(model), options)
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
    session.disable_fallback()
    return session


def _named(binary: Path, wrapper: Path, number: int, file: str) -> Any:
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


def _options() -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def steps(
    order: CompileOrder, shape: Architecture, kind: str, parts: Sequence[int], *, cpu: bool = False
) -> dict[str, Step]:
    """Of Genie's context binaries, and of the quantized graphs on the CPU."""
    out = Path(order.into)
    graphs = [out / on_cpu_name(kind, part) for part in parts if order.quantized]
    encodings: dict[str, Encoding] = {}
    for graph in graphs:
        encodings |= edge_encodings(graph)
    found: dict[str, Step] = {}
    if not cpu:
        soc = soc_named(order.soc)
        found["htp"] = _step([load_context(out / f"{kind}_{part}.onnx", soc) for part in parts], encodings)
    if graphs:
        found["cpu"] = _step([on_cpu(graph) for graph in graphs], encodings)
    return found


def _step(sessions: Sequence[Any], encodings: Mapping[str, Encoding]) -> Step:
    """Parts one after the other, of which each reads what the one before has computed."""

    def step(inputs: Sample) -> Sample:
        known = {
            name: encodings[name].integers(values) if name in encodings else values
            for name, values in inputs.items()
        }
        outputs = Sample()
        for session in sessions:
            names = [value.name for value in session.get_outputs()]
            given = {value.name: known[value.name] for value in session.get_inputs()}
            outputs |= zip(names, session.run(names, given), strict=True)
            known |= outputs
        return {
            name: encodings[name].floats(values) if name in encodings else values.astype(np.float32)
            for name, values in outputs.items()
        }

    return step


def on_cpu_name(kind: str, part: int) -> str:
    """The quantized graph, which `check` runs on the CPU."""
    return f"{kind}_{part}_cpu.onnx"
