"""`divergence` of a PyTorch model: the search runs in a process of its own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ci.engine.closed import closed
from ci.engine.workers.parent import Refused
from ci.lanes.executorch.compile import alone, key_context_of
from ci.lanes.executorch.stage import Lowering
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.lanes.executorch.user_program import program_of
from ci.operators.faults import faults_in, versions_of
from ci.operators.table import better_than, inexact
from ci.pipeline.divergence import LEAST_DB, known_fault
from ci.pipeline.installed import ready_environment
from ci.pipeline.lane import chosen_programs
from ci.pipeline.options import Choice, OneModel
from ci.pipeline.reduction import only
from ci.pipeline.runner import ready_runner
from ci.pipeline.steps import asking
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed
from provisioning.base.progress import at_work
from provisioning.base.settings import Selection
from provisioning.components import QNN_SDK


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
    environ = closed(environment.merged(os.environ)) | program.needs.environment(os.environ)
    log = Path(selection.reports).absolute() / "divergence" / f"{program.name}.log"
    how = ("--precision", program.run.precision, "--soc", program.soc)
    again = session("audit", model.typed, *how) if model.typed else SUITES.repeat(program)
    fix = f"{again} says what does not compile, and what to write instead"
    with tempfile.TemporaryDirectory(prefix="qnn-ci-divergence-") as scratch:
        order = {**program.order, "runner": runner.order, "least": least, "cuts": True, "scratch": scratch}
        try:
            with (
                at_work(f"working on {program.name}"),
                asking(alone(environ, log, model.work.timeout, session("divergence")), log) as ask,
            ):
                result = ask(**order)
        except Refused as refused:
            raise CheckFailed(f"{program.name}: {refused.message}", fix=fix) from refused
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
