"""An ONNX model with every rewrite that it needs, each proved on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ci.lanes.onnx import provider
from ci.lanes.onnx.graph import (
    REWRITTEN,
    NotCompilable,
    external_files,
    fix_dimensions,
    load_graph,
    make_plain,
    open_inputs,
    signature_of,
)
from ci.lanes.onnx.rewrites import FOLDED, REWRITES
from ci.lanes.onnx.rewriting import OnnxMatch, Rewriting
from ci.lanes.onnx.samples import calibration_samples
from ci.lanes.onnx.source_places import SourcePlace, places_of
from ci.lanes.onnx.suite import OnnxCase
from ci.lanes.onnx.values import values_of
from ci.pipeline.models.arrays import Array, Sample
from ci.pipeline.models.inputs import drawn
from ci.pipeline.qnn_provider import installed_build
from ci.pipeline.rewriting import Need, Repaired, RewriteChoice, needs_of
from provisioning.base.errors import CheckFailed
from provisioning.build_id import version_in

COMPARED = 2
QUANTIZED = "QuantizeLinear"


def rewritten(
    case: OnnxCase, search_path: Path, into: Path, precision: str, choice: RewriteChoice
) -> dict[str, Any]:
    """Write the model with every rewrite that is needed, matches and is proved."""
    path = search_path / case.model
    external_files(load_graph(path), path.parent)
    model = onnx.load(str(path))
    if any(node.op_type == QUANTIZED for node in model.graph.node):
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
    repaired = RepairedOnnx(model, samples[:COMPARED], into)
    versions = {"qnn": version_in(installed_build()), "onnxruntime-qnn": version("onnxruntime-qnn")}
    repaired.apply(needs_of(precision, "onnx", versions, choice))
    if repaired.rewritten:
        onnx.save(repaired.model.model, str(into / REWRITTEN))
    return repaired


class RepairedOnnx(Repaired):
    def __init__(self, model: onnx.ModelProto, samples: Sequence[Sample], into: Path) -> None:
        super().__init__()
        self.samples, self.into = samples, into
        self.wanted, self.places = _computed(model, samples, into), places_of(model)
        self.plain = onnx.ModelProto()
        self.plain.CopyFrom(model)

    def place_of(self, node: onnx.NodeProto) -> tuple[str, str, str]:
        place = self.places.get(node.name, SourcePlace())
        return node.name or node.output[0], place.source, place.code

    def apply(self, needs: Sequence[Need]) -> None:
        # Other rewrites look for constants, so they are folded first.
        for need in needs:
            if need.rewrite == FOLDED and not need.withheld:
                self._fold(need)
        make_plain(self.plain)
        self.model = Rewriting(self.plain, self.samples, self.into)
        for need in needs:
            if need.rewrite in REWRITES and (matches := list(REWRITES[need.rewrite](self.model))):
                self.values = self.model.values([name for match in matches for name in match.operands])
                self.rewrite(need, matches)
                self.model.settle()
        if self.rewritten:
            self.judge(self.wanted, _computed(self.model.model, self.samples, self.into))

    def _fold(self, need: Need) -> None:
        """By ONNX Runtime itself: a condition that is constant leaves one branch."""
        conditions = [node for node in self.plain.graph.node if node.op_type == "If"]
        if not conditions:
            return
        folded = optimized(self.plain, self.into)
        left = {name for node in folded.graph.node if node.op_type == "If" for name in node.output}
        gone = [node for node in conditions if left.isdisjoint(node.output)]
        if gone:
            self.plain = folded
        for node in gone:
            self.note(need, self.place_of(node))

    def put(self, match: OnnxMatch, need: Need) -> None:
        self.model.put(match, self.model.proved(match, need, self.values))


def _computed(model: onnx.ModelProto, samples: Sequence[Sample], into: Path) -> list[list[Array]]:
    names = [value.name for value in model.graph.output]
    return [[np.asarray(sample[name]) for name in names] for sample in values_of(model, samples, into, ())]


def optimized(model: onnx.ModelProto, into: Path) -> onnx.ModelProto:
    """As ONNX Runtime folds its constants, with the operator sets that it uses."""
    before = into / "before.onnx"
    try:
        onnx.save(model, str(before))
        folded = onnx.load(str(provider.folded(before, into)))
    finally:
        before.unlink(missing_ok=True)
        (into / provider.FOLDED).unlink(missing_ok=True)
    used = {node.domain for node in folded.graph.node}
    imported = [opset for opset in folded.opset_import if opset.domain in used]
    folded.ClearField("opset_import")
    folded.opset_import.extend(imported)
    return folded
