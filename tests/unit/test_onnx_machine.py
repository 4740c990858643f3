"""Memory and disk that run out are never the result of a recorded case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.lanes.onnx import provider, steps
from ci.models.arrays import save
from ci.trouble import InTrouble
from provisioning.base.errors import CheckFailed
from tests.support.onnx_models import conv_model, write

OF_QNN = CheckFailed("the QNN provider cannot compile it: error 1002", fix="other")


def order(folder: Path) -> dict[str, Any]:
    model = str(write(conv_model(), folder / "net.onnx"))
    run = {"precision": "u8u8", "socs": ["SM8650"], "tags": ["pr"]}
    save(folder / steps.CALIBRATION, [{"x": np.zeros((1, 3, 8, 8), np.float32)}])
    places = dict.fromkeys(("prepared", "quantized", "into", "search_path"), str(folder))
    case = {"model": model, "recorded": True, "run": [run]}
    return {
        **places,
        "case": case,
        "run": run,
        "soc": "SM8650",
        "model": model,
        "source": model,
        "log": str(folder / "log"),
    }


def caused_by(cause: Exception) -> CheckFailed:
    error = CheckFailed("the QNN provider cannot compile it", fix="other")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("step", "what", "error"),
    [
        (steps.order_quantize, "quantized", MemoryError()),
        (steps.order_quantize, "quantized", OSError(28, "No space left on device")),
        (steps.order_quantize, "quantized", RuntimeError("Failed to allocate memory for requested buffer")),
        (steps.order_case, "compiled", caused_by(RuntimeError("std::bad_alloc"))),
        (steps.order_case, "compiled", caused_by(OSError(28, "No space left on device"))),
    ],
)
def test_they_are_raised(
    step: Callable[[dict[str, Any]], Any],
    what: str,
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*words: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(provider, what, fails)
    with pytest.raises(InTrouble):
        step(order(tmp_path))


@pytest.mark.parametrize(
    ("step", "what"), [(steps.order_quantize, "quantized"), (steps.order_case, "compiled")]
)
def test_what_qnn_fails_with_stays_a_result(
    step: Callable[[dict[str, Any]], Any], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*words: Any, **options: Any) -> Any:
        raise OF_QNN

    monkeypatch.setattr(provider, what, fails)
    reply = step(order(tmp_path))
    assert (reply["failed"], reply["message"]) == ("dies", OF_QNN.message)
