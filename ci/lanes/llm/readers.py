"""What reads tokens with graphs of static shapes. For workers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.graphs import call, empty_caches, place_axis
from ci.lanes.llm.orders import EXECUTORCH, GENIE, CompileOrder
from ci.models.arrays import Array, Sample

Step = Callable[[Sample], Sample]
"""One call of a graph: floats by the names of its inputs and of its outputs, as Genie has them."""
STEPS = {GENIE: "ci.lanes.llm.contexts", EXECUTORCH: "ci.lanes.llm.programs"}
"""Modules with a `steps`, imported when needed, as each loads another QNN."""
HANDED_OVER = 4
"""Tokens of a text that prefill reads before decode."""


class TokenReader(Protocol):
    def restart(self) -> None: ...

    def read(self, tokens: Sequence[int]) -> Array:
        """The logits after these tokens, which follow those that it got before."""


def steps(
    order: CompileOrder, shape: Architecture, kind: str, parts: Sequence[int], *, cpu: bool = False
) -> dict[str, Step]:
    """Of these parts of a kind of graph: one on HTP, unless `cpu`, and one on the CPU, if quantized."""
    of_runtime = importlib.import_module(STEPS[order.through]).steps
    found: dict[str, Step] = of_runtime(order, shape, kind, parts, cpu=cpu)
    return found


def readers(
    order: CompileOrder, shape: Architecture, kind: str, *, cpu: bool = False
) -> Mapping[str, TokenReader]:
    """Of all parts, by the kind of graph and where it runs."""

    def of_kind(kind: str) -> dict[str, GraphReader]:
        found = steps(order, shape, kind, range(order.parts), cpu=cpu)
        return {where: GraphReader(shape, order.context, order.count(kind), found[where]) for where in found}

    found = of_kind(kind)
    if order.through == GENIE or kind == "prefill":
        return {f"{kind}_{where}": reader for where, reader in found.items()}
    # What prefill leaves in the cache must be what decode reads.
    prefill = of_kind("prefill")
    return {
        f"{kind}_{where}": HandedOver(prefill[where], decode, HANDED_OVER) for where, decode in found.items()
    }


@dataclass
class GraphReader:
    """Reads tokens block by block, and keeps their cache."""

    shape: Architecture
    context: int
    count: int
    step: Step

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        layers = range(self.shape.num_layers)
        self.position, self._caches = 0, empty_caches(self.shape, layers, self.context - self.count)

    def take(self, other: GraphReader) -> None:
        """Go on where another one has stopped."""
        self.restart()
        for name, values in other._caches.items():
            self._keep(name, values, other.position)
        self.position = other.position

    def read(self, tokens: Sequence[int]) -> Array:
        rows = []
        for start in range(0, len(tokens), self.count):
            some = tokens[start : start + self.count]
            outputs = self.step(call(self.shape, self.context, self.count, some, self.position, self._caches))
            for name in (name for name in outputs if name.startswith("past_")):
                self._keep(name.replace("_out", "_in"), outputs[name], len(some))
            self.position += len(some)
            rows.append(outputs["logits"].reshape(self.count, -1)[: len(some)])
        return np.concatenate(rows).astype(np.float32)

    def _keep(self, name: str, new: Array, count: int) -> None:
        """Put the first values behind those that are there. What does not fit is read in this call only."""
        cache, axis = self._caches[name], place_axis(name)
        there = (slice(None),) * axis + (slice(self.position, self.position + count),)
        here = (slice(None),) * axis + (slice(0, cache[there].shape[axis]),)
        cache[there] = new[here]


@dataclass
class HandedOver:
    """Reads at most so many tokens by prefill, and goes on by decode with what prefill left in the cache."""

    prefill: GraphReader
    decode: GraphReader
    most: int

    def restart(self) -> None:
        self.prefill.restart()
        self.decode.restart()

    def read(self, tokens: Sequence[int]) -> Array:
        if self.decode.position:
            return self.decode.read(tokens)
        rows, rest = self.prefill.read(tokens[: self.most]), tokens[self.most :]
        self.decode.take(self.prefill)
        return np.concatenate([rows, self.decode.read(rest)]) if rest else rows
