"""`compile --fold-constants`: what no input changes is computed before the export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ci.lanes.executorch.folding import fold_constants
from ci.models.factory import ModelWithInputs
from tests.support.repaired_nets import Net

pytestmark = pytest.mark.filterwarnings("ignore")


def kinds_of(subject: ModelWithInputs) -> list[str]:
    module: Any = torch.export.export(subject.model, subject.sample(0), strict=True).module()
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def test_constants_become_buffers_and_nothing_else_changes() -> None:
    def compute(layer: torch.nn.Module, x: Tensor) -> Tensor:
        values: Tensor = layer(x)
        return values + torch.linspace(0, 1, 4) * torch.tril(torch.ones(4, 4))

    model = Net(compute, torch.nn.Linear(4, 4)).eval().requires_grad_(False)
    subject = ModelWithInputs(model, lambda generator: (torch.randn(4, 4, generator=generator),))
    folded = fold_constants(subject)
    assert "aten.tril.default" in kinds_of(subject)
    assert kinds_of(folded) == ["aten.linear.default", "aten.add.Tensor"]
    (x,) = subject.sample(1)
    assert torch.equal(folded.model(x), model(x))
