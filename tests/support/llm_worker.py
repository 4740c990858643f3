"""Stands in for the processes that train, compile and judge language models. What goes wrong is in a file."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from ci.lanes.llm.orders import MeasuredProgram, PartDistances, Rounded, Trained, Window
from ci.work.child import reporting
from ci.work.plain import to_json

OUTCOME = "QNN_TEST_OUTCOME"
"""A variable with what becomes of each program: passes, fails, dies or late."""


def prepare() -> None:
    """There is nothing to import."""


train = generate = lower = prepare


def _answer(order: dict[str, Any]) -> dict[str, Any]:
    into = Path(order["into"])
    if order["do"] == "train":
        (into / "model.safetensors").write_text("weights")
        return to_json(Trained(3.0, "weights"))
    outcome = os.environ[OUTCOME]
    if outcome == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if outcome == "late":
        while True:
            pass
    return to_json(measured(0.0 if outcome == "passes" else 5.0))


def measured(divergence: float) -> MeasuredProgram:
    """A program whose logits differ so much from float's, in a part that is as it should be."""
    same = divergence == 0
    window = Window([1.0, 2.0], [1.0, 2.0], [divergence] * 2, [same] * 2)
    right = Window([1.0, 2.0], [1.0, 2.0], [0.0] * 2, [True] * 2)
    read = {reader: [window, window] for reader in ("prefill_htp", "decode_htp")}
    rounded = Rounded({"windows": [right, right]}, [{"logits": 60.0}])
    parts = [PartDistances(0, kind, (0, 1), {"logits": 60.0}) for kind in ("prefill", "decode")]
    return MeasuredProgram(10, read, rounded, parts)


def _error_of(error: Exception, order: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "refused", "message": str(error), "fix": ""}


answer = reporting(_answer, _error_of)
