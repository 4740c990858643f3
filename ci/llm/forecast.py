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
START = 15.0
"""Seconds that even the smallest model takes."""


@dataclass(frozen=True, slots=True)
class Cost:
    bytes: float
    seconds: float
    """Of one core."""
    memory: float
    """At its peak, in bytes."""

    def __str__(self) -> str:
        return f"{size(self.bytes)}, {seconds(self.seconds)} of a core and {size(self.memory)} of memory"


def forecast(shape: Architecture, precision: str, parts: int, *, shared: bool = False) -> Cost | None:
    """None for a precision that was not measured."""
    programs = load_baseline(baseline_path(SUITE, DEFAULT_PROFILE)).programs
    costs = [programs.get(f"{case}/{precision}/{CHIP}") for case in CASES]
    if None in costs:
        return None
    layer, words = shape.weights_of_layer / LAYER, shape.weights_of_words / WORDS
    spans = [shape.part(number, parts) for number in range(parts)]

    def of_parts(name: str) -> list[float]:
        """Without the share that does not grow with the weights."""
        one, two, embedding, head = (getattr(cost, name) for cost in costs)
        return [
            (last - first) * layer * (two - one)
            + words * ((first == 0) * embedding + (last == shape.layers) * head)
            for first, last in spans
        ]

    return Cost(
        bytes=sum(of_parts("context_bytes")) * (1 if shared else GRAPHS),
        seconds=START + GRAPHS * sum(of_parts("cpu_seconds")),
        memory=1e6 * max(of_parts("peak_mb")),
    )
