"""A suite for ONNX Runtime, and what a worker says of a program that is as it should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ci.outcome import Failure, Result

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


def facts(**changes: Any) -> dict[str, Any]:
    """`changes` are those of the context beside its .onnx."""
    context: dict[str, Any] = {
        "slices": [],
        "each_db": [],
        "near": {
            "cosine": 0.999,
            "sqnr_db": 30.0,
            "reference_sqnr_db": 50.0,
            "max_abs": 0.1,
            "max_rel": 0.01,
            "top1": 1.0,
        },
        "reload_equal": True,
        "half_floats": True,
        "reciprocals": [],
        "audit": {"nodes": 9, "unsupported": [], "graphs": 1},
        "ddr": {"read": 100, "written": 10, "spilled": 0, "filled": 0},
        "bytes": 50_000,
        "record": {
            "source": "0" * 64,
            "soc": "SM8650",
            "precision": "16a8w",
            "build_id": "v2.51.0.260929181845",
        },
    }
    return {
        "beside": {**context, **changes},
        "embedded": context,
        "forms_equal": True,
        "constant": [],
        "used": {"compared": 2, "calibrating": 32},
        "cpu_seconds": 2.0,
        "peak": 5 << 20,
    }


def compiled(changed_facts: dict[str, Any] | None = None) -> Result:
    return Result(changed_facts or facts())


def failed(kind: str, message: str = "gone", fix: str = "look") -> Result:
    return Result(failure=Failure(kind, message, fix))
