"""Measure what is lost on the CPU: by each operator, by quantizing a group of operators, and by fp16's range.

`quantize --where` prints the losses, `tune` asks for the scores of groups, and `compile` names operators that
leave fp16's range."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from ci.explain.graph import CONSTANT, Graph, Node, groups_of
from ci.models.inputs import Array
from ci.models.model_lines import OperatorAt
from ci.suite.accuracy import HALF_MOST
from ci.suite.figures import EQUAL_DB
from ci.work import irrelevant
from provisioning.base.units import align, format_decibels

SHOWN = 20
FOREVER = 1e9
"""A time limit in seconds that never ends: a request cannot hold infinity."""
BEYOND_NAMED = 3


@dataclass(frozen=True, slots=True)
class Loss(OperatorAt):
    """The output of this operator is farther from the reference than what it reads."""

    node: str
    before_db: float
    after_db: float

    @property
    def figures(self) -> str:
        return f"{format_decibels(self.before_db)} before it, {format_decibels(self.after_db)} after it"

    def describe(self) -> str:
        of_module = f" of {self.module}" if self.module else ""
        line = f" at {self.source} `{self.code}`" if self.source else ""
        return f"{self.operator}{of_module}{line} ({self.figures})"


@dataclass(frozen=True, slots=True)
class BeyondHalf(OperatorAt):
    """The values of this operator of a float model leave fp16's range."""

    node: str
    largest: float


@dataclass(frozen=True, slots=True)
class GroupScore(OperatorAt):
    """These operators change their precision together, under the name of the first."""

    nodes: tuple[str, ...]
    size: int
    """Their outputs have so many elements."""
    reads: Mapping[str, int]
    """Maps an operator of another group to the number of elements that they read of it."""
    noise: tuple[float, ...]
    """They add this noise to the outputs, relative to the signal, if they alone are quantized: at a cheap
    precision, and at a more exact one if there are two."""

    @property
    def exact(self) -> float:
        return sum(self.noise[1:])

    @property
    def gain(self) -> float:
        return max(self.noise[0] - self.exact, 0.0)

    @property
    def where(self) -> str:
        nodes = ", ".join(self.nodes[:2]) + ("…" if len(self.nodes) > 2 else "")
        return " ".join(filter(None, [nodes, where_of(self)]))


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    exact: str
    """The second precision, beside the program's."""
    seconds: float = field(default=FOREVER, metadata=irrelevant("a time limit: what ends early is not kept"))


@dataclass(frozen=True, slots=True)
class Scores:
    units: tuple[GroupScore, ...]
    totals: tuple[float, ...]
    """The noise of the model if all of it is quantized, at each precision."""
    rest: int
    """There was no time for so many groups; they err least by themselves."""


def losses_of(graph: Graph, decibels: Callable[[str], float | None]) -> tuple[Loss, ...]:
    """Return the operators whose outputs are farther from float than their operands, the worst first.
    `decibels` is None for a node that a quantizer added, or fused with the next: its effect shows there."""
    levels: dict[str, float] = {}
    losses: list[tuple[float, Loss]] = []
    for name, node in graph.nodes.items():
        before = min((levels.get(operand, EQUAL_DB) for operand in node.reads), default=EQUAL_DB)
        figure = decibels(name)
        if figure is None:
            levels[name] = before
            continue
        after = levels[name] = max(-EQUAL_DB, min(EQUAL_DB, figure))
        # Where nothing of the signal is left, it is as bad as can be.
        noise = 10 ** (-max(after, 0.0) / 10) - 10 ** (-max(before, 0.0) / 10)
        if noise > 0:
            place, before_db, after_db = asdict(graph.operator_at(name)), round(before, 1), round(after, 1)
            losses.append((noise, Loss(**place, node=name, before_db=before_db, after_db=after_db)))
    return tuple(loss for _, loss in sorted(losses, key=lambda pair: -pair[0]))


def beyond_of(graph: Graph, masks: tuple[str, ...]) -> tuple[BeyondHalf, ...]:
    """Return the operators of a float model whose outputs leave fp16's range while their operands do not,
    and the inputs and weights beyond it, each with its line and its largest value. Operators whose kind
    begins as one of `masks` are left out, and constants that are only added: their large numbers are meant
    to be infinite."""
    rows: dict[str, BeyondHalf] = {}
    for number in range(len(graph.samples)):
        largest = {name: largest_of(values) for name, values in graph.values(number).items()}
        for name, node in graph.nodes.items():
            if largest.get(name, 0.0) <= HALF_MOST or node.kind.startswith(masks):
                continue
            if any(largest.get(operand, 0.0) > HALF_MOST for operand in node.reads):
                continue
            if node.kind == CONSTANT and all(_adds(graph.nodes[reader]) for reader in graph.readers[name]):
                continue
            place = asdict(graph.operator_at(name))
            row = rows.setdefault(name, BeyondHalf(**place, node=name, largest=0.0))
            rows[name] = replace(row, largest=max(row.largest, largest[name]))
    return tuple(rows.values())


