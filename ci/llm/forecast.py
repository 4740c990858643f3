"""What a model will cost to compile for Genie, from what layers, embedding and head of Llama 3.2 1B did."""

from __future__ import annotations

from dataclasses import dataclass

from ci.llm.architecture import Architecture
from ci.suites.baseline import baseline_path, load_baseline
from provisioning.base.settings import DEFAULT_PROFILE, MANIFESTS
from provisioning.base.units import seconds, size

SUITE = MANIFESTS / "suites" / "llama-3.2-1b.toml"
CHIP = "SM8750"
CASES = ("layer", "layers", "embedding", "head")
"""Of the suite; `layers` are two."""
LAYER, WORDS = 60_817_408, 128_256 * 2048
"""Weights of its layer, and of its embedding as of its head."""
GRAPHS = 2
"""Prefill and decode."""
START, COMPILING = 13.0, 0.4
"""Seconds that even the smallest model takes, and the share of the suite's seconds that is compiling: it also
runs and compares. Measured with one layer (26 s) and with 16 (330 s)."""
READING, ATTENDING = 1.6e-9, 2.3e-8
"""Seconds to quantize by: for a weight and a token of the context, and for a value of a token's query and a
token that it looks at. Measured with a layer at contexts of 512, 1024 and 2048 (102, 182 and 441 s)."""

MEMORY = {"fp16": (0.65e9, 15.6), "u16u8": (1.3e9, 25.0)}
"""Bytes: even for the smallest model, and for each weight of the largest part. Measured with parts of 62 and
323 million weights (fp16), and of 62 and 195 (u16u8)."""


@dataclass(frozen=True, slots=True)
class Cost:
    bytes: float
    seconds: float
    """Of one core."""
    memory: float
    """At its peak, in bytes."""

    def __str__(self) -> str:
        return f"{size(self.bytes)}, {seconds(self.seconds)} of a core and {size(self.memory)} of memory"


def forecast(
    shape: Architecture, precision: str, parts: int, context: int, shared: bool = False
) -> Cost | None:
    """None for a precision that was not measured. The context costs the time to quantize by it; a binary is
    1 % larger at 4096 than at 512, as the cache is not in it."""
    programs = load_baseline(baseline_path(SUITE, DEFAULT_PROFILE)).programs
    measured = [programs.get(f"{case}/{precision}/{CHIP}") for case in CASES]
    if None in measured:
        return None
    layer, words = shape.weights_of_layer, shape.weights_of_words

    def cost_of(name: str) -> float:
        one, two, embedding, head = (float(getattr(each, name)) for each in measured)
        return shape.layers * layer / LAYER * (two - one) + words / WORDS * (embedding + head)

    long = START + COMPILING * GRAPHS * cost_of("cpu_seconds")
    if precision != "fp16":
        long += context * READING * (shape.layers * layer + words)
        long += context**2 * ATTENDING * shape.layers * shape.heads * shape.size
    least, by_weight = MEMORY[precision]
    return Cost(
        bytes=cost_of("context_bytes") * (1 if shared else GRAPHS),
        seconds=long,
        memory=least + by_weight * max(shape.weights(parts)),
    )
