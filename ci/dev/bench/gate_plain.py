"""A simple script's way to run the suite: one process lowers and runs each program in turn and caches
nothing.

`python -m ci.dev.bench.gate_plain DIR` runs them with ExecuTorch's own Python runtime and writes
DIR/done.json, which also says whose code took how long.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ci.lanes.executorch.suite import ExecutorchProgram, all_programs, choose
from provisioning.base.settings import ROOT

OWNERS = {
    "/torch/export/": "torch.export",
    "/torch/_export/": "torch.export",
    "/torchao/": "torchao",
    "/executorch/exir/": "exir",
    "/executorch/backends/qualcomm/": "QNN",
    f"{ROOT}/ci/": "models and script",
}
"""By a part of the path of its files. QNN's own code counts with ExecuTorch's that calls it."""
ELSE = "imports and the rest"
PAUSE = 0.02


def done_in_turn(work: Path) -> dict[str, float]:
    from ci.engine.workers.child import output_to
    from ci.lanes.executorch.lower import lower
    from ci.pipeline.own_output import forget_torch

    done: dict[str, float] = {}
    for program in choose(all_programs([]), tags=["pr"]):
        folder, log = work / program.name.replace("/", "-"), work / "log"
        with output_to(log):
            facts = lower(program.case, program.run, program.soc, program.search_path, folder, log)
            done[program.name] = _run(program, folder, facts)
        forget_torch()
    return done


@contextmanager
def sampled() -> Iterator[dict[str, float]]:
    """The seconds of this thread by whose code it runs: that of the innermost owner, as what torch computes
    is its caller's."""
    mine, over, seconds = threading.get_ident(), threading.Event(), defaultdict[str, float](float)

    def sample() -> None:
        before = time.perf_counter()
        while not over.wait(PAUSE):
            now = time.perf_counter()
            seconds[_owner(sys._current_frames()[mine])] += now - before
            before = now

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield seconds
    finally:
        over.set()
        thread.join()


def _owner(frame: FrameType | None) -> str:
    while frame is not None:
        for place, owner in OWNERS.items():
            if place in frame.f_code.co_filename:
                return owner
        frame = frame.f_back
    return ELSE


def _run(program: ExecutorchProgram, folder: Path, facts: dict[str, Any]) -> float:
    """Runs the program; returns the largest difference from eager float."""
    import numpy
    import torch
    from executorch.runtime import Runtime

    if program.run.emulator_fault:
        return 0.0
    method = Runtime.get().load_program(folder / "program.pte").load_method("forward")
    assert method is not None
    worst = 0.0
    for inputs, outputs in zip(facts["inputs"], facts["expected"], strict=True):
        arguments, expected = (
            [
                torch.from_numpy(numpy.fromfile(folder / row["file"], row["dtype"]).reshape(row["shape"]))
                for row in rows
            ]
            for rows in (inputs, outputs)
        )
        actual = method.execute(arguments)
        worst = max(worst, *(float((a - b).abs().max()) for a, b in zip(actual, expected, strict=True)))
    return worst


def main(work: Path) -> None:
    with sampled() as seconds:
        done = done_in_turn(work)
    (work / "done.json").write_text(json.dumps({"programs": done, "seconds": seconds}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
