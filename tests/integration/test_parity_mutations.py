"""The mutation test: random drifts of a clean tree are all found, and harmless edits are all silent."""

from __future__ import annotations

import os

import pytest

from tests.support.parity_cases import case

CASES = int(os.environ.get("QNN_CI_PARITY_CASES", "520"))
"""Some turns of every drift; more are run by hand (docs/parity-rules.md)."""

BLOCK = 20
"""Cases of an ordinary run."""


@pytest.mark.parametrize(
    "begin",
    [pytest.param(n, marks=pytest.mark.whole if n >= BLOCK else ()) for n in range(0, CASES, BLOCK)],
)
def test_no_miss_and_no_false_alarm(begin: int) -> None:
    made = [case(seed) for seed in range(begin, min(begin + BLOCK, CASES))]
    assert [(one.name, verdict) for one in made if (verdict := one.verdict())] == []
