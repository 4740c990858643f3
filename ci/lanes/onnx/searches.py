"""The worker's side of the searches: it has a program's model as a Graph, and compiles and runs parts of it
on the emulator.

`explain.py` asks for these functions through cached steps."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import onnx

from ci.explain.divergence import Divergence, DivergenceLimits, DivergenceResult
from ci.explain.graph import FLOAT_MODEL, QUANTIZED_MODEL
from ci.explain.losses import BeyondHalf, beyond_of, losses_of
from ci.explain.onnx_graph import QUANTIZERS, OnnxGraph
from ci.explain.onnx_rewrites import REWRITES
from ci.explain.onnx_rewriting import RepairedOnnx
from ci.explain.operator_script import OperatorScript, ScriptRequest, proved_script
from ci.explain.rewriting import ModelRewrite, needs_of
from ci.lanes.onnx import provider
from ci.lanes.onnx.model_file import (
    REWRITTEN,
    load_graph,
)
from ci.lanes.onnx.options import Settings
from ci.lanes.onnx.orders import (
    Losses,
    WantedRewrites,
)
from ci.lanes.onnx.suite import OnnxOrder
from ci.lanes.onnx.task_files import ModelFiles
from ci.models.inputs import Array, Sample
from ci.models.model_lines import OperatorAt, user_frame
from ci.suite.accuracy import Pair, least_sqnr_db
from ci.suite.onnx_runtime import installed_build
from ci.suite.precision import Precision, precision_named
from ci.work import Nothing
from provisioning.base.errors import CheckFailed
from provisioning.base.parser import Parser
from provisioning.build_ids import version_in
from provisioning.manifest import Soc, soc_named

Places = Mapping[str, OperatorAt]
"""Maps each node to the place in the model's code that an exporter noted."""
Target = tuple[Precision, Soc, Settings]
COMPARED = 2
"""Rewrites are proved by this many samples."""
MASKS = ("Where",)
"""These operators may use numbers of any size, which are meant to be infinite."""


def target_of(order: OnnxOrder, soc: str = "") -> Target:
    """Return what the run is compiled for: the order's chip, or another."""
    soc = soc or order.soc
    return precision_named(order.run.precision), soc_named(soc), order.run.settings(soc)


def places_of(path: Path) -> Places:
    return {node.name: _place_of(node) for node in load_graph(path).graph.node}


def _place_of(node: onnx.NodeProto) -> OperatorAt:
    noted = {entry.key: entry.value for entry in node.metadata_props}
    place = OperatorAt(node.op_type, _module(noted.get("pkg.torch.onnx.name_scopes", "[]")), "", "")
    frame = user_frame(noted.get("pkg.torch.onnx.stack_trace", ""))
    if frame is None:
        return place
    path = frame.path.removeprefix(f"{Parser.user_folder()}/")
    return replace(place, source=f"{path}:{frame.line}", code=frame.code)


def _module(noted: str) -> str:
    """Return the module's path in named_modules(): the scopes without the operator's own."""
    try:
        scopes = ast.literal_eval(noted)
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(scopes, list) or not scopes:
        return ""
    # Each scope is a whole path; the last one is the operator.
    return str(scopes[-2]) or "(the model itself)" if len(scopes) > 1 else ""


def graph_of(
    path: Path,
    samples: Sequence[Sample],
    places: Places | None = None,
    reference: str = FLOAT_MODEL,
) -> OnnxGraph:
    return OnnxGraph(onnx.load(str(path)), samples, places, reference, path)


def rewrite(order: OnnxOrder, files: ModelFiles, choice: WantedRewrites) -> ModelRewrite:
    """Write the model with every rewrite that is needed, matches and is proved."""
    model = onnx.load(str(files.source))
    if any(node.op_type in QUANTIZERS for node in model.graph.node):
        message = f"{order.case.model} is already quantized, but rewrites need a float model"
        raise CheckFailed(message, fix="name the float model")
    samples = [*files.samples(), *files.calibration()][:COMPARED]
    repaired = RepairedOnnx(model, samples, REWRITES, places_of(files.source))
    versions = {"qnn": version_in(installed_build()), "onnxruntime-qnn": version("onnxruntime-qnn")}
    repaired.apply(needs_of(order.run.precision, "onnx", versions, choice.rules))
    if repaired.rewritten:
        onnx.save(repaired.model, str(order.into / REWRITTEN))
    return ModelRewrite(tuple(repaired.changes))


def outputs_on_emulator(target: Target, graph: OnnxGraph, _: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Compile the graph for a target and return its outputs."""
    names = [value.name for value in graph.model.graph.output]
    outputs = []
    for row in provider.outputs_on_htp(graph.source, *target, graph.feeds()):
        outputs.append([row[name] for name in names])
    return outputs


def diverge(
    order: OnnxOrder,
    files: ModelFiles,
    limits: DivergenceLimits,
    keep: Callable[[DivergenceResult], None],
) -> DivergenceResult:
    """Find where the quantized model on HTP first differs from itself on the CPU."""
    rest = replace(limits, seconds=limits.seconds - (time.monotonic() - order.began))
    target, places = target_of(order), places_of(files.source)
    quantized = target[0].quantized or target[0].name == "qdq"
    reference = QUANTIZED_MODEL if quantized else FLOAT_MODEL
    graph = graph_of(files.model, files.samples(), places, reference)
    return Divergence(graph, partial(outputs_on_emulator, target), rest, keep).search()


def script(order: OnnxOrder, files: ModelFiles, request: ScriptRequest) -> OperatorScript:
    """Return a script for one operator of the quantized model, alone."""
    options = provider.provider_options(*target_of(order), None)
    graph = graph_of(files.model, files.samples())
    return proved_script(request, partial(graph.script, request, options))


def losses(order: OnnxOrder, files: ModelFiles, _: Nothing) -> Losses:
    """Return the operators whose outputs are farther from the float model's than their inputs, the worst
    first."""
    sample, places = files.samples()[:1], places_of(files.source)
    floats, rounded = graph_of(files.source, sample, places), graph_of(files.model, sample)
    exact, outputs = floats.values(0), rounded.values(0)

    def decibels(name: str) -> float | None:
        values = outputs.get(rounded.end_of(name)) if name in rounded.operators else None
        if values is None or name not in floats.operators or values.shape != exact[name].shape:
            return None
        return least_sqnr_db([Pair(name, exact[name], values)])

    return Losses(losses_of(floats, decibels))


def beyond_half(source: Path, samples: Sequence[Sample]) -> tuple[BeyondHalf, ...]:
    """Return the operators of a float model whose values leave the range of fp16."""
    return beyond_of(graph_of(source, samples, places_of(source)), MASKS)
