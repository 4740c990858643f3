"""Memory and disk that run out are never the result of a recorded case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.lanes.onnx import provider, steps
from ci.lanes.onnx.records import CompileOptions
from ci.lanes.onnx.samples import CALIBRATION, ModelFiles
from ci.lanes.onnx.suite import OnnxOrder
from ci.models.arrays import save
from ci.trouble import InTrouble
from provisioning.base.errors import CheckFailed
from tests.support.onnx_models import conv_model, write
from tests.support.onnx_suites import order_of

Step = Callable[[OnnxOrder, ModelFiles], Any]
OF_QNN = CheckFailed("the QNN provider cannot compile it: error 1002", fix="other")


def done(step: Step, folder: Path) -> Any:
    """The step, on a recorded case."""
    model = write(conv_model(), folder / "net.onnx")
    save(folder / CALIBRATION, [{"x": np.zeros((1, 3, 8, 8), np.float32)}])
    order = order_of(folder, "u8u8", {"model": str(model), "recorded": True})
    return step(order, ModelFiles(folder, model, model, folder))


def quantize(order: OnnxOrder, files: ModelFiles) -> Any:
    return steps.quantize(order, files, "")


def compile_context(order: OnnxOrder, files: ModelFiles) -> Any:
    return steps.compile_context(order, files, CompileOptions(), traced=True)


def caused_by(cause: Exception) -> CheckFailed:
    error = CheckFailed("the QNN provider cannot compile it", fix="other")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("step", "what", "error"),
    [
        (quantize, "quantized", MemoryError()),
        (quantize, "quantized", OSError(28, "No space left on device")),
        (quantize, "quantized", RuntimeError("Failed to allocate memory for requested buffer")),
        (compile_context, "compiled", caused_by(RuntimeError("std::bad_alloc"))),
        (compile_context, "compiled", caused_by(OSError(28, "No space left on device"))),
    ],
)
def test_they_are_raised(
    step: Step,
    what: str,
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*words: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(provider, what, fails)
    with pytest.raises(InTrouble):
        done(step, tmp_path)


@pytest.mark.parametrize(("step", "what"), [(quantize, "quantized"), (compile_context, "compiled")])
def test_what_qnn_fails_with_stays_a_result(
    step: Step, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*words: Any, **options: Any) -> Any:
        raise OF_QNN

    monkeypatch.setattr(provider, what, fails)
    reply = done(step, tmp_path)
    assert (reply.failed, reply.message) == ("dies", OF_QNN.message)
