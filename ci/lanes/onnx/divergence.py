"""`divergence` of an .onnx: the search is one order to a worker."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ci.engine.work import empty_folder
from ci.lanes.onnx.compile import setup_of
from ci.lanes.onnx.orders import logs_folder, say, step
from ci.lanes.onnx.user_program import prepared, program_of, warn_of
from ci.operators.table import inexact_onnx
from ci.pipeline.divergence import LEAST_DB, known_fault
from ci.pipeline.options import OneModel
from ci.pipeline.steps import asking
from provisioning.known_faults import faults_of


def searched(model: OneModel, least: float | None) -> tuple[str, dict[str, Any]]:
    """The program's name, and what the search gave."""
    program = program_of(model)
    if not model.calibrate:
        say("note: inputs are drawn; --calibrate takes real ones, with which other operators may differ")
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as scratch,
        logs_folder() as logs,
        asking(setup_of(logs, timeout=model.work.timeout), logs / "compile.log") as ask,
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
