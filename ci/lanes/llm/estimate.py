"""What a model will cost to compile for Genie, from what layers, embedding and head of Llama 3.2 1B did."""

from __future__ import annotations

from dataclasses import dataclass

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.suite import FOUR_BITS
from ci.pipeline.baseline import load_baseline
from ci.pipeline.precision import written_name
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
"""Seconds that even the smallest model takes, most of them for imports, and the share of the suite's seconds
that is compiling: it also runs and compares. Measured with one layer (26 s) and with 16 (330 s)."""
READING = 9.2e-11
"""Seconds for a weight and a token of the text to quantize by. Measured with a layer: 86 s at a context of
1024, 87 s at 2048 and 113 s at 4096."""
FORWARD = 4.5e-11
"""Seconds of transformers' float model for a weight and a token, with what rounds it. Measured with 36
million weights and 6,800 tokens: 11 s."""

MEMORY = {"fp16": (0.65e9, 15.6), "u16u8": (1.3e9, 25.0)}
"""Bytes: even for the smallest model, and for each weight of the largest part. Measured with parts of 62 and
323 million weights (fp16), and of 62 and 195 (u16u8)."""
FOUR_BITS_BYTES = 0.5
"""Of what a layer has with weights of 8 bits."""
SCORE = 8
"""Bytes for each pair of tokens of a head, while float reads a row: 5.3 GB for a layer at 4096."""


def seconds_of_rounding(shape: Architecture, calibration: int, judged: int) -> float:
    """Of measuring what rounding costs: float reads what quantizes it, and twice what is judged."""
    return START + FORWARD * sum(shape.weights(1)) * (calibration + 2 * judged)


@dataclass(frozen=True, slots=True)
class CompileCost:
    bytes: float
    seconds: float
    """Of one core."""
    memory: float
    """At its peak, in bytes."""

    def __str__(self) -> str:
        return f"{size(self.bytes)}, {seconds(self.seconds)} of a core and {size(self.memory)} of memory"


def estimated(
    shape: Architecture, precision: str, parts: int, context: int, shared: bool = False
) -> CompileCost | None:
    """None for a precision that was not measured. The context costs the time to quantize by it; a binary is
    1 % larger at 4096 than at 512, as the cache is not in it."""
    four_bits = precision == FOUR_BITS
    precision = "u16u8" if four_bits else precision
    programs = load_baseline(SUITE, DEFAULT_PROFILE, "onnx").programs
    measured = [programs.get(f"{case}/{written_name(precision)}/{CHIP}") for case in CASES]
    if None in measured:
        return None
    layer, words = shape.weights_of_layer, shape.weights_of_words

    def cost_of(name: str, share: float = 1.0) -> float:
        one, two, embedding, head = (float(getattr(build, name)) for build in measured)
        return share * shape.num_layers * layer / LAYER * (two - one) + words / WORDS * (embedding + head)

    long = START + COMPILING * GRAPHS * cost_of("cpu_seconds")
    least, by_weight = MEMORY[precision]
    memory = least + by_weight * max(shape.weights(parts))
    if precision != "fp16":
        from ci.lanes.llm.measure import calibration_windows

        tokens = calibration_windows(context) * context
        long += tokens * READING * (shape.num_layers * layer + words)
        memory = max(memory, least + SCORE * shape.num_heads * context**2)
    return CompileCost(
        bytes=cost_of("context_bytes", FOUR_BITS_BYTES if four_bits else 1.0) * (1 if shared else GRAPHS),
        seconds=long,
        memory=memory,
    )
