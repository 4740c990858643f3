"""Stands in for ONNX Runtime in the lane's processes: answers each part of an order as a test wants it.

`STAND_IN` names a folder: `replies.json` has the replies by what is done and what is to go wrong, and
`orders.jsonl` gets each part that was asked for."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from ci.lanes.onnx import program
from ci.models.arrays import save
from tests.support.onnx_models import conv_model, write

STAND_IN = "QNN_TEST_STAND_IN"
SAMPLES = ("samples.npz", "calibration.npz", "expected.npz")


def prepare() -> None:
    setattr(program, "answer", answer)  # noqa: B010


prepare_exporting = prepare


def answer(order: dict[str, Any]) -> dict[str, Any]:
    folder, what = Path(os.environ[STAND_IN]), order["do"]
    with (folder / "orders.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(f"{json.dumps(order)}\n")
    told = json.loads((folder / "replies.json").read_text(encoding="utf-8"))
    wrong = told.get("wrong", {})
    meant = wrong.get("do") in (what, "anything") and wrong.get("soc", order.get("soc")) == order.get("soc")
    if meant and (order.get("trace", True) or not wrong.get("traced")):
        _go_wrong(wrong)
    reply: dict[str, Any] = dict(told["replies"][what])
    if what == "prepare" and "error" not in reply:
        into = Path(order["into"])
        reply["model"] = str(write(conv_model(), into / "model.onnx"))
        for name in SAMPLES:
            save(into / name, [{"x": np.zeros(1)}])
    if what == "case" and "error" not in reply:
        for form in order.get("forms", ("beside", "embedded")):
            for suffix in (".onnx", ".json"):
                path = Path(order["into"]) / form / f"{order.get('stem', 'model_ctx')}{suffix}"
                path.parent.mkdir(exist_ok=True)
                path.write_text(form)
    if what == "run":
        save(Path(order["outputs"]), [{"y": np.arange(6, dtype=np.float32)}])
    return reply


def _go_wrong(wrong: dict[str, str]) -> None:
    print(wrong.get("words", ""), flush=True)
    if wrong["how"] == "computes for ever":
        while True:
            pass
    if wrong["how"] == "waits for ever":
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGSEGV)
