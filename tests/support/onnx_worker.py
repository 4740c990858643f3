"""Stands in for ONNX Runtime in the lane's processes: answers each part of a task as a test wants it.

`STAND_IN` names a folder: `replies.json` has the replies by what is done, what is to go wrong, and what the
model is made of; `orders.jsonl` gets each part that was asked for."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

from ci.explain.divergence import DivergenceResult
from ci.lanes.onnx import worker
from ci.lanes.onnx.orders import CONTEXT, CompileOptions
from ci.lanes.onnx.suite import OnnxOrder
from ci.lanes.onnx.task_files import CALIBRATION, EXPECTED, SAMPLES
from ci.models.inputs import save
from ci.work.plain import read
from tests.support.onnx_models import conv_model, write

STAND_IN = "QNN_TEST_STAND_IN"


def prepare() -> None:
    setattr(worker, "answer", answer)  # noqa: B010


prepare_exporting = prepare
export, compiled, mixed, estimated = worker.export, worker.compiled, worker.mixed, worker.estimated
scored, rewritten, searched = worker.scored, worker.rewritten, worker.searched


def answer(order: OnnxOrder, work: Callable[..., Any], *arguments: Any, **named: Any) -> dict[str, Any]:
    asked = {"do": work.__name__, "precision": order.run.precision, "soc": order.soc}
    if work.__name__ == "diverge":
        keep: Callable[[DivergenceResult], None] = arguments[-1]
        keep(read(DivergenceResult, _document()["replies"]["diverge"]))
    reply = _told(asked)
    if "error" in reply:
        return reply
    if work.__name__ == "prepare":
        made = _document()["made"]
        model = conv_model()
        node, weight = model.graph.node[0], model.graph.initializer[0]
        node.doc_string = made.get("trace", "")
        values = numpy_helper.to_array(weight) + np.float32(made.get("weight", 0))
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
        reply["model"] = str(write(model, order.into / "model.onnx"))
        for name in (SAMPLES, CALIBRATION, EXPECTED):
            save(order.into / name, [{"x": np.full(1, made.get(name, 0))}])
    if work.__name__ == "compile_context":
        options: CompileOptions = arguments[1]
        for suffix in (".onnx", ".json"):
            path = order.into / CONTEXT / f"{options.stem}{suffix}"
            path.parent.mkdir(exist_ok=True)
            path.write_text("embedded" if options.embed else "beside")
    return reply


def run_model(request: dict[str, Any]) -> dict[str, Any]:
    save(Path(request["outputs"]), [{"y": np.arange(6, dtype=np.float32)}])
    return _told(request)


def _told(asked: dict[str, Any]) -> dict[str, Any]:
    with Path(os.environ[STAND_IN], "orders.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(f"{json.dumps(asked)}\n")
    told = _document()
    wrong = told["wrong"]
    meant = wrong.get("do") in (asked["do"], "anything") and wrong.get("soc", asked["soc"]) == asked["soc"]
    if meant:
        _go_wrong(wrong)
    reply: dict[str, Any] = told["replies"][asked["do"]]
    return reply


def _document() -> dict[str, Any]:
    text = Path(os.environ[STAND_IN], "replies.json").read_text(encoding="utf-8")
    document: dict[str, Any] = {"made": {}, **json.loads(text)}
    return document


def _go_wrong(wrong: dict[str, str]) -> None:
    print(wrong.get("words", ""), flush=True)
    if wrong["how"] in ("computes", "waits"):
        while wrong["how"] == "computes" and time.process_time() < 0.3:
            pass
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGSEGV)
