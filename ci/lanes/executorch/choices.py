"""Outputs that are indices of an operator such as argmax, and the values that it chose among.

Where two values are equal within the noise, either index is right: the chip takes another one than PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ci.explain.torch_graph import operator_at, outputs_of
from ci.models.factory import copied
from ci.models.model_lines import OperatorAt
from ci.operators.partition.decisions import is_quantizer
from ci.suite.accuracy import ChosenAmong, Inferences, tie_noise

LAST = ("aten.sort.default", "aten.sort.stable", "aten.topk.default")
"""Of those the last dimension is the usual one; the others choose among all values."""
OTHERS = ("aten.argmax.default", "aten.argmin.default", "aten.max.dim", "aten.min.dim")
CHOOSERS = {**dict.fromkeys((*OTHERS, *LAST), 1), "aten.topk.default": 2}
"""By operator: the place of its argument `dim`."""
SAME_VALUES = ("view", "reshape", "squeeze", "unsqueeze", "to", "_to_copy", "clone", "alias", "contiguous")
"""Operators that change neither the values of indices nor their order."""


@dataclass(frozen=True)
class Chooser:
    output: int
    node: Node
    values: Node
    dim: int | None


def choosers_of(graph: Any) -> Iterator[Chooser]:
    (output,) = graph.find_nodes(op="output")
    for number, leaf in enumerate(torch.utils._pytree.tree_leaves(output.args[0])):
        node = leaf
        while isinstance(node, Node) and _keeps_values(node):
            node = node.all_input_nodes[0]
        if not isinstance(node, Node) or (place := CHOOSERS.get(str(node.target))) is None:
            continue
        usual = -1 if str(node.target) in LAST else None
        dim = node.args[place] if len(node.args) > place else node.kwargs.get("dim", usual)
        yield Chooser(number, node, node.all_input_nodes[0], dim if isinstance(dim, int) else None)


def _keeps_values(node: Node) -> bool:
    if node.target is getitem:
        return bool(node.args[1] == 1)
    return not is_quantizer(node) and str(node.target).removeprefix("aten.").partition(".")[0] in SAME_VALUES


@dataclass(frozen=True)
class OutputChoices:
    """The expected outputs, with what their indices chose among, and where that is done."""

    expected: Inferences
    reference: Inferences
    places: tuple[OperatorAt, ...] = ()


def choices_of(
    model: Any,
    module: Any,
    samples: Sequence[tuple[Tensor, ...]],
    expected: Inferences,
    reference: Inferences,
    into: Path,
) -> OutputChoices:
    """Writes the values that indices chose among. `module` is the quantized model if there is a reference."""
    if all(row.dtype not in ("int64", "int32") for row in expected[0]):
        return OutputChoices(expected, reference)
    graph = torch.export.export(model, copied(samples[0]), strict=True).module()
    places = []
    of_quantized = {chooser.output: chooser for chooser in choosers_of(module.graph)} if reference else {}
    for chooser in choosers_of(graph.graph):
        floats = _chosen_among(graph, chooser, samples)
        quantized = _chosen_among(module, of_quantized.get(chooser.output), samples)
        if not floats or bool(quantized) != bool(reference):
            continue
        places.append(operator_at(chooser.node))
        wanted, rounded = ([tensor.numpy() for tensor in values] for values in (floats, quantized))
        noise = tie_noise(wanted, rounded, 0 if chooser.dim is None else chooser.dim)
        expected = _with_choice(expected, chooser, floats, noise, into, "float")
        if reference:
            reference = _with_choice(reference, chooser, quantized, noise, into, "quantized")
    return OutputChoices(expected, reference, tuple(places))


def _with_choice(
    inferences: Inferences, chooser: Chooser, values: Sequence[Tensor], noise: float, into: Path, kind: str
) -> Inferences:
    """The values are of each inference."""
    changed = []
    for number, (row, tensor) in enumerate(zip(inferences, values, strict=True)):
        path = into / f"{kind}_{number}_{chooser.output}.chosen"
        tensor.numpy().tofile(path)
        dim = 0 if chooser.dim is None else chooser.dim % tensor.dim()
        choice = ChosenAmong(path.name, "float32", tuple(tensor.shape), dim, noise)
        output = replace(row[chooser.output], choice=choice)
        changed.append((*row[: chooser.output], output, *row[chooser.output + 1 :]))
    return tuple(changed)


def _chosen_among(graph: Any, chooser: Chooser | None, samples: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """By inference; empty if they are no floats."""
    if chooser is None:
        return []
    outputs = [outputs_of(graph, copied(sample)).get(chooser.values.name) for sample in samples]
    tensors = [values.float().contiguous() for values in outputs if values is not None]
    if len(tensors) < len(samples):
        return []
    return [values.flatten() for values in tensors] if chooser.dim is None else tensors
