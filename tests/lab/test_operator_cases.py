"""Which flows and schemes our own cases run in, and what they draw."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from lab.models.chained import Chained
from lab.models.operators import alone
from lab.operators import values
from lab.operators.adapters import ValuesAdapter, built_otherwise
from lab.operators.value_cases import DRAWS, cases, chains
from lab.operators.values import draw
from lab.operators.values import test_chains as one_chain

# Torch takes seconds to import, which unit tests do without.
pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(("scheme", "told"), [("use_8a8w", True), ("use_16a4w_block", False)])
def test_a_flow_that_is_built_with_another_scheme_is_told(scheme: str, told: bool) -> None:
    def factory_of(quant_dtype: Any) -> Callable[[], Any]:
        return lambda: quant_dtype

    factory = factory_of(SimpleNamespace(name=scheme))
    assert bool(built_otherwise("qnn_16a4w_block", factory)) == told


def test_a_case_with_zeros_has_as_many_as_it_says() -> None:
    torch.manual_seed(0)
    by_name = {str(case): case for case in cases()}
    drawn = values.draw(by_name["relu-zeros"])
    assert 0.2 < float((drawn == 0).float().mean()) < 0.8
    assert not (values.draw(by_name["relu-plain"]) == 0).any()


def test_an_operator_of_integers_is_given_different_integers() -> None:
    case = next(case for case in cases() if case.settings.integers)
    drawn = values.draw(case)
    assert drawn.dtype == torch.int32 and drawn.unique().numel() > 2


def test_a_norm_of_a_case_multiplies_and_adds_something() -> None:
    case = next(case for case in cases() if case.operator == "batch_norm2d")
    norm, _ = alone(case.expression, case.is_module)
    assert norm.weight.min() > 0 > norm.bias.min() and norm.bias.max() > 0


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4, 5, 6])
def test_every_case_has_a_model_in_each_of_its_shapes(dimensions: int) -> None:
    these = [case for case in (*cases(), *chains()) if len(case.shape) == dimensions]
    models = [alone(case.expression, case.is_module, case.settings.indices)[0] for case in these]
    assert models and all(isinstance(model, torch.nn.Module) for model in models)


def held(case: str, flow: str) -> bool:
    by_name = {str(case): case for case in cases()}
    parameters = {"case": by_name[case], "test_runner": SimpleNamespace(name=flow)}
    item: Any = SimpleNamespace(callspec=SimpleNamespace(params=parameters))
    return ValuesAdapter.holds(None, item)  # type: ignore[arg-type]


def test_blocks_of_weights_are_tried_where_the_channels_are_whole_blocks() -> None:
    assert held("conv2d-plain", "qnn_16a4w_block")
    assert not held("conv2d-1x3x9x7", "qnn_16a4w_block") and held("conv2d-1x3x9x7", "qnn_16a4w")
    # The layer's weights are no whole block, or the quantizer has no blocks for it.
    assert not held("linear-plain", "qnn_16a4w_block") and not held("conv1d-plain", "qnn_16a4w_block")


@pytest.mark.parametrize("scheme", ["16a4w", "16a16w", "16a4w_block", "8a4w"])
def test_an_operator_without_weights_is_tried_plainly_where_the_weights_alone_differ(
    scheme: str,
) -> None:
    assert held("relu-plain", f"qnn_{scheme}") and not held("relu-small", f"qnn_{scheme}")
    assert scheme.endswith("_block") or held("conv1d-small", f"qnn_{scheme}")
    assert all(held("relu-small", flow) for flow in ("qnn", "qnn_8a8w", "qnn_16a8w"))


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


@pytest.mark.parametrize(("flow", "has_bias"), [("qnn_16a16w", False), ("qnn_16a8w", True)])
def test_the_layers_of_a_chain_have_no_bias_where_it_may_be_cut_off(flow: str, has_bias: bool) -> None:
    by_name = {str(case): case for case in chains()}
    models = {}
    for name in ("relu-chain", "conv2d-chain", "mean-chain-keepdim"):
        one_chain(runs := Runs(flow), by_name[name])
        models[name] = runs.model
        layers = [*runs.model.before, *runs.model.after]
        assert [layer.bias is not None for layer in layers] == [has_bias] * len(layers)
    # A positive weight of one number is a Hadamard transform to ExecuTorch, if there is no bias.
    (layer,) = models["mean-chain-keepdim"].after
    assert layer.weight.numel() == 1 and (has_bias or layer.weight.item() < 0)


def test_an_operator_in_a_chain_gives_more_than_one_number() -> None:
    """Of one that always gives the same, nothing is seen behind the layer after it."""
    always_the_same = []
    for case in chains():
        # Scalars differ from draw to draw. ExecuTorch's own operators are not registered here.
        if "qnn_custom" in case.expression or case.name.endswith("-all"):
            continue
        torch.manual_seed(case.seed)
        operator, count = alone(case.expression, case.is_module, case.settings.indices)
        inputs = tuple(draw(case) for _ in range(count))
        chain = Chained(operator, inputs, images=case.settings.shapes == "image")
        outputs = operator(*(layer(value) for layer, value in zip(chain.before, inputs, strict=True)))
        if any(value.unique().numel() == 1 for value in tree_leaves(outputs)):
            always_the_same.append(str(case))
    assert always_the_same == []


def test_a_chain_makes_floats_of_booleans_without_a_cast() -> None:
    """A cast of them is wrong before a linear layer at 8 bits, which says nothing of the operator."""
    compared, _ = alone("~(x > 0.1)")
    inputs = (torch.rand(2, 3, 7),)
    chain = Chained(compared, inputs).eval()
    (layer,) = chain.after
    wanted = layer(compared(chain.before[0](inputs[0])).float())
    assert torch.equal(chain(*inputs), wanted)
    nodes = torch.export.export(chain, inputs).graph.nodes
    assert not [node for node in nodes if "aten.to" in str(node.target) or "_to_copy" in str(node.target)]
