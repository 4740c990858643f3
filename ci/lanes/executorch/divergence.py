"""`divergence` of a PyTorch model: the search runs in a process of its own."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from ci.engine.closed import closed
from ci.engine.installed import ready_environment, ready_runner
from ci.lanes.executorch.stage import Lowering
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.lanes.executorch.user_program import program_of
from ci.operators.table import inexact
from ci.pipeline.divergence import LEAST_DB
from ci.pipeline.lane import chosen_programs
from ci.pipeline.options import Choice, OneModel
from provisioning.base.commands import captured_module, session, without_result
from provisioning.base.errors import UsageError
from provisioning.base.settings import Selection

CHILD = "ci.lanes.executorch.cut_programs"


def searched(model: OneModel, choice: Choice, least: float | None) -> tuple[str, dict[str, Any]]:
    """The program's name, and what the search gave."""
    selection = model.selection
    program = program_of(model) if model.typed else chosen_program(choice, selection)
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
            known = inexact([first["operator"]], program.run.precision, program.soc)
            first["known"] = [row._asdict() for row in known if row.compiles]
        return program.name, result


def chosen_program(choice: Choice, selection: Selection) -> ExecutorchProgram:
    programs = [
        program for program in chosen_programs(Lowering(), choice, selection) if program.backend == "htp"
    ]
    if len(programs) != 1:
        names = ", ".join(program.name for program in programs[:5])
        raise UsageError(
            f"expected a MODEL or one program of a suite, found {len(programs)} ({names} …)",
            fix="name the program: --suite FILE -k CASE/RUN/SOC",
        )
    return programs[0]
