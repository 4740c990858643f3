"""`python -m lab.bench.gate_plain DIR [SUITE]`: how a simple script runs the gate's programs, or a suite's.

One process lowers each program in turn, runs it by ExecuTorch's own Python runtime, and caches nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ci.lanes.executorch.orders import ChipProgram
from ci.lanes.executorch.suite import ExecutorchProgram, all_programs, choose
from ci.work import output_to


def programs_of(suite: Path | None) -> list[ExecutorchProgram]:
    return list(choose(all_programs([suite])) if suite else choose(all_programs([]), tags=["pr"]))


def run_in_turn(work: Path, suite: Path | None) -> None:
    import torch

    from ci.lanes.executorch.export import ChipModel
    from ci.lanes.executorch.lower import lower
    from ci.lanes.executorch.orders import CompileRequest

    for program in programs_of(suite):
        folder, log = work / program.name.replace("/", "-"), work / "log"
        with output_to(log):
            compiled = lower(ChipModel.of(program.order), CompileRequest(into=folder))
            if isinstance(compiled, ChipProgram):
                _run(folder, compiled)
        torch._dynamo.reset()


def _run(folder: Path, compiled: ChipProgram) -> None:
    import numpy
    import torch
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(folder / "program.pte").load_method("forward")
    assert method is not None
    for sample in compiled.inputs:
        arrays = [numpy.fromfile(folder / row.file, row.dtype).reshape(row.shape) for row in sample]
        method.execute([torch.from_numpy(array) for array in arrays])


if __name__ == "__main__":
    run_in_turn(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:] else None)
