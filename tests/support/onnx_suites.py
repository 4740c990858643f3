"""A suite for ONNX Runtime, and what its processes say of a program that is as it should be."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci.artifacts.compiler_log import Traffic
from ci.lanes.onnx.model_file import ContextRecord
from ci.lanes.onnx.orders import (
    Accuracy,
    CompiledContext,
    PreparedModel,
    ProgramFacts,
    QuantizedModel,
)
from ci.lanes.onnx.suite import OnnxCase, OnnxOrder
from ci.models.inputs import InputsUsed
from ci.work.outcome import Failure, Result

SUITE = """\
schema = 2
[case.net]
factory = "ci.models.shipped.vision:resnet"
arguments = { width = 16 }
[[case.net.run]]
lane = "onnx"
precision = "16a8w"
socs = ["SM8650", "SM8750"]
tags = ["pr"]
thresholds = { sqnr_db = 20, reference_sqnr_db = 30 }
"""


def write_suite(folder: Path, text: str = SUITE) -> Path:
    path = folder / "onnx.toml"
    path.write_text(text)
    return path


FIGURES = {
    "cosine": 0.999,
    "sqnr_db": 30.0,
    "reference_sqnr_db": 50.0,
    "max_abs": 0.1,
    "max_rel": 0.01,
    "top1": 1.0,
}
BUILD_ID = "v2.51.0.260929181845"
RECORD = ContextRecord(
    model="model_ctx.onnx",
    files={},
    soc="SM8650",
    soc_id=57,
    arch=75,
    precision="16a8w",
    build_id=BUILD_ID,
    packages={},
    source="0" * 64,
)
CONTEXT = CompiledContext(
    record=RECORD,
    near=Accuracy(FIGURES),
    bytes=50_000,
    ddr=Traffic(read=100, written=10),
    half_floats=True,
    cpu_seconds=2.0,
    peak=5 << 20,
)
USED = InputsUsed(2, 32)
PREPARED = PreparedModel(model="model.onnx", used=USED, inputs=())
QUANTIZED = QuantizedModel(model="model_qdq.onnx", calibrated_by=32)


def near(**figures: float) -> Accuracy:
    """Some other figures than those of a good program."""
    return Accuracy({**FIGURES, **figures})


def facts(**changes: Any) -> ProgramFacts:
    return ProgramFacts(prepared=PREPARED, quantized=QUANTIZED, context=replace(CONTEXT, **changes))


def compiled(what: ProgramFacts | None = None) -> Result:
    return Result(record=what or facts())


def failed(kind: str, message: str = "gone", fix: str = "look", **details: Any) -> Result:
    return Result(failure=Failure(kind, message, fix, details=details))


def order_of(folder: Path, precision: str, case: Mapping[str, Any], run: Mapping[str, Any] = {}) -> OnnxOrder:
    """Of a program that a test does itself, in this folder."""
    of_run = {"precision": precision, "socs": ["SM8650"], **run}
    read = OnnxCase.model_validate({**case, "run": [of_run]}, strict=False)
    places = (folder, folder, folder, folder / "log", folder, folder / "scratch", folder)
    return OnnxOrder(read, read.runs[0], "SM8650", time.monotonic(), *places)
