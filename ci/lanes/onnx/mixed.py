"""Operators of an ONNX model that have another precision than the model: how they are quantized, and what
each adds to the noise in the outputs. Imported only by the worker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import onnx
from onnx import helper

from ci.lanes.onnx import provider
from ci.lanes.onnx.node_graph import QUANTIZERS, Graph
from ci.lanes.onnx.source_places import SourcePlace
from ci.lanes.onnx.values import values_of
from ci.pipeline.models.arrays import Array, Sample

MOST_SECONDS = 1e9
ERROR, FLOAT = "error/", "float/"
QUANTIZED = "_QuantizeLinear_Input"
"""How the quantizer renames what computes an output of the model."""


def groups_of(graph: Graph) -> list[list[onnx.NodeProto]]:
    """Operators with those behind them that only they feed, and that have no other operand or weights."""
    group: dict[str, list[onnx.NodeProto]] = {}
    groups: list[list[onnx.NodeProto]] = []
    weights = {weight.name for weight in graph.model.graph.initializer}
    for node in graph.operators():
        operands = {name for name in node.input if name}
        (first, *_) = operands or {""}
        alone = len(operands) == 1 and first in group and len(graph.users[first]) == 1
        if alone and not operands & weights and not graph.is_output(first):
            mine = group[first]
        else:
            groups.append(mine := [])
        mine.append(node)
        group |= dict.fromkeys(node.output, mine)
    return groups


def scored(
    source: Path,
    quantized: Sequence[Path],
    places: Mapping[str, SourcePlace],
    sample: Sample,
    into: Path,
    seconds: float,
) -> dict[str, Any]:
    """The groups of operators, with the noise that each adds in each of the quantized models alone, that of
    each model as a whole, and how many groups the time did not suffice for: those that err least."""
    over = time.monotonic() + seconds
    graph = Graph(onnx.load(str(source)))
    (values,) = values_of(graph.model, [sample], into, graph.floats)
    groups = groups_of(graph)
    results = [name for nodes in groups for node in nodes for name in node.output if name in values]
    errors = [_own_errors(path, values, into / "own.onnx") for path in quantized]
    disturbed = into / "disturbed.onnx"
    onnx.save(_with_errors(graph, {name: values[name] for name in results}), str(disturbed))
    if seconds < MOST_SECONDS:
        groups.sort(key=lambda nodes: -_own_share(nodes, errors[0], values))
    nothing = {f"{ERROR}{name}": numpy.zeros_like(values[name]) for name in results}

    def inputs() -> Iterator[Sample]:
        yield {**sample, **nothing}
        for nodes in groups:
            if time.monotonic() > over:
                return
            for of_model in errors:
                mine = [name for node in nodes for name in node.output if name in of_model]
                yield {**sample, **nothing, **{f"{ERROR}{name}": of_model[name] for name in mine}}

    wanted, *found = provider.on_cpu(disturbed, inputs())
    units, count = list[dict[str, Any]](), len(quantized)
    whole = [_noise(wanted, provider.on_cpu(path, [sample])[0]) for path in quantized]
    maker = {name: node.name for nodes in groups for node in nodes for name in node.output if name in values}
    for number, nodes in enumerate(groups[: len(found) // count]):
        place = asdict(places.get(nodes[0].name, SourcePlace()))
        names = [name for node in nodes for name in node.output if name in values]
        taken = {name for node in nodes for name in node.input} & maker.keys() - {*names}
        units.append(
            {
                "operator": nodes[0].op_type,
                **place,
                "nodes": [node.name for node in nodes],
                "size": sum(values[name].size for name in names),
                "reads": {maker[name]: values[name].size for name in sorted(taken)},
                "noise": [_noise(wanted, outputs) for outputs in found[number * count :][:count]],
            }
        )
    return {"units": units, "whole": whole, "left": len(groups) - len(units)}


def _own_share(nodes: Sequence[onnx.NodeProto], errors: Sample, values: Mapping[str, Array]) -> float:
    """The largest error of an operator, relative to what it gives."""
    names = [name for node in nodes for name in node.output if name in errors]
    shares = (_noise({name: values[name]}, {name: values[name] + errors[name]}) for name in names)
    return max(shares, default=0.0)


def _own_errors(path: Path, values: Mapping[str, Array], into: Path) -> Sample:
    """What quantizing changes at each operator that is given the float model's values."""
    model = onnx.load(str(path))
    graph, known = model.graph, {value.name for value in model.graph.input}
    outputs, behind = {name for name in values if name not in known}, dict[str, str]()
    for node in graph.node:
        maker = node.input[0].removesuffix(QUANTIZED) if node.input else ""
        if node.op_type == "QuantizeLinear" and maker in outputs:
            behind[node.output[0]] = maker
        elif node.op_type == "DequantizeLinear" and node.input[0] in behind:
            behind[node.output[0]] = behind[node.input[0]]
    # The rounding of a tensor is its maker's error. What is not quantized has none, but that of weights.
    rounded = {name: tensor for tensor, name in behind.items()}
    plain = {name: name for node in graph.node for name in node.output if name in outputs}
    measured = {**plain, **rounded}
    operators = [node for node in graph.node if node.op_type not in QUANTIZERS]
    used = set[str]()
    for node in operators:
        for index, tensor in enumerate(node.input):
            if (name := behind.get(tensor, tensor)) in outputs:
                node.input[index] = f"{FLOAT}{name}"
                used.add(name)
    del graph.output[:]
    graph.output.extend(_float(tensor) for tensor in measured.values())
    graph.input.extend(_float(f"{FLOAT}{name}", values[name].shape) for name in used)
    onnx.save(model, str(into))
    fed = {name: values[name] for name in known} | {f"{FLOAT}{name}": values[name] for name in used}
    (found,) = provider.on_cpu(into, [fed])
    results = [(name, found[tensor]) for name, tensor in measured.items()]
    return {name: array - values[name] for name, array in results if array.shape == values[name].shape}


def _with_errors(graph: Graph, values: Mapping[str, Array]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        for index, name in enumerate(node.output):
            if name in values:
                node.output[index] = f"{FLOAT}{name}"
                nodes.append(helper.make_node("Add", [f"{FLOAT}{name}", f"{ERROR}{name}"], [name]))
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend(kept)
    model.graph.input.extend(_float(f"{ERROR}{name}", value.shape) for name, value in values.items())
    return model


def _float(name: str, shape: Sequence[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def _noise(wanted: Sample, found: Sample) -> float:
    """Of the worst output, relative to its signal."""
    worst = 0.0
    for name, right in wanted.items():
        signal = float((right.astype("f8") ** 2).sum())
        noise = float(((found[name].astype("f8") - right) ** 2).sum())
        worst = max(worst, noise / signal if signal else 0.0)
    return worst
