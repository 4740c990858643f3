"""What a model chooses inside, and whether rounding explains that a program chooses otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

from ci.explain.graph import Graph
from tests.support.lowering_suites import environment
from tests.support.repaired_nets import Net
from tests.support.typed import typed

pytestmark = pytest.mark.filterwarnings("ignore")

SCORES = torch.tensor([[1.0, 0.9995, 0.2, -3.0]])
TABLE = torch.tensor([10.0, 20.0, 30.0, 40.0])


def graph_of(compute: Callable[[Tensor], object], scores: Tensor = SCORES) -> Graph:
    from ci.explain.torch_graph import TorchGraph

    module = torch.export.export(Net(compute), (scores,), strict=True).module()
    return TorchGraph(module, [(scores,)])


def routed(x: Tensor) -> Tensor:
    """Return what the best two of four experts give."""
    return TABLE[torch.topk(x * 1.0, 2).indices]


@pytest.mark.parametrize(
    ("compute", "count"),
    [
        (routed, 1),
        (lambda x: TABLE[x.argmax(-1)], 1),
        (lambda x: torch.where(x > 0.1, x, 0.0), 1),
        (lambda x: torch.where(x == torch.amax(x, -1, keepdim=True), x, 0.0), 1),
        (lambda x: x.argmax(-1), 0),
        (lambda x: torch.where(torch.arange(4) > 1, x, 0.0), 0),
        (lambda x: torch.topk(x, 2).values, 0),
    ],
    ids=["top-k", "argmax", "number", "peak", "only an output", "no input", "only values"],
)
def test_choices_are_what_the_model_reads_of_indices_and_masks_of_floats(
    compute: Callable[[Tensor], Tensor], count: int
) -> None:
    from ci.explain.inner_choices import inner_choices

    assert len(inner_choices(graph_of(compute))) == count


@pytest.mark.parametrize(
    ("chosen", "flipped", "unexplained"),
    [([[0, 1]], 0, 0), ([[1, 0]], 2, 0), ([[0, 2]], 1, 1), ([[0, 9]], 1, 1)],
    ids=["the same", "a near tie", "another value", "no place at all"],
)
def test_rounding_explains_only_a_choice_between_nearly_equal_scores(
    chosen: list[list[int]], flipped: int, unexplained: int
) -> None:
    from ci.explain.inner_choices import Choosing, flips_of, inner_choices

    graph = graph_of(routed)
    (choice,) = inner_choices(graph)
    (row,) = flips_of(Choosing(graph, [choice], {choice.node: [numpy.array(chosen)]}))

    assert (row.choices, row.flipped, row.unexplained) == (2, flipped, unexplained)


@pytest.mark.parametrize(
    ("mask", "unexplained"), [([True, True, False, False], 0), ([True, False, True, False], 1)]
)
def test_so_it_explains_only_the_part_of_a_mask_where_both_sides_are_nearly_equal(
    mask: list[bool], unexplained: int
) -> None:
    from ci.explain.inner_choices import Choosing, flips_of, inner_choices

    graph = graph_of(lambda x: torch.where(x * 1.0 >= 1.0, x, 0.0))
    (choice,) = inner_choices(graph)
    (row,) = flips_of(Choosing(graph, [choice], {choice.node: [numpy.array([mask])]}))

    assert (row.flipped, row.unexplained) == (1, unexplained)


def test_a_later_choice_is_judged_by_the_scores_that_earlier_choices_lead_to() -> None:
    """The second operator sees other values once the first chose otherwise: that is no flip of its own."""
    from ci.explain.inner_choices import Choosing, flips_of, inner_choices

    def twice(x: Tensor) -> Tensor:
        first = TABLE[torch.topk(x * 1.0, 1).indices]
        return TABLE[torch.argmax(torch.cat([first, 25.0 - first], -1), -1)]

    graph = graph_of(twice)
    first, second = inner_choices(graph)
    chosen = {first.node: [numpy.array([[1]])], second.node: [numpy.array([0])]}
    rows = flips_of(Choosing(graph, [first, second], chosen))

    assert [(row.flipped, row.unexplained) for row in rows] == [(1, 0), (0, 0)]


def test_a_quantized_model_says_how_far_rounding_moves_scores() -> None:
    from ci.explain.inner_choices import Choosing, flips_of, same_choices

    floats = graph_of(lambda x: TABLE[torch.argmax(x * 1.0, -1)], torch.tensor([[1.0, 0.9, 0.2, -3.0]]))
    coarse = graph_of(
        lambda x: TABLE[torch.argmax(x * 1.0 - 0.06, -1)], torch.tensor([[1.0, 0.9, 0.2, -3.0]])
    )
    ((choice, other),) = same_choices(floats, coarse)
    exact = Choosing(floats, [choice], {choice.node: [numpy.array([1])]})
    quantized = Choosing(coarse, [other], {other.node: [numpy.array([1])]})

    (alone,) = flips_of(exact)
    (rounded,) = flips_of(exact, quantized)
    assert (alone.unexplained, rounded.unexplained) == (1, 0)


ROUTER = """
import torch
from torch import nn

class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4, bias=False), nn.Parameter(torch.randn(4, 8, 8))

    def forward(self, x):
        best = self.gate(x).argmax(-1)
        return torch.einsum("ti,toi->to", x, self.experts[best])

def make():
    torch.manual_seed(0)
    net = Router().eval()
    with torch.no_grad():
        # fp16 cannot tell these two experts apart.
        net.gate.weight[1] = net.gate.weight[0] * 1.0001
    return net, lambda generator: (torch.randn(16, 8, generator=generator),)
"""


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_a_router_that_rounding_decides_is_compared_with_float_by_the_programs_choices(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text(ROUTER, encoding="utf-8")
    done = typed(
        *("compile", f"{tmp_path}/net.py:make", "--soc", "SM8650", "--no-search", "-o", tmp_path / "out"),
        env=environment(QNN_CI_REPORTS=str(tmp_path / "reports")),
    )
    assert done.returncode == 0, done.stderr
    assert "net.py:11" in done.stdout
    record = json.loads((tmp_path / "out/net-SM8650-fp16.json").read_text())
    assert record["accuracy"]["sqnr_db"] > 40 and min(record["samples_db"]) > 40
