"""`divergence` of an .onnx: the search is one order to a worker."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ci.lanes.onnx.compile import setup_of
from ci.lanes.onnx.orders import logs_folder, say, step
from ci.lanes.onnx.stage import OnnxLane
from ci.lanes.onnx.suite import OnnxProgram
from ci.lanes.onnx.user_program import prepared, program_of, warn_of
from ci.operators.onnx_page import inexact_onnx
from ci.pipeline.divergence import LEAST_DB, known_fault
from ci.pipeline.lane import chosen_programs
from ci.pipeline.options import Choice, OneModel
from ci.pipeline.reduction import only
from ci.pipeline.steps import asking
from provisioning.base.files import empty_folder
from provisioning.known_faults import faults_of


def searched(
    model: OneModel, choice: Choice, least: float | None, _kept: tuple[str, ...] = ()
) -> tuple[str, dict[str, Any]]:
    """The program's name, and what the search gave."""
    program = chosen_program(model, choice)
    if model.typed and not model.calibrate:
        say("note: inputs are drawn; --calibrate takes real ones, with which other operators may differ")
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as scratch,
        logs_folder() as logs,
        asking(
            setup_of(logs, timeout=model.work.timeout, exports=bool(program.case.factory)),
            logs / "compile.log",
        ) as ask,
        step(f"searching {program.name}"),
    ):
        common, facts = prepared(program, ask, Path(scratch), drawn=True)
        warn_of(facts)
        cuts = empty_folder(Path(scratch) / "cuts")
        reply = ask(do="diverge", **common, into=str(cuts), least=least or LEAST_DB)
        result = dict(reply["result"])
        if first := result["first"]:
            faults = faults_of("onnxruntime-qnn", version("onnxruntime-qnn"))
            first["known"] = [known_fault(fault) for fault in faults if first["operator"] in fault.operators]
            known = inexact_onnx([first["operator"]], program.run.kind, program.soc)
            first["known"] += [row._asdict() for row in known if row.compiles]
        return program.name, result


def chosen_program(model: OneModel, choice: Choice) -> OnnxProgram:
    """MODEL's, or one of a suite."""
    return program_of(model) if model.typed else only(chosen_programs(OnnxLane(), choice, model.selection))
