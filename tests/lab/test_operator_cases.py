"""Which flows and schemes our own cases run in, and what they draw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lab.models.operators import alone
from lab.operators import values
from lab.operators.value_cases import DRAWS, cases, chains

# Torch takes seconds to import, which unit tests do without.
pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4, 5, 6])
def test_every_case_has_a_model_in_each_of_its_shapes(dimensions: int) -> None:
    these = [case for case in (*cases(), *chains()) if len(case.shape) == dimensions]
    models = [alone(case.expression, case.is_module, case.settings.indices)[0] for case in these]
    assert models and all(isinstance(model, torch.nn.Module) for model in models)


class Runs:
    """As ExecuTorch's fixture: it keeps what it is given."""

    def __init__(self, flow: str) -> None:
        self._flow = SimpleNamespace(name=flow)
        self.models: list[Any] = []

    def lower_and_run_model(self, model: Any, inputs: Any, generate_random_test_inputs: bool) -> None:
        self.model, self.inputs = model, inputs
        self.models.append(model)


def test_a_plain_case_has_several_draws_and_the_first_is_that_of_one_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QNN_SOC_MODEL", "SM8350")
    by_name = {str(case): case for case in cases()}
    drawn = {name: Runs("qnn_8a8w") for name in ("add-plain", "add-small")}
    for name, runs in drawn.items():
        values.test_values(runs, by_name[name])
    plain, small = drawn.values()
    assert len(plain.model.draws) == DRAWS and not hasattr(small.model, "draws")
    assert all(len(inputs) == 2 for inputs in plain.model.draws)
    assert len({float(inputs[0].sum()) for inputs in plain.model.draws}) == DRAWS
    assert plain.inputs is plain.model.draws[0]


@pytest.mark.parametrize(
    ("chip", "flow", "programs"),
    [
        ("SM8350", "qnn_16a8w", 3),
        ("SM8450", "qnn_16a16w", 3),
        ("SM8350", "qnn_8a8w", 1),
        ("SM8650", "qnn_16a8w", 1),
    ],
)
def test_where_a_program_is_as_exact_as_its_scales_happen_to_be_several_are_made(
    monkeypatch: pytest.MonkeyPatch, chip: str, flow: str, programs: int
) -> None:
    monkeypatch.setenv("QNN_SOC_MODEL", chip)
    by_name = {str(case): case for case in cases()}
    values.test_values(runs := Runs(flow), by_name["linear32-plain"])
    assert len({float(model.weight.detach().sum()) for model in runs.models}) == programs
    values.test_values(small := Runs(flow), by_name["linear32-small"])
    assert len(small.models) == 1
