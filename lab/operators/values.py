"""Tests for pytest: operators with other values and shapes, and between two layers with weights, through
ExecuTorch's suite for backends. The fixture `test_runner` is that suite's, with the flows of our adapters."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from lab.models.chained import Chained
from lab.models.operators import alone
from lab.operators import PLAIN
from lab.operators.value_cases import DRAWS, PROGRAMS, ValueCase, cases, chains
from provisioning.manifest import soc_named

EXACT_SCALES_ARCH = 73
"""Before it, a program of 16 bits is as exact as its scales happen to be: a linear layer of other weights has
55 dB or 82 dB."""
WITHOUT_BIAS = ("qnn_16a16w",)
"""A bias may be cut off there (bias-beyond-32-bits), and the layers then lose more than the operator."""


@pytest.mark.parametrize("case", cases(), ids=str)
def test_values(test_runner: Any, case: ValueCase) -> None:
    for number in range(programs_of(case, test_runner._flow.name)):
        torch.manual_seed(case.seed + number)
        model, count = alone(case.expression, case.is_module, case.settings.indices)
        inputs, *others = draws(case, count, DRAWS if case.name == PLAIN else 1)
        if others:
            model.__dict__["draws"] = [inputs, *others]
        test_runner.lower_and_run_model(model, inputs, generate_random_test_inputs=False)


@pytest.mark.parametrize("case", chains(), ids=str)
def test_chains(test_runner: Any, case: ValueCase) -> None:
    torch.manual_seed(case.seed)
    operator, count = alone(case.expression, case.is_module, case.settings.indices)
    drawn = draws(case, count)
    bias = test_runner._flow.name not in WITHOUT_BIAS
    model = Chained(operator, drawn[0], images=case.settings.shapes == "image", bias=bias).eval()
    model.__dict__["draws"] = drawn
    test_runner.lower_and_run_model(model, drawn[0], generate_random_test_inputs=False)


def programs_of(case: ValueCase, flow: str) -> int:
    """Several where the verdict depends on the weights that are drawn; the cell says so."""
    arch = soc_named(os.environ["QNN_SOC_MODEL"]).arch
    varying = "Norm" in case.expression or (flow.startswith("qnn_16") and arch < EXACT_SCALES_ARCH)
    return PROGRAMS if varying and case.name == PLAIN else 1


def draws(case: ValueCase, inputs: int, count: int = DRAWS) -> list[tuple[torch.Tensor, ...]]:
    return [tuple(draw(case) for _ in range(inputs)) for _ in range(count)]


def draw(case: ValueCase) -> torch.Tensor:
    low, high, *zeros = case.range
    values = torch.rand(case.shape) * (high - low) + low
    if case.settings.integers:
        return values.to(torch.int32)
    return torch.where(torch.rand(case.shape) < zeros[0], 0.0, values) if zeros else values
