"""Outputs of an .onnx that are indices of ArgMax, ArgMin or TopK, and the values that these chose among."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from ci.lanes.onnx.graphs import values_of
from ci.models.arrays import Array, Sample
from ci.suite.accuracy import tie_noise

CHOOSERS = {"ArgMax": 0, "ArgMin": 0, "TopK": -1}
"""By operator: its usual axis."""
SAME_VALUES = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Choices:
    """By output and inference, what the indices chose among."""

    values: Mapping[str, Sequence[Array]]
    axes: Mapping[str, int]
    noise: Mapping[str, float]
    operators: Sequence[str] = ()


NONE = Choices({}, {}, {})


def choices_of(
    source: Path, quantized: Path | None, samples: Sequence[Sample], into: Path
) -> tuple[Choices, Choices]:
    """Of the float model, and of the quantized one if there is one."""
    floats = _choosers(source)
    others = _choosers(quantized) if quantized else floats
    names = [name for name in floats if name in others]
    if not names:
        return NONE, NONE
    wanted = _chosen_among(source, floats, names, samples, into)
    found = _chosen_among(quantized, others, names, samples, into) if quantized else {}
    axes = {name: _axis(floats[name]) % wanted[name][0].ndim for name in names}
    noise = {name: tie_noise(wanted[name], found.get(name, ()), axes[name]) for name in names}
    operators = [f"{floats[name].op_type} ({floats[name].name})" for name in names]
    return Choices(wanted, axes, noise, operators), Choices(found, axes, noise)


def _choosers(path: Path) -> dict[str, onnx.NodeProto]:
    """The operators that give indices as outputs, by output."""
    model = onnx.load(str(path), load_external_data=False)
    maker = {name: node for node in model.graph.node for name in node.output}
    found = {}
    for output in model.graph.output:
        node, tensor = maker.get(output.name), output.name
        while node is not None and node.op_type in SAME_VALUES:
            tensor = node.input[0]
            node = maker.get(tensor)
        # TopK's first output are the values.
        if node is not None and node.op_type in CHOOSERS and tensor == node.output[-1]:
            found[output.name] = node
    return found


def _axis(node: onnx.NodeProto) -> int:
    attributes: dict[str, Any] = {attribute.name: attribute.i for attribute in node.attribute}
    return int(attributes.get("axis", CHOOSERS[node.op_type]))


def _chosen_among(
    path: Path,
    choosers: Mapping[str, onnx.NodeProto],
    names: Sequence[str],
    samples: Sequence[Sample],
    into: Path,
) -> dict[str, list[Array]]:
    operands = {name: str(choosers[name].input[0]) for name in names}
    every = values_of(onnx.load(str(path)), samples, into, operands.values())
    return {name: [row[tensor] for row in every] for name, tensor in operands.items()}
