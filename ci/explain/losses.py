"""What is lost on the CPU: by each operator, by quantizing a group of operators, and by fp16's range."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ci.explain.graph import Graph, Node, groups_of
from ci.models.arrays import Array
from ci.suite.accuracy import EQUAL_DB, HALF_MOST
from provisioning.base.units import aligned, in_decibels

SHOWN = 20
FOREVER = 1e9
"""Seconds; a request has no infinity."""


def losses_of(graph: Graph, decibels: Callable[[str], float | None]) -> list[dict[str, Any]]:
    """The operators whose outputs are farther from float than their operands, the worst first. `decibels` is
    None for what a quantizer added, or fused with the next: its effect shows there."""
    reached: dict[str, float] = {}
    losses: list[tuple[float, dict[str, Any]]] = []
    for name, node in graph.nodes.items():
        before = min((reached.get(operand, EQUAL_DB) for operand in node.reads), default=EQUAL_DB)
        measured = decibels(name)
        if measured is None:
            reached[name] = before
            continue
        after = reached[name] = max(-EQUAL_DB, min(EQUAL_DB, measured))
        # Where nothing of the signal is left, it is as bad as can be.
        added = 10 ** (-max(after, 0.0) / 10) - 10 ** (-max(before, 0.0) / 10)
        if added > 0:
            figures = {"before_db": round(before, 1), "after_db": round(after, 1)}
            losses.append((added, {**graph.described(name), "node": name, **figures}))
    return [row for _, row in sorted(losses, key=lambda pair: -pair[0])]


def beyond_of(graph: Graph, masks: tuple[str, ...]) -> list[dict[str, Any]]:
    """The operators of a float model whose outputs leave fp16, while what they read does not, each with its
    line and its largest value. Numbers of any size in `masks` are meant to be infinite."""
    rows: dict[str, dict[str, Any]] = {}
    for number in range(len(graph.samples)):
        largest = {name: largest_of(values) for name, values in graph.values(number).items()}
        for name, node in graph.nodes.items():
            if largest.get(name, 0.0) <= HALF_MOST or node.kind.startswith(masks):
                continue
            if node.reads and all(largest.get(operand, 0.0) <= HALF_MOST for operand in node.reads):
                row = rows.setdefault(name, {**graph.described(name), "node": name, "largest": 0.0})
                row["largest"] = max(row["largest"], largest[name])
    return [*rows.values()]


def largest_of(values: Array) -> float:
    """The largest that is finite."""
    import numpy

    return float(abs(values[numpy.isfinite(values)]).max(initial=0.0))


def scores_of(floats: Graph, quantized: Sequence[Graph], seconds: float = FOREVER) -> dict[str, Any]:
    """The groups of operators, with the noise that each adds to the outputs if it alone is quantized as in
    each of these models; the noise of each model as a whole; and how many groups the time did not suffice
    for: those that err least by themselves. By the first sample."""
    over = time.monotonic() + seconds
    values, groups, count = floats.values(0), groups_of(floats), len(quantized)
    errors = [floats.errors_of(model) for model in quantized]
    (wanted,) = floats.exact
    whole = [_noise(wanted, model.exact[0]) for model in quantized]
    if seconds < FOREVER:
        groups.sort(key=lambda nodes: -max(_own_share(errors[0], values, node.name) for node in nodes))

    def of_groups() -> Iterator[Mapping[str, Array]]:
        for nodes in groups:
            if time.monotonic() > over:
                return
            for of_model in errors:
                yield {node.name: of_model[node.name] for node in nodes if node.name in of_model}

    noises = [_noise(wanted, outputs) for outputs in floats.disturbed(of_groups())]
    grouped = {node.name for nodes in groups for node in nodes}
    units = [
        {
            **floats.described(nodes[0].name),
            **_sizes(floats, nodes, values, grouped),
            "noise": noises[number * count :][:count],
        }
        for number, nodes in enumerate(groups[: len(noises) // count])
    ]
    return {"units": units, "whole": whole, "left": len(groups) - len(units)}


def _sizes(
    graph: Graph, nodes: Sequence[Node], values: Mapping[str, Array], grouped: set[str]
) -> dict[str, Any]:
    """A group's nodes, their elements, and by the operator of another group how many elements it reads."""
    names, reads = [node.name for node in nodes], dict[str, int]()
    for name in sorted({operand for node in nodes for operand in node.reads} & grouped - {*names}):
        if name in values:
            (operator,) = graph.named([name])
            reads[operator] = reads.get(operator, 0) + values[name].size
    size = sum(values[name].size for name in names if name in values)
    return {"nodes": graph.named(names), "size": size, "reads": reads}


def _own_share(errors: Mapping[str, Array], values: Mapping[str, Array], name: str) -> float:
    """An operator's own error, relative to what it gives."""
    return _noise([values[name]], [values[name] + errors[name]]) if name in errors else 0.0


def _noise(wanted: Sequence[Array], outputs: Sequence[Array]) -> float:
    """Of the worst output, relative to its signal."""
    worst = 0.0
    for right, values in zip(wanted, outputs, strict=True):
        signal = float((right.astype("f8") ** 2).sum())
        noise = float(((values.astype("f8") - right) ** 2).sum())
        worst = max(worst, noise / signal if signal else 0.0)
    return worst


def as_text(whole: str, losses: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """`losses` have, by operator, the SQNR of its inputs and of its output."""
    yield whole
    if not losses:
        yield "no operator loses accuracy"
        return
    rows = [("after", "before", "operator", "where")]
    rows += [
        (in_decibels(loss["after_db"]), _before(loss["before_db"]), loss["operator"], where_of(loss))
        for loss in losses[:SHOWN]
    ]
    yield from aligned(rows)
    if (more := len(losses) - SHOWN) > 0:
        yield f"and {more} that lose less"


def _before(decibels: float) -> str:
    return "exact" if decibels >= EQUAL_DB else in_decibels(decibels)


def where_of(row: Mapping[str, Any]) -> str:
    place = f"{row['source']} `{row['code']}`" if row["source"] else str(row.get("node", ""))
    module = row.get("module", "")
    return " ".join(filter(None, [module if module[:1] != "(" else "", place]))
