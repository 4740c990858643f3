"""What is a cause of wrong outputs in a PyTorch model, by PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ci.suite.accuracy import least_sqnr_db
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
    from ci.lanes.executorch.half_range import beyond_half

    sample = (torch.rand(4, 3) + 1,)
    rows = beyond_half(torch.export.export(Net(compute), sample, strict=True).module(), [sample])
    assert bool(rows) is beyond


def test_a_weight_and_an_input_beyond_fp16_are_named_and_a_mask_that_is_added_is_not() -> None:
    from ci.lanes.executorch.half_range import beyond_half

    layer = torch.nn.Linear(3, 3).requires_grad_(False)
    layer.weight[0, 0] = 1e6
    mask = torch.tensor([0.0, 0.0, LEAST])
    model = Net(lambda part, x: torch.softmax(part(x * 1e-5) / 1e6 + mask, -1), layer)
    sample = (torch.full((4, 3), 1e5),)

    rows = beyond_half(torch.export.export(model, sample, strict=True).module(), [sample])

    assert {row.operator: row.largest for row in rows} == {"parts.0.weight": 1e6, "inputs_0": 1e5}


def test_a_node_whose_operand_is_wrong_adds_nothing_of_its_own() -> None:
    from ci.explain.cuts import outputs_with_error
    from ci.explain.torch_graph import TorchGraph

    sample = (torch.rand(4, 3) + 1,)
    module = torch.export.export(Net(lambda x: (x + 1).pow(2)), sample, strict=True).module()
    graph = TorchGraph(module, [sample])
    power = next(name for name in graph.operators if "pow" in name)
    (total,) = graph.operands_of(power)
    wrong = sample[0] + 1.25
    chip = {total: [wrong.numpy()], power: [wrong.pow(2).numpy()]}
    whole = least_sqnr_db(outputs_with_error(graph, [power], [], chip))
    assert least_sqnr_db(outputs_with_error(graph, [total], [], chip)) == pytest.approx(whole, abs=0.01)
    assert least_sqnr_db(outputs_with_error(graph, [power], [total], chip)) > 100 > whole


def test_parts_of_a_result_and_what_is_joined_have_one_precision_and_each_can_be_looked_at() -> None:
    from ci.explain.graph import groups_of
    from ci.explain.torch_graph import TorchGraph

    def compute(x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return torch.cat([left.relu(), right * 2.0], -1).add_(1.0)

    sample = (torch.tensor([[-1.0, 2.0, 3.0, 4.0]]),)
    module = torch.export.export(Net(compute), sample, strict=True).module()
    graph = TorchGraph(module, [sample])
    relu, mul, cat, add = [*graph.operators][-4:]
    assert graph.operands_of(cat) == [relu, mul] and graph.ends == [add]
    ((part,),) = graph.ending_at(mul).outputs()
    ((own, shown),) = graph.showing([cat]).outputs()
    ((changed,),) = graph.outputs({relu: [torch.full((1, 2), 5.0).numpy()]})
    assert part.tolist() == [[6, 8]] and shown.tolist() == [[0, 2, 6, 8]] and own.tolist() == [[1, 3, 7, 9]]
    assert changed.tolist() == [[6, 6, 7, 9]]
    (group,) = groups_of(graph)
    assert {node.name for node in group} >= {relu, mul, cat, add}
    (disturbed,) = graph.disturbed([{mul: torch.full((1, 2), 10.0).numpy()}])
    assert disturbed[0].tolist() == [[1, 3, 17, 19]]
