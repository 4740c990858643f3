"""Lower a model in forks of this process, to find the operators at which a signal ends the compiler: this
process survives what the compiler does to a fork."""

from __future__ import annotations

import json
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from torch.fx import Node

from ci.explain.crash import CrashingOperator, CrashRequest, CrashResult, find_crashing
from ci.lanes.executorch.export import ChipModel
from ci.lanes.executorch.lower import Lowering
from ci.lanes.executorch.quantization import ComputedModel
from ci.models.model_lines import source_of
from ci.operators.failing_operators import VISITING
from ci.operators.partition import is_glue, is_quantizer, module_of, operator_name
from ci.work import printed_so_far, text_since

EVERY = "*"


def find_crash(chip_model: ChipModel, request: CrashRequest) -> CrashResult:
    forks, begin = ForkedLowering(chip_model), printed_so_far()
    until = _seconds_of_forks() + request.seconds
    if forks.survives(()):
        return CrashResult()
    visited = VISITING.findall(text_since(begin))
    return find_crashing(forks.operators(), forks.survives, visited, lambda: _seconds_of_forks() > until)


def _seconds_of_forks() -> float:
    """Return the processor time of the forks that have ended."""
    times = os.times()
    return times.children_user + times.children_system


class ForkedLowering:
    def __init__(self, chip_model: ChipModel) -> None:
        self.chip_model, self.module = chip_model, ComputedModel.of(chip_model).module

    def survives(self, names: Sequence[str]) -> bool:
        """Whether no signal ends the compiler with these nodes on the CPU. An exception may."""

        def work() -> None:
            lowering = Lowering(self.chip_model, self.module)
            with lowering.spy.installed():
                edge = lowering.attempt(names)
            lowering.finish(edge)

        return survives(work)

    def operators(self) -> list[CrashingOperator]:
        """Return the operators that the partitioner looks at; none if a signal ends even that."""
        with tempfile.TemporaryDirectory() as folder:
            reply = Path(folder) / "operators.json"

            def work() -> None:
                lowering = Lowering(self.chip_model, self.module)
                lowering.spy.nodes = {}
                try:
                    with lowering.spy.installed():
                        # Nothing is left for QNN, of which the process may die.
                        lowering.attempt([EVERY])
                finally:
                    nodes = reversed(lowering.spy.nodes.values())
                    rows = [asdict(_operator_of(node)) for node in nodes if _computes(node)]
                    reply.write_text(json.dumps(rows), encoding="utf-8")

            survives(work)
            rows = json.loads(reply.read_text(encoding="utf-8")) if reply.is_file() else []
        return [CrashingOperator(**row) for row in rows]


def _computes(node: Node) -> bool:
    return node.op == "call_function" and not is_glue(node) and not is_quantizer(node)


def _operator_of(node: Node) -> CrashingOperator:
    return CrashingOperator(operator_name(node), module_of(node), *source_of(node), node.name)


def survives(work: Callable[[], None]) -> bool:
    """Do the work in a fork. Returns whether no signal ends it."""
    process = os.fork()
    if process:
        return not os.WIFSIGNALED(os.waitpid(process, 0)[1])
    try:
        work()
    except BaseException:
        traceback.print_exc()
    finally:
        # This process must never go on as its parent.
        os._exit(0)
