"""What is a cause of wrong outputs in a PyTorch model, by PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ci.pipeline.accuracy import least_sqnr_db
from tests.support.repaired_nets import Net

pytestmark = pytest.mark.filterwarnings("ignore")

LEAST = torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    ("compute", "beyond"),
    [
        (lambda x: torch.softmax(x + torch.tensor([0.0, 0.0, 1.0]) * LEAST, -1), False),
        (lambda x: (x * 1e6) / (x * 1e6).sum(-1, keepdim=True), True),
        (lambda x: x * 1e6 * 0.0 + x, True),
    ],
)
def test_what_leaves_fp16_is_a_cause_only_where_the_outputs_change_without_it(
    compute: Callable[[Tensor], Tensor], beyond: bool
) -> None:
    from ci.lanes.executorch.accuracy_losses import beyond_half

    rows = beyond_half(Net(compute), [(torch.rand(4, 3) + 1,)])
    assert bool(rows) is beyond


def test_a_node_whose_operand_is_wrong_adds_nothing_of_its_own() -> None:
    from ci.lanes.executorch.cut_programs import operands_of, with_error

    sample = (torch.rand(4, 3) + 1,)
    module = torch.export.export(Net(lambda x: (x + 1).pow(2)), sample, strict=True).module()
    power = next(node for node in module.graph.nodes if "pow" in node.name)
    (total,) = operands_of(power)
    wrong = sample[0] + 1.25
    found = {total.name: [wrong.numpy()], power.name: [wrong.pow(2).numpy()]}
    whole = least_sqnr_db(with_error(module, power, [], found, [sample]))
    assert least_sqnr_db(with_error(module, total, [], found, [sample])) == pytest.approx(whole, abs=0.01)
    assert least_sqnr_db(with_error(module, power, [total], found, [sample])) > 100 > whole
