"""Tests for pytest: operators between two layers with weights, through ExecuTorch's suite for backends.

The fixture `test_runner` is that suite's, with the flows of the adapter `Chains`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ci.lanes.upstream.value_cases import ValueCase, chains
from ci.lanes.upstream.values import draws
from ci.pipeline.models.shipped.operators import Chained, alone

WITHOUT_BIAS = ("qnn_16a16w",)
"""A bias may be cut off there (bias-beyond-32-bits), and the layers then lose more than the operator."""


@pytest.mark.parametrize("case", chains(), ids=str)
def test_chains(test_runner: Any, case: ValueCase) -> None:
    torch.manual_seed(case.seed)
    operator, count = alone(case.expression, case.is_module, case.settings.indices)
    drawn = draws(case, count)
    bias = test_runner._flow.name not in WITHOUT_BIAS
    model = Chained(operator, drawn[0], images=case.settings.shapes == "image", bias=bias).eval()
    model.draws = drawn
    test_runner.lower_and_run_model(model, drawn[0], generate_random_test_inputs=False)
