"""The list of `quantize --where`: what each operator loses against the float model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ci.pipeline.options import OneModel
from provisioning.base import units


class Scores(Protocol):
    """What is asked of a lane's module `tune`."""

    def scores_of(self, model: OneModel, program: Any, exact: str, seconds: float = ...) -> Mapping[str, Any]:
        """By group of operators, the noise in the outputs if it alone is quantized, and that of all."""


SHOWN = 20
MOST_DB = 120.0
"""Outputs that differ by less are equal."""
HALF_MOST = 65504.0
"""The largest finite value of fp16."""


N = TypeVar("N")


def losses_of(
    nodes: Iterable[N],
    name: Callable[[N], str],
    operands_of: Callable[[N], Iterable[N]],
    decibels: Callable[[N], float | None],
    described: Callable[[N], Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The operators whose outputs are farther from float than their operands, the worst first. `decibels` is
    None for what a quantizer added, or fused with the next: its effect shows there."""
    reached: dict[str, float] = {}
    found: list[tuple[float, dict[str, Any]]] = []
    for node in nodes:
        before = min((reached.get(name(operand), MOST_DB) for operand in operands_of(node)), default=MOST_DB)
        measured = decibels(node)
        if measured is None:
            reached[name(node)] = before
            continue
        after = reached[name(node)] = max(-MOST_DB, min(MOST_DB, measured))
        # Where nothing of the signal is left, it is as bad as can be.
        added = 10 ** (-max(after, 0.0) / 10) - 10 ** (-max(before, 0.0) / 10)
        if added > 0:
            row = {**described(node), "before_db": round(before, 1), "after_db": round(after, 1)}
            found.append((added, row))
    return [row for _, row in sorted(found, key=lambda pair: -pair[0])]


def as_text(whole: str, losses: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """`losses` have, by operator, the SQNR of its inputs and of its output."""
    yield whole
    if not losses:
        yield "no operator loses accuracy"
        return
    rows = [("after", "before", "operator", "where")]
    rows += [
        (f"{loss['after_db']:.1f} dB", _before(loss["before_db"]), loss["operator"], where_of(loss))
        for loss in losses[:SHOWN]
    ]
    yield from units.aligned(rows)
    if more := len(losses) - SHOWN:
        yield from [f"and {more} that lose less"] * (more > 0)


def _before(decibels: float) -> str:
    return "exact" if decibels >= MOST_DB else f"{decibels:.1f} dB"


def where_of(row: Mapping[str, Any]) -> str:
    place = f"{row['source']} `{row['code']}`" if row["source"] else str(row.get("node", ""))
    module = row.get("module", "")
    return " ".join(filter(None, [module if module[:1] != "(" else "", place]))
