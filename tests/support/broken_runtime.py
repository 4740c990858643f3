"""A runtime of language models that gives no number: nothing that is measured of it may look right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.graphs import Step, empty_caches
from ci.lanes.llm.orders import CompileOrder


def htp_step(order: CompileOrder, shape: Architecture, kind: str, parts: Sequence[int]) -> Step:
    count, bounds = order.count(kind), [shape.part(number, order.parts) for number in parts]
    caches = empty_caches(shape, range(bounds[0][0], bounds[-1][1]), count)
    given = {name.replace("_in", "_out"): np.full_like(cache, np.nan) for name, cache in caches.items()}
    name, size = f"hidden_{bounds[-1][1]}", shape.hidden_size
    if bounds[-1][1] == shape.num_layers:
        name, size = "logits", shape.vocab_size
    return lambda inputs: {**given, name: np.full((1, count, size), np.nan, np.float32)}
