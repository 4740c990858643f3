"""Estimate what compiling a checkpoint for Genie takes on this machine, which may be an hour: seconds of one
core, memory and disk. `compile` prints it before it starts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage

import numpy as np

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.orders import (
    CompileOrder,
)
from ci.work import available_memory
from provisioning.base.units import seconds, size

PART_SECONDS = 5.0
"""Exporting and compiling a part takes at least this long, however small it is."""

SORTED, SORTED_SECONDS = 1 << 20, 0.0566
"""Sorting this many numbers took this many seconds on the machine that the figures of CompileNeeds were
measured on."""


@dataclass(frozen=True, slots=True)
class CompileNeeds:
    """Estimates what compiling needs, from what 1B's true shape took: seconds and bytes for each weight, by
    two layers at 16a8w and a context of 1024, and by all 16 layers at 128."""

    seconds: float
    """One core needs this many seconds."""
    memory: float
    disk: float

    @classmethod
    def of(cls, shape: Architecture, order: CompileOrder, pace: float) -> CompileNeeds:
        """Estimate the needs on a machine that takes `pace` times as long."""
        parts = shape.weights(order.parts)
        weights, largest = sum(parts), max(parts)
        # The files are in the store and in the output.
        if not order.quantized:
            files, memory, per_weight = 4 * weights, 16.0 * largest, 1.5e-7
        else:
            # A word of the embedding has 16 bits.
            files, memory = 4 * (weights + shape.weights_of_words), 28 * largest + 8e8
            per_weight = 5e-7 + 2.6e-11 * sum(map(len, order.calibration))
        duration = (PART_SECONDS * order.parts + per_weight * weights) * pace
        return cls(duration, memory, 2 * files + 10 * largest)

    def lines(self, output: Path) -> Iterator[str]:
        folder = next(path for path in (output.absolute(), *output.absolute().parents) if path.is_dir())
        free = {"memory": available_memory(), "disk": disk_usage(folder).free}
        needs = {"memory": self.memory, "disk": self.disk}
        amounts = [
            f"{size(amount)} of {name}" + (f" ({size(free[name] or 0)} free)" if free[name] else "")
            for name, amount in needs.items()
        ]
        yield f"about {seconds(self.seconds)} of one core, {', '.join(amounts)}"
        for name, amount in needs.items():
            if (room := free[name]) is not None and amount > room:
                remedy = "; more --parts take less" if name == "memory" else ""
                yield f"warning: {size(amount)} of {name} is more than the {size(room)} free{remedy}"


def pace() -> float:
    """Return how many times as long as the measured machine this one takes."""
    numbers, times = np.random.default_rng(1).standard_normal(SORTED), []
    for _ in range(3):
        start = time.thread_time()
        np.exp(np.sort(numbers))
        times.append(time.thread_time() - start)
    return min(times) / SORTED_SECONDS
