"""What the processes that reload programs do, with the wheel's ExecuTorch runtime."""

from __future__ import annotations

import gc
import importlib
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Any

from ci.child import memory_of_process
from ci.lanes.executorch.records import Loadable, Reloaded, ReloadRequest
from ci.plain import as_json, read
from ci.suite.accuracy import TensorFile

LOADS = 6
"""How many loads are made; memory is compared after each."""


def prepare() -> None:
    for name in ("numpy", "executorch.runtime"):
        importlib.import_module(name)
    import torch

    # A fork can have threads of its own only if this process never had any.
    torch.set_num_threads(1)


class Loaded:
    """A loaded program; the runtime has a QNN context for each."""

    def __init__(self, program: Loadable) -> None:
        from executorch.runtime import Runtime

        self.inputs = [
            [_tensor(Path(program.compiled), tensor) for tensor in inference] for inference in program.inputs
        ]
        self._program = Runtime.get().load_program(Path(program.program))
        self._method = self._program.load_method("forward")

    def outputs(self) -> list[bytes]:
        """The outputs' bytes of each inference, copied: the runtime reuses one buffer for all runs."""
        assert self._method is not None
        outputs = []
        for inference in self.inputs:
            for output in self._method.execute(inference):
                outputs.append(output.contiguous().numpy().tobytes())
        return outputs


def reloaded(order: dict[str, object], load: type[Loaded] = Loaded) -> dict[str, object]:
    request = read(ReloadRequest, order)
    program, wrong = request.program, list[str]()

    def expect(loaded: Loaded, outputs: list[bytes], when: str) -> None:
        if loaded.outputs() != outputs:
            wrong.append(when)

    loaded = load(program)
    first = loaded.outputs()
    expect(loaded, first, "its second run gives other outputs than the first")
    alone = _resident()
    two = load(program)
    expect(two, first, "loaded a second time in one process, it gives other outputs")
    one_load = _resident() - alone
    expect(loaded, first, "after it was loaded a second time, the first load gives other outputs")
    del loaded, two
    if other := request.other:
        loaded, beside = load(program), load(other)
        others = beside.outputs()
        name = other.name
        expect(loaded, first, f"with {name} loaded in the same process, it gives other outputs")
        expect(beside, others, f"after it ran, {name} in the same process gives other outputs")
        del loaded, beside
    after = []
    for _ in range(LOADS):
        expect(load(program), first, "loaded again after it was released, it gives other outputs")
        after.append(_resident())
    # The first of these loads still fills memory that was released before. A leak grows with every load; the
    # allocator takes a large piece now and then.
    growth = max(0, median_low(later - before for before, later in pairwise(after[1:])))
    released = _after_a_release(program, first, load)
    return as_json(Reloaded(tuple(dict.fromkeys(wrong)), max(0, one_load), growth, released))


def _after_a_release(program: Loadable, first: list[bytes], load: type[Loaded]) -> str:
    """What happens to a loaded program when the same one, loaded beside it, is released; empty: nothing."""
    one, two = load(program), load(program)
    two.outputs()
    del two
    try:
        return "" if one.outputs() == first else "it gives other outputs"
    except RuntimeError as error:
        return str(error)


def _tensor(folder: Path, tensor: TensorFile) -> Any:
    import numpy as np
    import torch

    dtype = getattr(torch, tensor.dtype)
    array = np.fromfile(folder / tensor.file, np.uint8)
    return torch.from_numpy(array).view(dtype).reshape(tensor.shape)


def _resident() -> int:
    gc.collect()
    return memory_of_process()
