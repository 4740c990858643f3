"""The search for the operator that differs, without a compiler."""

from __future__ import annotations

import pytest

from ci.suites.divergence import first_different

OPERANDS = {"conv": [], "resize": ["conv"], "linear": ["conv"], "mean": ["resize"]}
"""A model with the outputs resize, mean and linear."""


@pytest.mark.parametrize("wrong", OPERANDS)
def test_whichever_output_differs_its_operator_is_found(wrong: str) -> None:
    """The mean of a wrong resize is right."""
    off = {wrong} | ({"resize", "linear", "mean"} if wrong == "conv" else set())
    found = first_different(
        list(OPERANDS),
        ["linear", "resize", "mean"],
        lambda node: 0.0 if node in off else 60.0,
        lambda node: OPERANDS[node],
        30.0,
    )
    assert found == (wrong, [(each, 60.0) for each in OPERANDS[wrong]])
