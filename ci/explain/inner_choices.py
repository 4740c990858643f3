"""Compare a model that chooses inside with the float model that chooses as the program does.

Where two scores are nearly equal, rounding decides which one a top-k, an argmax or a comparison takes, and
what is computed with the one or the other may be far apart: the experts of a router, the peaks of a heat map.
So the float model gets the program's choices, if rounding explains each one that differs from its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

from ci.explain.graph import INPUT, Arrays, Graph, Node
from ci.explain.index_operators import CHOOSERS, INDICES
from ci.models.inputs import Array
from ci.models.model_lines import OperatorAt
from ci.suite.accuracy import pair_of_choice
from ci.suite.index_choices import comparison_noise, tie_noise

COMPARISONS = frozenset(f"aten.{name}" for name in ("eq", "ne", "gt", "ge", "lt", "le"))
"""These operators give a mask. They have no overload here."""


@dataclass(frozen=True, slots=True)
class InnerChoice:
    node: str
    """It gives the indices, or the mask."""
    operator: str
    """It is the node of the operator that chooses."""
    compares: bool


@dataclass(frozen=True, slots=True)
class ChoiceFlips(OperatorAt):
    """It says how often an operator chooses otherwise in the program than in the float model."""

    choices: int
    flipped: int
    unexplained: int
    """So many of the flipped choices are between scores that differ by more than rounding."""

    def describe(self) -> str:
        if self.unexplained:
            return (
                f"{self.place} chooses otherwise in {self.unexplained:,} of {self.choices:,} places where"
                " rounding does not explain it"
            )
        return f"rounding decides {self.flipped:,} of {self.choices:,} choices of {self.place}"


def describe_flips(flips: Sequence[ChoiceFlips]) -> str:
    return "; ".join(row.describe() for row in flips if row.flipped)


def unexplained_flips(flips: Sequence[ChoiceFlips]) -> str:
    """Name the operators whose choices rounding does not explain."""
    return describe_flips([row for row in flips if row.unexplained])


def inner_choices(graph: Graph) -> list[InnerChoice]:
    """Return the choices among floats that depend on an input and that other operators read. The graph needs
    no samples."""
    choices, variables = [], set[str]()
    for node in graph.nodes.values():
        if node.kind == INPUT or not variables.isdisjoint(node.reads):
            variables.add(node.name)
        choice = _choice_of(graph, node)
        if choice is None or node.name not in variables or not graph.readers[node.name]:
            continue
        if any(graph.nodes[name].floats for name in graph.nodes[choice.operator].reads):
            choices.append(choice)
    return choices


def _choice_of(graph: Graph, node: Node) -> InnerChoice | None:
    if node.kind.rpartition(".")[0] in COMPARISONS:
        return InnerChoice(node.name, node.name, compares=True)
    operator = graph.nodes[node.reads[0]] if node.part == INDICES else node
    if operator.kind in CHOOSERS and not node.several:
        return InnerChoice(node.name, operator.name, compares=False)
    return None


@dataclass(frozen=True, slots=True)
class Choosing:
    """It is a model with the choices that a program makes in it."""

    graph: Graph
    choices: Sequence[InnerChoice]
    chosen: Arrays
    """It maps the node of each choice to what the program chooses."""


def same_choices(floats: Graph, compiled: Graph) -> list[tuple[InnerChoice, InnerChoice]]:
    """Pair the choices of a float model with those of the model that is compiled. Quantizing may rename
    nodes, and keeps their order; if it makes other operators, those are paired that keep their name."""
    exact, others = inner_choices(floats), inner_choices(compiled)
    if _operators(floats, exact) == _operators(compiled, others):
        return list(zip(exact, others, strict=True))
    by_node = {choice.node: choice for choice in others}
    return [(choice, by_node[choice.node]) for choice in exact if choice.node in by_node]


def _operators(graph: Graph, choices: Sequence[InnerChoice]) -> list[str]:
    return [graph.nodes[choice.operator].kind for choice in choices]


def flips_of(floats: Choosing, quantized: Choosing | None = None) -> list[ChoiceFlips]:
    """Compare the program's choices with those of the float model, both of the scores that the choices before
    lead to. The quantized model, if there is one, says how far rounding moves scores: its choices are paired
    with the float model's."""
    graph, chosen = floats.graph, floats.chosen
    exact = _scores(floats)
    rounded = _scores(quantized) if quantized else []
    flips = []
    for number, choice in enumerate(floats.choices):
        own, scores = exact[number]
        noisy = rounded[number][1] if rounded else ()
        rows = zip(own, chosen[choice.node], strict=True)
        flipped = sum(int((one != other).sum()) for one, other in rows)
        judge = _beyond_comparison if choice.compares else _beyond_selection
        beyond = judge(graph, choice, own, chosen[choice.node], scores, noisy) if flipped else 0
        place = graph.operator_at(choice.operator)
        flips.append(ChoiceFlips(**asdict(place), choices=_size(own), flipped=flipped, unexplained=beyond))
    return flips


