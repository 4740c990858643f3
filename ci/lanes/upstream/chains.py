"""Tests for pytest: operators between two layers with weights, through ExecuTorch's suite for backends.

The fixture `test_runner` is that suite's, with the flows of the adapter `Chains`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ci.lanes.upstream.value_cases import ValueCase, chains
from ci.lanes.upstream.values import draw
from ci.pipeline.models.shipped.operators import Chained, alone

DRAWS = 5
"""How many inputs a program runs with, and is calibrated with. It is compiled once."""


@pytest.mark.parametrize("case", chains(), ids=str)
def test_chains(test_runner: Any, case: ValueCase) -> None:
    torch.manual_seed(case.seed)
    operator, count = alone(case.expression, case.is_module, case.settings.indices)
    draws = [tuple(draw(case) for _ in range(count)) for _ in range(DRAWS)]
    model = Chained(operator, draws[0], images=case.settings.shapes == "image").eval()
    model.draws = draws
    test_runner.lower_and_run_model(model, draws[0], generate_random_test_inputs=False)
