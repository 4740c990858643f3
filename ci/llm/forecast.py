"""What a model will cost to compile for Genie, from measured layers of Llama 3.2 1B."""

from __future__ import annotations

from ci.llm.architecture import Architecture
from ci.suites.baseline import baseline_path, load_baseline
from provisioning.base.settings import DEFAULT_PROFILE, MANIFESTS
from provisioning.base.units import seconds, size

SUITE = MANIFESTS / "suites" / "llama-3.2-1b.toml"
CHIP = "SM8750"
LAYER, WORDS = 60_817_408, 512 * 2048
"""Weights of a layer, and of the suite's embedding as of its head."""
ONE = LAYER + 2 * WORDS
GRAPHS = 2
"""Prefill and decode."""
START = 15.0
"""Seconds that even the smallest model takes."""


def forecast(shape: Architecture, precision: str, parts: int, *, shared: bool = False) -> str:
    """Empty for a precision that was not measured."""
    programs = load_baseline(baseline_path(SUITE, DEFAULT_PROFILE)).programs
    one, two = (programs.get(f"{case}/{precision}/{CHIP}") for case in ("layer", "layers"))
    if one is None or two is None:
        return ""
    weights = shape.weights(parts)
    share = sum(weights) / ONE
    large = share * (one.context_bytes or 0) * (1 if shared else GRAPHS)
    long = START + GRAPHS * share * (one.cpu_seconds or 0)
    peak, more = one.peak_mb or 0, (two.peak_mb or 0) - (one.peak_mb or 0)
    memory = 1e6 * (peak + more * max(0, max(weights) - ONE) / LAYER)
    return f": about {size(large)}, {seconds(long)} of a core and {size(memory)} of memory"
