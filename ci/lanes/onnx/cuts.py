"""Programs that end at a node of an ONNX model, on HTP against the CPU. Imported only by the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import onnx
from onnx import numpy_helper

from ci.lanes.onnx import provider
from ci.lanes.onnx.node_graph import Graph
from ci.lanes.onnx.options import Settings
from ci.lanes.onnx.source_places import SourcePlace
from ci.lanes.onnx.values import values_of
from ci.pipeline.accuracy import Pair, least_sqnr_db
from ci.pipeline.divergence import FLOAT_MODEL, Cuts, keep_partial
from ci.pipeline.losses import HALF_MOST, losses_of
from ci.pipeline.models.arrays import Array, Sample
from ci.pipeline.precision import Precision
from provisioning.manifest import Soc


def searched(
    path: Path,
    places: Mapping[str, SourcePlace],
    samples: Sequence[Sample],
    target: tuple[Precision, Soc, Settings],
    into: Path,
    least: float,
    seconds: float,
    whole: float | None,
) -> dict[str, Any]:
    graph = Graph(onnx.load(str(path)))

    def pairs(node: onnx.NodeProto | None) -> list[Pair]:
        program = path
        if node is not None:
            program = into / "cut.onnx"
            onnx.save(graph.ending_at(node), str(program))
        names = {value.name for value in onnx.load(str(program), load_external_data=False).graph.input}
        fed = [{name: array for name, array in sample.items() if name in names} for sample in samples]
        expected = provider.on_cpu(program, fed)
        outputs = provider.on_htp(program, *target, fed)
        return [
            Pair(f"{number}.{name}", wanted[name], actual[name])
            for number, (wanted, actual) in enumerate(zip(expected, outputs, strict=True))
            for name in wanted
        ]

    def name_of(node: onnx.NodeProto) -> str:
        return str(node.name or node.output[0])

    def computed(outputs: Sequence[str], given: Mapping[str, Array], sample: Sample) -> list[Array]:
        """On the CPU, of given tensors and the sample."""
        wanted, program = [name for name in outputs if name not in given], into / "part.onnx"
        made: Mapping[str, Array] = {}
        if wanted:
            part = graph.computing(wanted, given)
            onnx.save(part, str(program))
            values = {**sample, **given}
            (made,) = provider.on_cpu(program, [{row.name: values[row.name] for row in part.graph.input}])
        return [given[name] if name in given else made[name] for name in outputs]

    def with_error(
        node: onnx.NodeProto, operands: Sequence[onnx.NodeProto], found: Mapping[str, Sequence[Array]]
    ) -> list[Pair]:
        end, ends = graph.end_of(node), [value.name for value in graph.model.graph.output]
        compared = []
        for number, sample in enumerate(samples):
            given = {
                tensor: found[name_of(operand)][number]
                for operand in operands
                for tensor in graph.everywhere(operand)
            }
            (wanted,), (passed_on,) = (computed([end], values, sample) for values in ({}, given))
            added = wanted + (found[name_of(node)][number] - passed_on)
            wrong = dict.fromkeys(graph.everywhere(node), added)
            both = zip(computed(ends, {}, sample), computed(ends, wrong, sample), strict=True)
            compared += [Pair(end, *pair) for pair in both]
        return compared

    def described(node: onnx.NodeProto) -> dict[str, str]:
        return {"operator": node.op_type, **asdict(places.get(node.name, SourcePlace()))}

    cuts = Cuts[onnx.NodeProto](name_of, pairs, with_error, whole)
    quantized = target[0].quantized or target[0].name == "qdq"
    reference = "the quantized model on the CPU" if quantized else FLOAT_MODEL

    def keep(result: Mapping[str, Any]) -> None:
        keep_partial(into, {"reference": reference, **result})

    result = cuts.search(graph.operators, graph.ends, graph.operands_of, described, least, seconds, keep)
    return {"reference": reference, **result}


def losses(
    source: Path, quantized: Path, places: Mapping[str, SourcePlace], sample: Sample, into: Path
) -> list[dict[str, Any]]:
    """The operators whose outputs are farther from the float model's than their inputs, the worst first."""
    floats, rounded = (Graph(onnx.load(str(path))) for path in (source, quantized))
    (wanted,), (found,) = (
        values_of(graph.model, [sample], into, graph.floats) for graph in (floats, rounded)
    )

    def measured(node: onnx.NodeProto) -> float | None:
        name, maker = node.output[0], rounded.maker.get(node.output[0])
        values = found.get(rounded.end_of(maker)) if maker is not None else None
        if values is None or name not in wanted or values.shape != wanted[name].shape:
            return None
        return least_sqnr_db([Pair(name, wanted[name], values)])

    def described(node: onnx.NodeProto) -> dict[str, str]:
        place = places.get(node.name, SourcePlace())
        return {"operator": node.op_type, "node": node.name, **asdict(place)}

    return losses_of(
        floats.operators(), lambda node: str(node.output[0]), floats.operands_of, measured, described
    )


NOT_BEYOND = ("Where",)
"""Their numbers of any size are meant to be infinite."""


def beyond_half(
    source: Path, places: Mapping[str, SourcePlace], samples: Sequence[Sample], into: Path
) -> list[dict[str, Any]]:
    """A float model's operators whose outputs leave fp16 first, each with its line and its largest value."""
    graph = Graph(onnx.load(str(source)))
    operators = [node for node in graph.operators() if node.op_type not in NOT_BEYOND]
    most = {weight.name: _most(numpy_helper.to_array(weight)) for weight in graph.model.graph.initializer}
    found: dict[str, dict[str, Any]] = {}
    for sample in samples:
        (values,) = values_of(graph.model, [sample], into, graph.floats)
        of_sample = most | {name: _most(array) for name, array in values.items()}
        for node in operators:
            name, largest = node.output[0], of_sample.get(node.output[0], 0.0)
            if largest <= HALF_MOST or any(of_sample.get(tensor, 0.0) > HALF_MOST for tensor in node.input):
                continue
            row = {"operator": node.op_type, "node": node.name}
            found.setdefault(name, {**row, **asdict(places.get(node.name, SourcePlace())), "largest": 0.0})
            found[name]["largest"] = max(found[name]["largest"], largest)
    return [*found.values()]


def _most(values: Array) -> float:
    """The largest that is finite."""
    finite = values[numpy.isfinite(values)] if values.dtype.kind == "f" else values[:0]
    return float(abs(finite).max(initial=0.0))