def _adds(reader: Node) -> bool:
    return reader.kind.removeprefix("aten.").lower().startswith(("add", "sub"))


def beyond_in_words(beyond: Sequence[BeyondHalf]) -> str:
    """Name the operators of a float model that leave fp16's range; empty if none does."""
    words = [f"{row.place} has values up to {row.largest:.3g}" for row in beyond[:BEYOND_NAMED]]
    return f"in fp16 nothing is above {HALF_MOST:g}, and {', '.join(words)}" if words else ""


def largest_of(values: Array) -> float:
    """Return the largest finite magnitude."""
    import numpy

    return float(abs(values[numpy.isfinite(values)]).max(initial=0.0))


def scores_of(floats: Graph, quantized: Sequence[Graph], seconds: float = FOREVER) -> Scores:
    """Score each group of operators by quantizing it alone, as in each of these models, on the first
    sample."""
    over = time.monotonic() + seconds
    values, groups, count = floats.values(0), groups_of(floats), len(quantized)
    errors = [floats.errors_of(model) for model in quantized]
    (reference,) = floats.exact
    totals = [_noise(reference, model.exact[0]) for model in quantized]
    if seconds < FOREVER:
        groups.sort(key=lambda nodes: -max(_own_share(errors[0], values, node.name) for node in nodes))

    def group_errors() -> Iterator[Mapping[str, Array]]:
        for nodes in groups:
            if time.monotonic() > over:
                return
            for of_model in errors:
                yield {node.name: of_model[node.name] for node in nodes if node.name in of_model}

    noises = [_noise(reference, outputs) for outputs in floats.disturbed(group_errors())]
    members = {node.name for nodes in groups for node in nodes}
    units = tuple(
        _score(floats, nodes, values, members, noises[number * count :][:count])
        for number, nodes in enumerate(groups[: len(noises) // count])
    )
    return Scores(units, tuple(totals), len(groups) - len(units))


def _score(
    graph: Graph,
    nodes: Sequence[Node],
    values: Mapping[str, Array],
    members: set[str],
    noise: Sequence[float],
) -> GroupScore:
    names, reads = [node.name for node in nodes], dict[str, int]()
    for name in sorted({operand for node in nodes for operand in node.reads} & members - {*names}):
        if name in values:
            (operator,) = graph.operator_names([name])
            reads[operator] = reads.get(operator, 0) + values[name].size
    size = max(sum(values[name].size for name in names if name in values), 1)
    place = asdict(graph.operator_at(names[0]))
    return GroupScore(
        **place, nodes=tuple(graph.operator_names(names)), size=size, reads=reads, noise=tuple(noise)
    )


def _own_share(errors: Mapping[str, Array], values: Mapping[str, Array], name: str) -> float:
    """Return an operator's own error, relative to what it gives."""
    return _noise([values[name]], [values[name] + errors[name]]) if name in errors else 0.0


def _noise(reference: Sequence[Array], outputs: Sequence[Array]) -> float:
    """Return the noise of the worst output, relative to its signal."""
    worst = 0.0
    for right, values in zip(reference, outputs, strict=True):
        signal = float((right.astype("f8") ** 2).sum())
        noise = float(((values.astype("f8") - right) ** 2).sum())
        worst = max(worst, noise / signal if signal else 0.0)
    return worst


def text_lines(summary: str, losses: Sequence[Loss]) -> Iterator[str]:
    """Yield the losses as a table. `summary` says what the model loses."""
    yield summary
    if not losses:
        yield "no operator loses accuracy"
        return
    rows = [("after", "before", "operator", "where")]
    rows += [
        (format_decibels(loss.after_db), _before(loss.before_db), loss.operator, where_of(loss, loss.node))
        for loss in losses[:SHOWN]
    ]
    yield from align(rows)
    if (more := len(losses) - SHOWN) > 0:
        yield f"and {more} that lose less"


def _before(decibels: float) -> str:
    return "exact" if decibels >= EQUAL_DB else format_decibels(decibels)


def where_of(row: OperatorAt, node: str = "") -> str:
    """Return an operator's module with its line, or with its node if the line is not known."""
    place = f"{row.source} `{row.code}`" if row.source else node
    return " ".join(filter(None, [row.module if row.module[:1] != "(" else "", place]))
