"""Which values the indices that a model returns chose among, in PyTorch's form of a model and in ONNX'."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor

from ci.explain.graph import Graph
from ci.explain.index_operators import choices_of
from ci.explain.onnx_graph import OnnxGraph
from tests.support.repaired_nets import Net

pytestmark = pytest.mark.filterwarnings("ignore")

X = np.random.default_rng(0).normal(size=(2, 3, 5)).astype("f4")
DOUBLED = 2 * X


def in_torch(compute: Callable[[Tensor], object]) -> Graph:
    from ci.explain.torch_graph import TorchGraph

    samples = [(torch.from_numpy(X),), (torch.from_numpy(-X),)]
    return TorchGraph(torch.export.export(Net(compute), samples[0], strict=True).module(), samples)


def in_onnx(*nodes: onnx.NodeProto, outputs: Sequence[str] = ("y",)) -> Graph:
    """Return a model that doubles its input before these nodes."""
    doubles = helper.make_node("Add", ["x", "x"], ["doubled"], name="doubles")
    graph = helper.make_graph(
        [doubles, *nodes],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in outputs],
        [
            helper.make_tensor("shape", TensorProto.INT64, [1], [-1]),
            helper.make_tensor("two", TensorProto.INT64, [1], [2]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return OnnxGraph(model, [{"x": X}, {"x": -X}])


def node(kind: str, *inputs: str, to: Sequence[str] = ("y",), **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, to, name=kind.lower(), **attributes)


TOP_K = ("values", "y")


@pytest.mark.parametrize(
    ("graph", "dim"),
    [
        (lambda: in_torch(lambda x: (x + x).argmax(1)), 1),
        (lambda: in_torch(lambda x: (x + x).argmin(-1).unsqueeze(0).to(torch.int32)), 2),
        (lambda: in_torch(lambda x: (x + x).max(0).indices), 0),
        (lambda: in_torch(lambda x: (x + x).sort().indices.reshape(-1)), 2),
        (lambda: in_torch(lambda x: torch.sort(x + x, stable=True, dim=1).indices), 1),
        (lambda: in_torch(lambda x: (x + x).topk(2).indices), 2),
        (lambda: in_torch(lambda x: (x + x).topk(2, dim=0).indices), 0),
        (lambda: in_onnx(node("ArgMax", "doubled")), 0),
        (lambda: in_onnx(node("ArgMin", "doubled", axis=-2)), 1),
        (lambda: in_onnx(node("ArgMax", "doubled", to=["i"], axis=1), node("Reshape", "i", "shape")), 1),
        (lambda: in_onnx(node("TopK", "doubled", "two", to=TOP_K)), 2),
        (lambda: in_onnx(node("TopK", "doubled", "two", to=TOP_K, axis=0)), 0),
    ],
)
def test_values_that_were_chosen_among_are_found_with_their_dimension(
    graph: Callable[[], Graph], dim: int
) -> None:
    (choice,) = choices_of(graph(), None)

    assert (choice.output, choice.dim) == (0, dim)
    assert [array.tolist() for array in choice.exact] == [DOUBLED.tolist(), (-DOUBLED).tolist()]


def test_an_index_into_all_values_chose_among_one_row_of_them() -> None:
    (choice,) = choices_of(in_torch(lambda x: (x + x).argmax()), None)

    assert choice.dim == 0 and choice.exact[0].tolist() == DOUBLED.ravel().tolist()


@pytest.mark.parametrize(
    "graph",
    [
        lambda: in_torch(lambda x: (x + x).topk(2).values),
        lambda: in_torch(lambda x: (x + x).argmax(1) * 2),
        lambda: in_onnx(node("TopK", "doubled", "two", to=("y", "indices"))),
    ],
)
def test_what_holds_no_indices_chose_among_nothing(graph: Callable[[], Graph]) -> None:
    assert choices_of(graph(), None) == []


def test_each_output_has_its_own_values() -> None:
    """The same tensor counts as often as it is returned."""
    graph = in_torch(lambda x: (x, x, x.argmax(1), (x + x).argmax(2)))

    assert [(row.output, row.dim, row.exact[0][0, 0, 0]) for row in choices_of(graph, None)] == [
        (2, 1, X[0, 0, 0]),
        (3, 2, DOUBLED[0, 0, 0]),
    ]


def test_values_of_both_models_say_how_close_two_must_be_to_count_as_equal() -> None:
    floats = in_torch(lambda x: ((x + x).argmax(1), x.argmax(2)))
    quantized = in_torch(lambda x: ((x + x + 0.05).argmax(1), x))

    (choice,) = choices_of(floats, quantized)

    assert choice.output == 0 and choice.noise == pytest.approx(0.1, rel=1e-4)
    assert choice.quantized[0] == pytest.approx(DOUBLED + 0.05)
