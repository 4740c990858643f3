"""What compiling a checkpoint for Genie takes on this machine, which may be an hour."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage

import numpy as np

from ci.jobs import available_memory
from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.orders import CompileOrder
from provisioning.base.units import seconds, size

PART_SECONDS = 5.0
"""What exporting and compiling a part takes, however small it is."""
SORTED, SORTED_SECONDS = 1 << 20, 0.0566
"""So long it took to sort so many numbers where the figures of CompileNeeds were measured."""


@dataclass(frozen=True, slots=True)
class CompileNeeds:
    """From what 1B's true shape took: seconds and bytes for each weight, by two layers at 16a8w and a context
    of 1024, and by all 16 layers at 128."""

    seconds: float
    """Of one core."""
    memory: float
    disk: float

    @classmethod
    def of(cls, shape: Architecture, order: CompileOrder, pace: float) -> CompileNeeds:
        """On a machine that takes `pace` times as long."""
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
        needed = {"memory": self.memory, "disk": self.disk}
        amounts = [
            f"{size(amount)} of {name}" + (f" ({size(free[name] or 0)} free)" if free[name] else "")
            for name, amount in needed.items()
        ]
        yield f"about {seconds(self.seconds)} of one core, {', '.join(amounts)}"
        for name, amount in needed.items():
            if (there := free[name]) is not None and amount > there:
                remedy = "; more --parts take less" if name == "memory" else ""
                yield f"warning: {size(amount)} of {name} is more than the {size(there)} free{remedy}"


def pace() -> float:
    """How many times as long this machine takes as the measured one."""
    numbers, times = np.random.default_rng(1).standard_normal(SORTED), []
    for _ in range(3):
        began = time.thread_time()
        np.exp(np.sort(numbers))
        times.append(time.thread_time() - began)
    return min(times) / SORTED_SECONDS
