"""A simple script's way to run the suite: one process lowers and runs each program in turn and caches
nothing.

`python -m lab.bench.gate_plain DIR` runs them with ExecuTorch's own Python runtime and writes
DIR/done.json: by program the largest difference from eager float.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ci.lanes.executorch.suite import ExecutorchProgram, all_programs, choose


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


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "done.json").write_text(json.dumps(done_in_turn(place)), encoding="utf-8")
