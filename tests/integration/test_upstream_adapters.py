"""How ExecuTorch's suites are set up: the chip, the figures, the flows, and what our own cases draw."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from ci.lanes.upstream import adapters, values
from ci.lanes.upstream.adapters import (
    SCHEMES,
    Backend,
    ChainsAdapter,
    DefaultAdapter,
    Rework,
    ValuesAdapter,
    built_otherwise,
    least_db,
)
from ci.lanes.upstream.chains import test_chains as one_chain
from ci.lanes.upstream.value_cases import cases, chains
from ci.lanes.upstream.values import draw
from ci.operators.table import DRAWS, EXACT
from ci.pipeline.models.shipped.operators import Chained, alone

# Torch takes seconds to import, which unit tests do without.
pytestmark = pytest.mark.heavy


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Stand-ins for modules of the executorch wheel."""

    def add(name: str, **contents: Any) -> ModuleType:
        module = ModuleType(f"executorch.backends.{name}")
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    for name in ("", ".backends"):
        monkeypatch.setitem(sys.modules, f"executorch{name}", ModuleType(f"executorch{name}"))
    for name in ("qualcomm", "qualcomm.tests", "qualcomm.tests.rework", "qualcomm.tests.rework.htp"):
        add(name)
    for name in ("test", "test.suite", "test.harness"):
        add(name)
    return add


class Unwatched(Rework):
    def watch(self, *args: object) -> None:
        """Nothing of torch is here to be watched."""


