"""What the processes do that run programs on the emulator and compare, or load them again and again."""

from __future__ import annotations

import gc
import importlib
import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Any

from ci.child import Meter, blame, doing, memory_of_process, places_of, reporting, threads
from ci.lanes.executorch.records import (
    ComparedOutputs,
    EmulatorRun,
    Loadable,
    Reloaded,
    ReloadRequest,
    RunRequest,
)
from ci.outcome import tail
from ci.plain import as_json, read
from ci.runner import LINE_OF_ERROR, Runner, with_names
from ci.suite.accuracy import MetricFigures, MetricRequest, TensorFile, error_of_metric
from ci.trouble import InTrouble, how_it_ended, of_ending

TAIL = 4000
INPUTS, LOG, METRICS, OUTPUTS = "input_list.txt", "run.log", "metrics.json", "outputs"


def prepare() -> None:
    for name in ("numpy", "ci.suite.lost_parts", "ci.diagnose.explain"):
        importlib.import_module(name)


def _measured(order: Mapping[str, object]) -> EmulatorRun:
    """Raises InTrouble."""
    from ci.suite.accuracy import Unusable, compared, each_sample_db, in_files

    request, folder = read(RunRequest, order), Path(str(order["into"]))
    of, compiled = request.compared, Path(request.compiled)
    outputs = folder / OUTPUTS
    outputs.mkdir()
    listed = ((compiled / row.file for row in inference) for inference in of.inputs)
    runner = Runner.ordered(request.runner)
    inputs = runner.write_inputs(folder / INPUTS, listed)
    command = runner.command(Path(request.program), inputs, outputs, figures=folder / METRICS)
    began = time.monotonic()
    doing("run")
    with (folder / LOG).open("wb") as log:
        # The runner finds its own libraries; this process needs none of the SDK's.
        code = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": str(threads())},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        ).returncode
    seconds = time.monotonic() - began
    if code:
        message = _message(code, folder / LOG)
        if trouble := of_ending("runner", code, message, places_of(order)):
            raise InTrouble(trouble)
        return EmulatorRun(rule="run", message=message, seconds=seconds)
    try:
        both = (in_files(outputs, compiled, rows) for rows in (of.expected, of.reference))
        figures, slices = compared(*both, non_finite=of.non_finite)
        each_db = each_sample_db(in_files(outputs, compiled, of.expected, chosen=False), len(of.inputs))
        times = _times(runner, folder / METRICS)
    except Unusable as error:
        blame(error, order)
        return EmulatorRun(rule=error.rule, message=str(error), seconds=seconds)
    return EmulatorRun(figures, tuple(slices), tuple(each_db), times, seconds=seconds)


def measured(order: Mapping[str, object]) -> dict[str, object]:
    meter = Meter()
    return as_json(replace(_measured(order), cpu_seconds=meter.read().cpu_seconds))


def _figures(order: Mapping[str, object]) -> dict[str, object]:
    from ci.suite.accuracy import in_files, side_by_side

    request, wanted = read(MetricRequest, order), read(ComparedOutputs, order)
    os.chdir(request.working_folder)
    pairs, against = (
        in_files(request.outputs, Path(wanted.compiled), rows, chosen=False)
        for rows in (wanted.expected, wanted.reference)
    )
    figures = side_by_side(request.function, pairs, against, len(wanted.expected))
    return as_json(MetricFigures(figures))


metric_of = reporting(_figures, error_of_metric)


def _message(code: int, log: Path) -> str:
    from ci.diagnose.explain import nearest

    text = tail(log, TAIL)
    # The runner indents the runtime's own message, which says why, below its error.
    errors = re.findall(LINE_OF_ERROR + r"(?:\n {4}.*)?", text, re.MULTILINE | re.IGNORECASE)
    known = nearest(text)
    return (
        f"the runner {how_it_ended(code)}"
        + (": " + with_names(": ".join(map(str.strip, errors[-1].splitlines()))) if errors else "")
        + (f". {known}" if known else "")
    )


def _times(runner: Runner, path: Path) -> dict[str, float]:
    from ci.suite.accuracy import Unusable

    try:
        return runner.measured(path)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Unusable("missing", f"the runner wrote no times to {path.name}: {error!r}") from error


LOADS = 6
"""How many loads are made; memory is compared after each."""


def prepare_reloading() -> None:
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
