"""Tests for pytest: operators with other values and shapes, through ExecuTorch's suite for backends.

The fixture `test_runner` is that suite's, with the flows of the adapter `Values`.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from ci.upstream.value_cases import Case, cases


class Call(torch.nn.Module):  # type: ignore[misc]
    """An expression of x and y as a model."""

    def __init__(self, names: str, expression: str) -> None:
        super().__init__()
        self.function = eval(f"lambda {names}: {expression}", {"torch": torch})  # noqa: S307

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_values(test_runner: Any, case: Case) -> None:
    torch.manual_seed(case.seed)
    count = 2 if re.search(r"\by\b", case.expression) else 1
    model = (
        eval(case.expression, {"torch": torch})  # noqa: S307
        if case.is_module
        else Call("x, y" if count == 2 else "x", case.expression)
    )
    inputs = tuple(_draw(case) for _ in range(count))
    test_runner.lower_and_run_model(model.eval(), inputs, generate_random_test_inputs=False)


def _draw(case: Case) -> torch.Tensor:
    low, high, *zeros = case.range
    values = torch.rand(case.shape) * (high - low) + low
    return torch.where(torch.rand(case.shape) < zeros[0], 0.0, values) if zeros else values
