"""`forecast` of a PyTorch model."""

from __future__ import annotations

from collections.abc import Sequence

from ci.forecast import ONNX_ALONE, TO_ONNX, Forecasted
from ci.one_model.model import OneModel


def forecasted(model: OneModel, phones: Sequence[str], measured: str | None) -> Forecasted:
    return Forecasted(withheld=ONNX_ALONE, fix=TO_ONNX)