def test_rework_binds_its_tests_to_the_chosen_chip(
    upstream: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = {
        name: type(name, (), {"assert_close": None}) for name in ("Tolerance", "Sqnr", "CosineSimilarity")
    }
    upstream("qualcomm.tests.rework.conftest", **metrics)
    upstream("qualcomm.export_utils", SimpleADB=type("SimpleADB", (), {}))
    htp = upstream(
        "qualcomm.tests.rework.htp.conftest",
        _get_htp_arch=lambda: [(68, "SM8350"), (79, "SM8750")],
        with_htp_context=lambda test, hw_arch: lambda request, kwargs: (hw_arch, kwargs.pop("expected")),
    )
    monkeypatch.setenv("QNN_SOC_MODEL", "SM8750")
    Unwatched().prepare()
    bound, kwargs = htp.with_htp_context(None, hw_arch=68), {"expected": "whole"}
    # A test that runs a second time finds its parameters again.
    assert [bound(None, kwargs) for _ in range(2)] == [(79, "whole")] * 2


def test_the_suite_for_all_backends_lowers_for_the_chosen_chip_and_takes_the_reference_for_the_signal(
    upstream: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    tester = upstream("qualcomm.tests.tester", ToEdgeTransformAndLower=lambda soc_model: soc_model)
    upstream("test.suite.reporting", begin_test_session=lambda path, seed: seeds.append(seed))
    statistics = upstream(
        "test.harness.error_statistics", compute_sqnr=lambda signal, output: (signal, output)
    )
    runner = upstream(
        "test.suite.runner",
        count_ops=lambda left: left,
        _graph_has_unsupported_patterns=lambda program: True,
        run_test=run_test,
    )
    upstream("test.harness.tester", Tester=type("Tester", (Compares,), {}))
    upstream("qualcomm._passes.qnn_pass_manager", QnnPassManager=type("QnnPassManager", (Passes,), {}))
    monkeypatch.setenv("QNN_SOC_MODEL", "SM8750")
    Backend().prepare()
    assert tester.ToEdgeTransformAndLower() == "SM8750"
    assert statistics.compute_sqnr("computed", "reference") == ("reference", "computed")
    assert seeds == [0]
    # HTP took the convolution, or left it to the CPU.
    for left, skipped in (({"aten::relu": 1}, False), ({"aten::convolution": 1}, True)):
        assert runner.count_ops(left) == left
        assert runner._graph_has_unsupported_patterns(None) is skipped
    quantized, in_fp16 = (
        runner.run_test(lambda x: x * 2, (torch.ones(8),), Flow(quantize)).against_float
        for quantize in (True, False)
    )
    assert quantized.float_db == pytest.approx(20, abs=0.1)
    assert quantized.quantized_db == pytest.approx(40, abs=0.1)
    assert quantized.in_float == ["aten.sin.default"] and in_fp16 is None
    # What is compiled once is calibrated and runs with each draw.
    upstream("test.suite.flows")
    upstream("test.suite.flows.qualcomm", MovingAverageMinMaxObserver=None)
    stages: list[Any] = []
    double = Double()
    double.draws = [(torch.ones(8) * scale,) for scale in (1.0, 2.0, 3.0)]
    tested = runner.run_test(double, double.draws[0], Flow(True, stages))
    assert [round(draw.sqnr_db) for draw in tested.draws] == [21] * 3
    assert [len(stage.calibration_samples) for stage in stages] == [3]
    # A draw that the suite refuses ends nothing: what the others give is known too.
    double.draws = [(torch.ones(8) * scale,) for scale in (1.0, REFUSED, 3.0)]
    tested = runner.run_test(double, double.draws[0], Flow(True, stages))
    assert [draw.refused for draw in tested.draws] == [False, True, False]
    assert tested.refused


class Double:
    draws: Any = ()

    def __call__(self, x: Any) -> Any:
        return x * 2


@dataclass
class Flow:
    """As ExecuTorch's."""

    quantize: bool
    stages: list[Any] = field(default_factory=list)

    quantize_stage_factory: Any = None

    def __post_init__(self) -> None:
        self.quantize_stage_factory = self.quantize_stage_factory or self._stage

    def _stage(self) -> Any:
        self.stages.append(SimpleNamespace())
        return self.stages[-1]


def test_our_own_cases_are_held_to_the_ratio_alone_unless_they_give_integers(
    upstream: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    schemes = {f"use_{scheme}": scheme for scheme in SCHEMES}
    upstream("test.suite.flows")
    flow = SimpleNamespace(name="", quantize_stage_factory=None)
    upstream("test.suite.flows.qualcomm", _create_qnn_flow=lambda name, **named: flow)
    upstream("qualcomm.quantizer")
    upstream("qualcomm.quantizer.quantizer", QuantDtype=schemes)
    upstream("test.suite.flow")
    tester = upstream("test.harness.tester", Tester=type("Tester", (Compares,), {})).Tester
    monkeypatch.setattr(Backend, "prepare", lambda self: None)
    ValuesAdapter().prepare()
    tensor = torch.tensor([100.0])
    tester._assert_outputs_equal([tensor], [tensor + 0.7], atol=0.1, rtol=0.0)
    with pytest.raises(AssertionError):
        tester._assert_outputs_equal([tensor.int()], [tensor.int() + 1], atol=0.1, rtol=0.0)


def test_a_chain_is_quantized_for_its_chip_and_lowered_as_users_do_it(
    upstream: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stage:
        def __init__(self, soc_model: str, use_fp16: bool) -> None:
            self.compiler_specs = soc_model, use_fp16

    tester = upstream("qualcomm.tests.tester", ToEdgeTransformAndLower=functools.partial(Stage))
    upstream("test.suite.flows")
    flows = upstream("test.suite.flows.qualcomm", QnnQuantizer=lambda soc_model: soc_model)
    upstream("qualcomm.utils")
    upstream(
        "qualcomm.utils.utils",
        get_soc_to_chipset_map=lambda: {"SM8450": 36},
        to_edge_transform_and_lower_to_qnn=lambda *args, **named: (args, named),
    )
    monkeypatch.setattr(ValuesAdapter, "prepare", lambda self: None)
    monkeypatch.setenv("QNN_SOC_MODEL", "SM8450")
    ChainsAdapter().prepare()
    # ExecuTorch's flows hand the choice on in a tuple, which is always true.
    stage = tester.ToEdgeTransformAndLower(use_fp16=(False,))
    stage.run(SimpleNamespace(module=lambda: "model", example_inputs=(("x",), {})), generate_etrecord=True)
    assert flows.QnnQuantizer() == 36
    lowered = ("model", ("x",), ("SM8450", False)), {"generate_etrecord": True}
    assert stage.edge_dialect_program == lowered


REFUSED = 7.0
"""Inputs whose outputs the tester does not take."""


class Compares:
    """As ExecuTorch's tester."""

    @staticmethod
    def _assert_outputs_equal(computed: Any, expected: Any, *, atol: float, rtol: float) -> None:
        for one, other in zip(computed, expected, strict=True):
            assert torch.allclose(one, other, atol=atol, rtol=rtol)

    @staticmethod
    def _calculate_reference_output(program: Callable[..., Any], inputs: Any) -> tuple[Any, None]:
        return program(*inputs), None

    @staticmethod
    def _compare_outputs(reference: Any, computed: Any) -> None:
        assert not reference[0].allclose(torch.tensor(REFUSED * 2.02))

    def run_method_and_compare_outputs(self, inputs: Any) -> Any:
        reference, _ = self._calculate_reference_output(lambda x: x * 2.02, inputs)
        self._compare_outputs((reference,), [inputs[0] * 2.2])


class Passes:
    def transform_for_preprocess_pipeline(self) -> Any:
        value, scale = torch.ones(8), {"scale": 1}

        def node(name: str, value: torch.Tensor, op: str = "call_function", **meta: Any) -> Any:
            return SimpleNamespace(op=op, target=SimpleNamespace(__name__=name), meta={"val": value, **meta})

        nodes = [
            node("x", value, "placeholder"),
            node("aten.mul.Tensor", value, quant_attrs=scale),
            node("quantized_decomposed.dequantize_per_tensor.default", value),
            node("aten.sin.default", value),
            node("aten.argmax.default", value.to(torch.int64)),
        ]
        return SimpleNamespace(graph=SimpleNamespace(nodes=nodes))


def run_test(model: Any, inputs: Any, flow: Any) -> Any:
    """As ExecuTorch's: it lowers, runs the quantized model, and compares with what HTP gave."""
    modules = sys.modules
    tester = modules["executorch.backends.test.harness.tester"].Tester
    modules[
        "executorch.backends.qualcomm._passes.qnn_pass_manager"
    ].QnnPassManager().transform_for_preprocess_pipeline()
    if flow.quantize:
        flow.quantize_stage_factory()
    try:
        tester().run_method_and_compare_outputs(inputs=inputs)
    except AssertionError:
        return SimpleNamespace(refused=True)
    return SimpleNamespace(refused=False)


@pytest.mark.parametrize(("scheme", "told"), [("use_8a8w", True), ("use_16a4w_block", False)])
def test_a_flow_that_is_built_with_another_scheme_is_told(scheme: str, told: bool) -> None:
    def factory_of(quant_dtype: Any) -> Callable[[], Any]:
        return lambda: quant_dtype

    factory = factory_of(SimpleNamespace(name=scheme))
    assert bool(built_otherwise("qnn_16a4w_block", factory)) == told


def test_the_least_figure_of_all_outputs_is_taken() -> None:
    right = [torch.ones(8), torch.arange(8.0)]
    assert least_db(right, right) == EXACT
    assert least_db([right[0] * 1.1, right[1]], right) == pytest.approx(20, abs=0.1)
    assert math.isnan(least_db([right[0] * math.nan, right[1]], right) or 0)
    assert least_db([right[0]], right) is None


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
    assert all(weights.unique().numel() > 1 for weights in norm.parameters())


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4, 5, 6])
def test_every_case_has_a_model_in_each_of_its_shapes(dimensions: int) -> None:
    these = [case for case in (*cases(), *chains()) if len(case.shape) == dimensions]
    models = [alone(case.expression, case.is_module, case.settings.indices)[0] for case in these]
    assert models and all(isinstance(model, torch.nn.Module) for model in models)


def held(case: str, flow: str) -> bool:
    by_name = {str(case): case for case in cases()}
    parameters = {"case": by_name[case], "test_runner": SimpleNamespace(name=flow)}
    return ValuesAdapter().holds(SimpleNamespace(callspec=SimpleNamespace(params=parameters)))  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("adapter", "has_blocks"), [(ValuesAdapter, True), (ChainsAdapter, False)])
def test_weights_are_in_blocks_but_those_of_the_layers_of_a_chain(
    upstream: Callable[..., ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    adapter: type[ValuesAdapter],
    has_blocks: bool,
) -> None:
    class Stage:
        def __init__(self) -> None:
            self.quantizer = self
            self.blocks: dict[str, Any] = {}

        def set_block_size_map(self, sizes: dict[str, Any]) -> None:
            self.blocks = sizes

    upstream("test.suite.flows")
    create = lambda name, **named: SimpleNamespace(name=name, quantize_stage_factory=Stage)  # noqa: E731
    upstream("test.suite.flows.qualcomm", _create_qnn_flow=create)
    upstream("qualcomm.quantizer")
    schemes = {f"use_{scheme}": scheme for scheme in SCHEMES}
    upstream("qualcomm.quantizer.quantizer", QuantDtype=schemes)
    shared = upstream("test.suite.flow")
    upstream("test.harness.tester", Tester=type("Tester", (Compares,), {}))
    monkeypatch.setattr(Backend, "prepare", lambda self: None)
    monkeypatch.setattr(adapters, "_lower_as_users_do", lambda soc: None)
    monkeypatch.setenv("QNN_SOC_MODEL", "SM8650")
    adapter().prepare()
    flows = shared.all_flows()
    assert bool(flows["qnn_16a4w_block"].quantize_stage_factory().blocks) == has_blocks
    assert not flows["qnn_16a4w"].quantize_stage_factory().blocks


def test_a_comparison_is_noted_with_its_figure_and_what_the_test_said_of_it() -> None:
    class Upstream:
        def assert_close(self, device_output: Any, ref_output: Any) -> None:
            assert device_output[0].sum() < 10

    adapter = DefaultAdapter()
    adapter.watch(Upstream, "assert_close", slice(1, 3))
    right = torch.ones(4)
    Upstream().assert_close(device_output=[right * 1.1], ref_output=[right])
    with pytest.raises(AssertionError):
        Upstream().assert_close([right * 3], [right])
    assert [(round(comparison.figure or 0), comparison.passed) for comparison in adapter.comparisons] == [
        (20, True),
        (-6, False),
    ]


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