def _within_all(graph: Graph, choices: Sequence[InnerChoice], chosen: Arrays) -> Arrays:
    """Return the choices with each index among all values: nothing computes with one that is beyond them."""
    import numpy

    selections = [choice for choice in choices if not choice.compares]
    operands = {choice.node: graph.nodes[choice.operator].reads[0] for choice in selections}
    values = graph.values_at(list(dict.fromkeys(operands.values())))
    within = dict(chosen)
    for choice in selections:
        (first, *_), dim = values[operands[choice.node]], graph.dimension(choice.operator)
        last = (first.size if dim is None else first.shape[dim]) - 1
        within[choice.node] = [numpy.clip(array, 0, last) for array in chosen[choice.node]]
    return within


Operands = Sequence[Sequence[Array]]
"""It has the one operand or the two of an operator, each an array for each sample."""


def _scores(choosing: Choosing) -> list[tuple[Sequence[Array], Operands]]:
    """Return, for each choice, what the graph would choose and the operands of its operator."""
    graph, choices = choosing.graph, choosing.choices
    operands = {choice.node: graph.nodes[choice.operator].reads for choice in choices}
    names = [*operands, *chain.from_iterable(operands.values())]
    within = _within_all(graph, choices, choosing.chosen)
    values = graph.own_values(list(dict.fromkeys(names)), within)
    assert values is not None
    rows: list[tuple[Sequence[Array], Operands]] = []
    for node, reads in operands.items():
        rows.append((values[node], [values[name] for name in reads]))
    return rows


def _beyond_selection(
    graph: Graph,
    choice: InnerChoice,
    own: Sequence[Array],
    chosen: Sequence[Array],
    scores: Operands,
    noisy: Operands,
) -> int:
    """Count the indices that point at scores which differ by more than rounding."""
    arrays, rounded = _rows(graph, choice, scores[0]), _rows(graph, choice, noisy[0] if noisy else ())
    dim = (graph.dimension(choice.operator) or 0) % arrays[0].ndim
    noise = tie_noise(arrays, rounded, dim)
    beyond = 0
    for truth, indices, values in zip(own, chosen, arrays, strict=True):
        pair = pair_of_choice("", truth, indices, 0, values, dim=dim, noise=noise)
        assert pair.choice is not None
        beyond += int((~pair.choice.ties(pair.expected, pair.found)).sum())
    return beyond


def _rows(graph: Graph, choice: InnerChoice, arrays: Sequence[Array]) -> list[Array]:
    """Return the values that an operator chose among; those of all dimensions are in one row."""
    if graph.dimension(choice.operator) is None:
        return [array.reshape(-1) for array in arrays]
    return list(arrays)


def _beyond_comparison(
    graph: Graph,
    choice: InnerChoice,
    own: Sequence[Array],
    chosen: Sequence[Array],
    scores: Operands,
    noisy: Operands,
) -> int:
    """Count the places of a mask where the compared values are farther apart than rounding moves them."""
    number = graph.number(choice.operator)
    sides = [_sides(scores, number), *([_sides(noisy, number)] if noisy else [])]
    noise = comparison_noise(*(list(rows) for rows in sides))
    beyond = 0
    for truth, mask, (left, right) in zip(own, chosen, _sides(scores, number), strict=True):
        beyond += int(((truth != mask) & (abs(left - right) > noise)).sum())
    return beyond


def _sides(operands: Operands, number: float | None) -> Iterator[tuple[Array, Array | float]]:
    """Yield both sides of a comparison for each sample."""
    if len(operands) > 1:
        yield from zip(*operands, strict=True)
    else:
        for array in operands[0]:
            # Without a number, the operator compares a value with itself.
            yield array, array if number is None else number


def _size(arrays: Sequence[Array]) -> int:
    return sum(array.size for array in arrays)
