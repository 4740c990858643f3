"""In the worker: a program's model as a Graph, parts of it on the emulator, and what is asked of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

from ci.explain.divergence import Divergence
from ci.explain.divergence_report import keep_partial
from ci.explain.graph import FLOAT_MODEL, QUANTIZED_MODEL
from ci.explain.losses import beyond_of, losses_of, scores_of
from ci.explain.onnx_graph import QUANTIZERS, OnnxGraph
from ci.explain.onnx_graph import values_of as values_in
from ci.explain.onnx_rewrites import RepairedOnnx
from ci.explain.rewriting import RewriteChoice, needs_of
from ci.lanes.onnx import provider
from ci.lanes.onnx.graph import (
    REWRITTEN,
    NotCompilable,
    external_files,
    fix_dimensions,
    load_graph,
    open_inputs,
    signature_of,
)
from ci.lanes.onnx.options import Settings
from ci.lanes.onnx.samples import calibration_samples
from ci.lanes.onnx.source_places import SourcePlace, places_of
from ci.lanes.onnx.suite import OnnxCase
from ci.models.arrays import Array, Sample
from ci.models.inputs import drawn
from ci.suite.accuracy import Pair, least_sqnr_db
from ci.suite.precision import Precision
from ci.suite.qnn_provider import installed_build
from provisioning.base.errors import CheckFailed
from provisioning.build_id import version_in
from provisioning.manifest import Soc

Places = Mapping[str, SourcePlace]
Target = tuple[Precision, Soc, Settings]
NO_PLACES: Places = MappingProxyType({})
COMPARED = 2
"""Samples by which rewrites are proved."""
MASKS = ("Where",)
"""Their numbers of any size are meant to be infinite."""


def graph_of(
    path: Path,
    samples: Sequence[Sample],
    into: Path,
    places: Places = NO_PLACES,
    reference: str = FLOAT_MODEL,
) -> OnnxGraph:
    rows = {name: asdict(place) for name, place in places.items()}
    return OnnxGraph(onnx.load(str(path)), samples, into, provider, rows, reference, path)


def rewritten(
    case: OnnxCase, search_path: Path, into: Path, precision: str, choice: RewriteChoice
) -> dict[str, Any]:
    """Write the model with every rewrite that is needed, matches and is proved."""
    path = search_path / case.model
    external_files(load_graph(path), path.parent)
    model = onnx.load(str(path))
    if any(node.op_type in QUANTIZERS for node in model.graph.node):
        message = f"{path} is already quantized, but rewrites need a float model"
        raise CheckFailed(message, fix="name the float model")
    if case.dimensions:
        fix_dimensions(model, case.dimensions)
    if problems := list(open_inputs(model)):
        raise NotCompilable(path, problems)
    signature = signature_of(model)
    samples = calibration_samples(case.samples, signature, search_path) if case.samples else []
    repaired = repair(model, samples or [drawn(signature)], into, precision, choice)
    return {"changes": [asdict(change) for change in repaired.changes]}


def repair(
    model: onnx.ModelProto, samples: Sequence[Sample], into: Path, precision: str, choice: RewriteChoice
) -> RepairedOnnx:
    """The model as REWRITTEN in the folder `into`, if anything of it was rewritten."""
    places = {name: asdict(place) for name, place in places_of(model).items()}
    repaired = RepairedOnnx(model, samples[:COMPARED], into, provider, places)
    versions = {"qnn": version_in(installed_build()), "onnxruntime-qnn": version("onnxruntime-qnn")}
    repaired.apply(needs_of(precision, "onnx", versions, choice))
    if repaired.rewritten:
        onnx.save(repaired.model.model, str(into / REWRITTEN))
    return repaired


def values_of(
    model: onnx.ModelProto, samples: Sequence[Sample], into: Path, names: Iterable[str]
) -> list[Sample]:
    return values_in(model, samples, into, provider, names)


class ProviderTrial:
    """Compiles a graph for a target, and runs it."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def outputs(self, graph: Any, expected: Sequence[Sequence[Array]]) -> list[list[Array]]:
        names = [value.name for value in graph.model.graph.output]
        rows = provider.on_htp(graph.file, *self.target, graph.fed())
        return [[row[name] for name in names] for row in rows]


def divergence_of(
    path: Path,
    places: Places,
    samples: Sequence[Sample],
    target: Target,
    into: Path,
    least: float,
    seconds: float,
    whole: float | None,
) -> dict[str, Any]:
    quantized = target[0].quantized or target[0].name == "qdq"
    graph = graph_of(path, samples, into, places, QUANTIZED_MODEL if quantized else FLOAT_MODEL)
    keep = partial(keep_partial, into)
    return Divergence(graph, ProviderTrial(target), least, seconds, whole, keep).search()


def script(
    path: Path, operator: str, sample: Sample, before: int, target: Target, into: Path
) -> dict[str, str]:
    """One operator of the model, alone."""
    options = provider.provider_options(*target, None)
    imports, body = graph_of(path, [sample], into).script(operator, 0, before, options)
    return {"imports": imports, "body": body}


def losses(source: Path, quantized: Path, places: Places, sample: Sample, into: Path) -> list[dict[str, Any]]:
    """The operators whose outputs are farther from the float model's than their inputs, the worst first."""
    floats, rounded = graph_of(source, [sample], into, places), graph_of(quantized, [sample], into)
    wanted, found = floats.values(0), rounded.values(0)

    def decibels(name: str) -> float | None:
        values = found.get(rounded.end_of(name)) if name in rounded.operators else None
        if values is None or name not in floats.operators or values.shape != wanted[name].shape:
            return None
        return least_sqnr_db([Pair(name, wanted[name], values)])

    return losses_of(floats, decibels)


def scores(
    source: Path,
    quantized: Sequence[Path],
    places: Places,
    sample: Sample,
    into: Path,
    seconds: float,
) -> dict[str, Any]:
    floats = graph_of(source, [sample], into, places)
    return scores_of(floats, [graph_of(path, [sample], into) for path in quantized], seconds)


def beyond_half(source: Path, places: Places, samples: Sequence[Sample], into: Path) -> list[dict[str, Any]]:
    return beyond_of(graph_of(source, samples, into, places), MASKS)
