"""What `compile` wrote for a checkpoint, and what reads tokens with it. For workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.graphs import Encoding, edge_encodings
from ci.models.arrays import Array, Sample
from provisioning.manifest import Soc


class TokenReader(Protocol):
    def restart(self) -> None: ...

    def read(self, tokens: Sequence[int]) -> Array: ...


class CompiledReader(TokenReader, Protocol):
    count: int
    context: int

    def alone(self, inputs: Sample) -> Sample:
        """What the only part makes of inputs, which have a cache of their own."""


@dataclass(frozen=True)
class Compiled:
    """What `compile` wrote, and the checkpoint that it was made from. These are Genie's context binaries."""

    out: Path
    folder: Path
    shape: Architecture
    soc: Soc
    record: Mapping[str, Any]

    @property
    def context(self) -> int:
        return int(self.record["context"])

    @property
    def parts(self) -> int:
        return int(self.record["parts"])

    @property
    def quantized(self) -> bool:
        return bool(self.record["precision"] != "fp16")

    def readers(
        self, kind: str, *, cpu: bool = False, only: int | None = None
    ) -> Mapping[str, CompiledReader]:
        """One on HTP, unless `cpu`, and of a quantized model another one on the CPU. `only` is a part."""
        from ci.lanes.llm.checkpoint_compile import on_cpu_name
        from ci.lanes.llm.contexts import ContextReader, load_context, on_cpu

        parts = range(self.parts) if only is None else [only]
        graphs = [self.out / on_cpu_name(kind, part) for part in parts if self.quantized]
        encodings: dict[str, Encoding] = {}
        for graph in graphs:
            encodings |= edge_encodings(graph)
        readers: dict[str, CompiledReader] = {}
        if not cpu:
            wrappers = [self.out / f"{kind}_{part}.onnx" for part in parts]
            sessions = [load_context(wrapper, self.soc) for wrapper in wrappers]
            readers[f"{kind}_htp"] = ContextReader(self.shape, sessions, encodings)
        if graphs:
            readers[f"{kind}_cpu"] = ContextReader(self.shape, [on_cpu(graph) for graph in graphs], encodings)
        return readers

    @property
    def cache(self) -> int:
        """Bits of keys and values; 0 where they are not integers."""
        from ci.lanes.llm.checkpoint_compile import on_cpu_name

        if not self.quantized:
            return 0
        encodings = edge_encodings(self.out / on_cpu_name("decode", 0))
        return 8 * np.dtype(encodings["past_key_0_in"].dtype).itemsize
