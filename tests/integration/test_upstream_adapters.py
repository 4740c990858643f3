"""What is noted of the comparisons of ExecuTorch's tests."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from ci.lanes.upstream.adapters import DefaultAdapter, least_db
from ci.operators.table import EXACT

# Torch takes seconds to import, which unit tests do without.
pytestmark = pytest.mark.heavy


def test_the_least_figure_of_all_outputs_is_taken() -> None:
    right = [torch.ones(8), torch.arange(8.0)]
    assert least_db(right, right) == EXACT
    assert least_db([right[0] * 1.1, right[1]], right) == pytest.approx(20, abs=0.1)
    assert math.isnan(least_db([right[0] * math.nan, right[1]], right) or 0)
    assert least_db([right[0]], right) is None


def test_a_comparison_is_noted_with_its_figure_and_what_the_test_said_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Upstream:
        def assert_close(self, device_output: Any, ref_output: Any) -> None:
            assert device_output[0].sum() < 10

    adapter = DefaultAdapter()
    module = ModuleType("executorch.backends.stand_in")
    module.__dict__["Upstream"] = Upstream
    monkeypatch.setitem(sys.modules, module.__name__, module)
    adapter.watching("stand_in:Upstream.assert_close").apply()
    right = torch.ones(4)
    Upstream().assert_close(device_output=[right * 1.1], ref_output=[right])
    with pytest.raises(AssertionError):
        Upstream().assert_close([right * 3], [right])
    assert [(round(comparison.figure or 0), comparison.agrees) for comparison in adapter.comparisons] == [
        (20, True),
        (-6, False),
    ]
