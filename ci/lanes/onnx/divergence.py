"""`divergence` of an .onnx: the search is one order to a worker."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ci.lanes.onnx.orders import Steps, logs_folder, say, step
from ci.lanes.onnx.user_program import prepared, program_of
from ci.pipeline.divergence import LEAST_DB
from ci.pipeline.options import OneModel


def searched(model: OneModel, least: float | None) -> tuple[str, dict[str, Any]]:
    """The program's name, and what the search gave."""
    program = program_of(model)
    if not model.calibrate:
        say("note: inputs are drawn; --calibrate takes real ones, with which other operators may differ")
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as scratch,
        logs_folder() as logs,
        Steps(logs, model.work.timeout) as order_of,
    ):
        order, _ = prepared(program, order_of, logs / "compile.log", Path(scratch), drawn=True)
        with step(f"searching {program.name}"):
            reply = order("diverge", Path(scratch) / "cuts", least=least or LEAST_DB)
        return program.name, dict(reply["result"])
