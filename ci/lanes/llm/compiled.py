"""What `compile` wrote for a checkpoint, and what reads tokens with it. For workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.graphs import Encoding, edge_encodings
from ci.lanes.llm.orders import CompileOrder
from ci.models.arrays import Array, Sample
from provisioning.manifest import soc_named

if TYPE_CHECKING:
    from ci.lanes.llm.contexts import ContextReader


class TokenReader(Protocol):
    def restart(self) -> None: ...

    def read(self, tokens: Sequence[int]) -> Array: ...


class PartReader(TokenReader, Protocol):
    count: int
    context: int

    def alone(self, inputs: Sample) -> Sample:
        """What the only part makes of inputs, which have a cache of their own."""


@dataclass(frozen=True)
class Compiled:
    """What `compile` wrote by an order. These are Genie's context binaries."""

    out: Path
    shape: Architecture
    order: CompileOrder

    def readers(self, kind: str, *, cpu: bool = False) -> Mapping[str, TokenReader]:
        """Of all parts: one on HTP, unless `cpu`, and of a quantized model another one on the CPU."""
        return self._readers(kind, range(self.order.parts), cpu=cpu)

    def readers_of_part(self, kind: str, number: int) -> Mapping[str, PartReader]:
        return self._readers(kind, [number])

    def _readers(self, kind: str, parts: Sequence[int], *, cpu: bool = False) -> dict[str, ContextReader]:
        from ci.lanes.llm.checkpoint_compile import on_cpu_name
        from ci.lanes.llm.contexts import ContextReader, load_context, on_cpu

        graphs = [self.out / on_cpu_name(kind, part) for part in parts if self.order.quantized]
        encodings: dict[str, Encoding] = {}
        for graph in graphs:
            encodings |= edge_encodings(graph)
        readers: dict[str, ContextReader] = {}
        if not cpu:
            wrappers = [self.out / f"{kind}_{part}.onnx" for part in parts]
            sessions = [load_context(wrapper, soc_named(self.order.soc)) for wrapper in wrappers]
            readers[f"{kind}_htp"] = ContextReader(self.shape, sessions, encodings)
        if graphs:
            readers[f"{kind}_cpu"] = ContextReader(self.shape, [on_cpu(graph) for graph in graphs], encodings)
        return readers
