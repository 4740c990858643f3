"""The search for the operator that differs, without a compiler."""

from __future__ import annotations

import numpy
import pytest

from ci.pipeline.accuracy import Pair
from ci.pipeline.divergence import Cuts, as_text, first_different

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


def test_an_operand_whose_program_does_not_run_is_not_passed_over() -> None:
    def pairs(node: str | None) -> list[Pair]:
        if node == "conv":
            raise ValueError("no kernel\nat all")
        wrong = node == "linear" or node is None
        return [Pair("", numpy.ones(4), numpy.zeros(4) if wrong else numpy.ones(4))]

    cuts = Cuts[str](str, pairs)
    described = {"operator": "aten.linear.default", "module": "", "source": "", "code": ""}
    result = cuts.search(
        lambda: list(OPERANDS), lambda: ["linear"], lambda node: OPERANDS[node], lambda _: described, 30.0
    )
    assert result["first"] == {**described, "node": "linear", "sqnr_db": 0.0, "operands": {"conv": None}}
    text = "\n".join(as_text({**result, "reference": "the float model"}))
    assert "conv not measured" in text and "no kernel" in text
