"""Find the operators whose indices a model returns, and what they chose among.

An `argmax` gives an index, and not how close the second-best value was. So that an index which points at an
equally good value counts as right, the values are needed among which the operator chose, and how far apart
two of them may be and still count as equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ci.explain.graph import Graph, Node
from ci.models.inputs import Array
from ci.suite.index_choices import tie_noise

CHOOSERS = frozenset(
    (
        "aten.argmax.default",
        "aten.argmin.default",
        "aten.max.dim",
        "aten.min.dim",
        "aten.sort.default",
        "aten.sort.stable",
        "aten.topk.default",
        "ArgMax",
        "ArgMin",
        "TopK",
    )
)
"""These operators give indices of their first operand."""
INDICES = 1
"""An operator that gives values and indices gives the indices in this place."""
SAME_INDICES = frozenset(
    (
        "aten.view",
        "aten.reshape",
        "aten.squeeze",
        "aten.unsqueeze",
        "aten.to",
        "aten._to_copy",
        "aten.clone",
        "aten.alias",
        "aten.contiguous",
        "Cast",
        "Identity",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
    )
)
"""These operators change neither the values of indices nor their order. PyTorch's have no overload here."""


@dataclass(frozen=True, slots=True)
class IndexChoice:
    """An output holds indices: this says which operator chose them, and among which values."""

    output: int
    """The place of the output among the model's."""
    operator: str
    """The name of the node that chose."""
    dim: int
    """The operator chose along this dimension of the values. If it chose among all, they have only one."""
    exact: Sequence[Array]
    """The float model computed these values, one array for each sample."""
    quantized: Sequence[Array]
    """The quantized model computed these; none if it is not compared."""
    noise: float
    """Two values that differ by at most this count as equal."""


def choices_of(floats: Graph, quantized: Graph | None) -> list[IndexChoice]:
    """Return the choices of a float model whose indices are outputs. If there is a quantized model, an output
    counts only if indices are found in both models."""
    operators = operators_of_indices(floats)
    quantized_operators = operators if quantized is None else operators_of_indices(quantized)
    numbers = [number for number in operators if number in quantized_operators]
    if not numbers:
        return []
    exact = _values_chosen_among(floats, operators)
    rounded = {} if quantized is None else _values_chosen_among(quantized, quantized_operators)
    choices = []
    for number in numbers:
        operator, arrays, rounded_arrays = operators[number], exact[number], rounded.get(number, ())
        dim = (floats.dimension(operator) or 0) % arrays[0].ndim
        noise = tie_noise(arrays, rounded_arrays, dim)
        choices.append(IndexChoice(number, operator, dim, arrays, rounded_arrays, noise))
    return choices


def operators_of_indices(graph: Graph) -> dict[int, str]:
    """Map the number of each output that holds indices to the node that chose them. The graph needs no
    samples and no weights."""
    choosers = {}
    for number, name in enumerate(graph.results):
        node = _behind_same_indices(graph, name)
        if node.part == INDICES:
            node = graph.nodes[node.reads[0]]
        elif node.part is not None:
            continue
        if node.kind in CHOOSERS:
            choosers[number] = node.name
    return choosers


def _behind_same_indices(graph: Graph, name: str) -> Node:
    """Return the node from which the result's indices come unchanged."""
    node = graph.nodes[name]
    while node.kind in SAME_INDICES or node.kind.rpartition(".")[0] in SAME_INDICES:
        node = graph.nodes[node.reads[0]]
    return node


def _values_chosen_among(graph: Graph, choosers: Mapping[int, str]) -> dict[int, list[Array]]:
    """Return, for each output, the values that its operator chose among; those of all dimensions are in one
    row."""
    operands = {number: graph.nodes[name].reads[0] for number, name in choosers.items()}
    arrays = graph.values_at(list(dict.fromkeys(operands.values())))
    values = {}
    for number, operand in operands.items():
        rows = list(arrays[operand])
        if graph.dimension(choosers[number]) is None:
            rows = [row.reshape(-1) for row in rows]
        values[number] = rows
    return values
