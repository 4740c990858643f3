"""`divergence` of a PyTorch model: the search runs in a process of its own."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from ci.engine.closed import closed
from ci.engine.installed import ready_environment, ready_runner
from ci.lanes.executorch.compile import key_context_of
from ci.lanes.executorch.stage import Lowering
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.lanes.executorch.user_program import program_of
from ci.operators.faults import faults_in, versions_of
from ci.operators.table import better_than, inexact
from ci.pipeline.divergence import LEAST_DB, known_fault
from ci.pipeline.lane import chosen_programs
from ci.pipeline.options import Choice, OneModel
from ci.pipeline.reduction import only
from provisioning.base.commands import captured_module, session, without_result
from provisioning.base.settings import Selection
from provisioning.components import QNN_SDK

CHILD = "ci.lanes.executorch.cut_programs"


def searched(
    model: OneModel, choice: Choice, least: float | None, kept: tuple[str, ...] = ()
) -> tuple[str, dict[str, Any]]:
    """The program's name, and what the search gave; nodes that are `kept` are on the CPU."""
    selection = model.selection
    program = program_of(model, cpu_nodes=kept) if model.typed else chosen_program(choice, selection)
    thresholds = program.thresholds
    least = least or (thresholds.reference_sqnr_db if thresholds else None) or LEAST_DB
    runner = ready_runner(os.environ, selection.reports)
    environment = ready_environment(selection, os.environ)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-divergence-") as scratch:
        order = {**program.order, "runner": str(runner), "least": least}
        (Path(scratch) / "order.json").write_text(json.dumps(order), encoding="utf-8")
        environ = closed(environment.merged(os.environ)) | program.needs.environment(os.environ)
        done = captured_module(CHILD, [scratch], environ, model.work.timeout, program.name, cwd=scratch)
        answer = Path(scratch) / "answer.json"
        if not answer.is_file():
            how = ("--precision", program.run.precision, "--soc", program.soc)
            again = session("audit", model.typed, *how) if model.typed else SUITES.repeat(program)
            fix = f"{again} says what does not compile, and what to write instead"
            raise without_result(done, program.name, fix)
        result = json.loads(answer.read_text(encoding="utf-8"))
        if first := result["first"]:
            scheme, soc = program.run.precision, program.soc
            build_id = key_context_of(environment.root(QNN_SDK).path, selection.store).build_id
            met = faults_in(first.pop("traits"), scheme, soc, versions_of(build_id))
            first["known"] = [known_fault(found.fault) for found in met]
            measured = inexact([first["operator"]], scheme, soc)
            first["known"] += [row._asdict() for row in measured if row.compiles]
            first["better"] = better_than(first["operator"], scheme, soc)
        return program.name, result


def chosen_program(choice: Choice, selection: Selection) -> ExecutorchProgram:
    return only(on_htp(choice, selection))


def on_htp(choice: Choice, selection: Selection) -> list[ExecutorchProgram]:
    return [program for program in chosen_programs(Lowering(), choice, selection) if program.backend == "htp"]
