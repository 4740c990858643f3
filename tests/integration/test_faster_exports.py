"""What makes exports faster gives what torch gives."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from ci.engine.closed import closed, key_of_environment
from ci.lanes.executorch.worker import IMPORTED_LATE
from ci.pipeline.models.faster_exports import INDUCTOR, SPEED_UPS, make_exports_faster
from ci.pipeline.options import PLAIN_TORCH
from provisioning.base.settings import MANIFESTS
from tests.support.lowering_suites import run

X = torch.randn(2, 4)
COMMON = MANIFESTS / "suites" / "common.toml"

pytestmark = pytest.mark.filterwarnings("ignore")
"""Of torch and executorch about themselves."""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is replaced, at the end of each test."""
    from executorch.backends.qualcomm.serialization import qc_schema_serialize
    from executorch.backends.qualcomm.utils import qnn_sdk_setup
    from torch._export import utils
    from torch.export import decomp_utils, exported_program
    from torchao.quantization.pt2e import qat_utils

    for module in (utils, decomp_utils, exported_program):
        monkeypatch.setattr(module, "_collect_all_valid_cia_ops", utils._collect_all_valid_cia_ops)
    for owner, name in (
        (torch._ops, "Callable"),
        (exported_program, "_override_composite_implicit_decomp"),
        (qat_utils, "itertools"),
        (qat_utils, "_fold_conv_bn_qat_helper"),
        (qc_schema_serialize, "_convert_to_object"),
        (qnn_sdk_setup, "_read_cpu_vendor"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))


def test_user_code_finds_torch_as_it_is() -> None:
    """What a model's own code can call, look at or define again is torch's own."""
    from torch.fx.traceback import NodeSource

    reachable = (
        torch.fx.GraphModule,
        torch.fx.Graph,
        torch.fx.Node,
        torch.export.ExportedProgram,
        NodeSource,
        nn.Module,
    )
    before = [dict(vars(owner)) for owner in reachable]
    public = {name: vars(torch.export)[name] for name in torch.export.__all__}
    make_exports_faster()
    assert [dict(vars(owner)) for owner in reachable] == before
    assert {name: vars(torch.export)[name] for name in torch.export.__all__} == public


def test_plain_torch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from executorch.backends.qualcomm.utils import qnn_sdk_setup

    measure = qnn_sdk_setup._read_cpu_vendor
    monkeypatch.setenv(PLAIN_TORCH, "1")
    make_exports_faster()
    assert qnn_sdk_setup._read_cpu_vendor is measure
    assert PLAIN_TORCH in key_of_environment(closed(os.environ))
    monkeypatch.delenv(PLAIN_TORCH)
    make_exports_faster()
    assert qnn_sdk_setup._read_cpu_vendor is not measure


def test_a_graph_that_was_edited_and_not_written_again_computes_as_in_torch() -> None:
    make_exports_faster()
    module = torch.fx.symbolic_trace(nn.ReLU())
    (end,) = module.graph.find_nodes(op="output")
    with module.graph.inserting_before(end):
        end.args = (module.graph.call_function(torch.neg, (end.args[0],)),)
    assert torch.equal(module(X), torch.relu(X))
    assert torch.equal(torch.export.export(module, (X,), strict=True).module()(X), torch.relu(X))


@pytest.mark.parametrize("package", SPEED_UPS)
def test_another_release_is_left_alone(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version
    other = {name: version(name) for name in SPEED_UPS} | {package: "0.1"}
    monkeypatch.setattr(importlib.metadata, "version", other.__getitem__)
    from executorch.backends.qualcomm.serialization import qc_schema_serialize
    from torch.export import exported_program
    from torchao.quantization.pt2e import qat_utils

    def functions() -> dict[str, object]:
        return {
            "torch": exported_program._override_composite_implicit_decomp,
            "torchao": qat_utils._fold_conv_bn_qat_helper,
            "executorch": qc_schema_serialize._convert_to_object,
        }

    before = functions()
    make_exports_faster()
    changed = {name for name, function in functions().items() if function is not before[name]}
    assert changed == SPEED_UPS.keys() - {package}


def test_asking_for_the_operators_once_gives_the_same_operators() -> None:
    from torch._export import utils
    from torch.export import exported_program

    collect = utils._collect_all_valid_cia_ops
    make_exports_faster()
    plain = collect()
    library = torch.library.Library("qnn_ci_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CompositeImplicitAutograd")
    quick = exported_program._collect_all_valid_cia_ops()
    assert quick - plain == {torch.ops.qnn_ci_test.twice.default} and not plain - quick


def test_an_export_beside_another_leaves_torch_as_it_was_and_gives_the_same() -> None:
    from torch.export import exported_program

    composite = nn.Sequential(nn.SiLU(), nn.Flatten(), nn.Unflatten(1, (2, 2)))

    def decomposed() -> str:
        program = torch.export.export(composite, (X,), strict=True).run_decompositions()
        return str(program.graph)

    operators = exported_program._collect_all_valid_cia_ops()
    before = {operator: dict(operator.py_kernels) for operator in operators}
    plain = decomposed()
    override = exported_program._override_composite_implicit_decomp
    make_exports_faster()
    assert exported_program._override_composite_implicit_decomp is not override
    for _ in range(2):
        assert decomposed() == plain
        assert {operator: dict(operator.py_kernels) for operator in operators} == before


def test_options_that_were_read_before_are_nobody_elses() -> None:
    from executorch.backends.qualcomm.serialization import qc_schema_serialize as serialize
    from executorch.backends.qualcomm.serialization.qc_schema import (
        QcomChipset,
        QnnExecuTorchBackendOptions,
        QnnExecuTorchBackendType,
        QnnExecuTorchOptions,
        SocInfo,
    )

    make_exports_faster()
    backend = QnnExecuTorchBackendOptions(QnnExecuTorchBackendType.kHtpBackend)
    options = QnnExecuTorchOptions(SocInfo(QcomChipset.SM8650), backend)
    written = serialize.option_to_flatbuffer(options)
    first, second = (serialize.flatbuffer_to_option(written) for _ in range(2))
    first.soc_info.soc_model = QcomChipset.SM8750
    assert second == serialize.flatbuffer_to_option(written) != first


@pytest.mark.whole
def test_a_convolution_that_is_trained_quantized_still_takes_its_norm_in() -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e
    from torchao.testing.pt2e._xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    make_exports_faster()
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    x = torch.randn(2, 3, 4, 4)
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_qat=True))
    prepared = prepare_qat_pt2e(torch.export.export(net, (x,), strict=True).module(), quantizer)
    prepared(x)
    targets = {str(node.target) for node in convert_pt2e(prepared).graph.nodes}
    assert "aten.conv2d.default" in targets and not any("batch_norm" in target for target in targets)


def test_the_processor_has_the_same_vendor_and_no_process_is_started_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from executorch.backends.qualcomm.utils import qnn_sdk_setup

    plain = qnn_sdk_setup._read_cpu_vendor()
    make_exports_faster()
    if "vendor_id" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        monkeypatch.setattr(subprocess, "Popen", None)
    assert qnn_sdk_setup._read_cpu_vendor() == plain


def test_what_writes_to_its_input_is_found_without_torchs_compiler_and_done_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.export import _remove_auto_functionalized_pass as real

    def add_one(x: torch.Tensor) -> None:
        x.add_(1)

    increase = torch.library.custom_op("qnn_ci_test::increase", mutates_args=("x",))(add_one)

    class Written(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            increase(y)
            return y

    def program(net: nn.Module) -> torch.export.ExportedProgram:
        return torch.export.export(net, (X,)).run_decompositions({})

    def graph_after(module: object, net: nn.Module) -> str:
        return str(module.unsafe_remove_auto_functionalized_pass(program(net)).graph)  # type: ignore[attr-defined]

    assert "auto_functionalized" in str(program(Written()).graph)
    expected = [graph_after(real, net) for net in (nn.ReLU(), Written())]
    for name in (INDUCTOR, real.__name__):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(torch.export, "_remove_auto_functionalized_pass", real)
    make_exports_faster()
    quick = sys.modules[real.__name__]
    assert quick is not real and graph_after(quick, nn.ReLU()) == expected[0]
    assert INDUCTOR not in sys.modules
    assert graph_after(quick, Written()) == expected[1] and "auto_functionalized" not in expected[1]


@pytest.mark.whole
@pytest.mark.timeout(3600)
def test_programs_that_this_was_not_written_for_are_the_same_by_plain_torch(tmp_path: Path) -> None:
    """The shipped ones are rechecked by the nightly row of test_lowering."""
    wider = tmp_path / "wider.toml"
    wider.write_text(COMMON.read_text(encoding="utf-8").replace("8a8w", "16a8w"), encoding="utf-8")
    chosen = ("--suite", COMMON, "--suite", wider, "--jobs", "2")
    # QNN's compiler crashes on three of these ten models.
    run("test_lowering", tmp_path, *chosen)
    again = run("test_lowering", tmp_path, *chosen, "--recheck", "100%")
    compared, _, cached = str(again.report.metrics["rechecked"]).split()
    assert compared == cached and int(cached) >= 14, again.err
    assert not [finding for finding in again.report.findings if finding.rule == "flaky"], again.err


@pytest.mark.parametrize("name", IMPORTED_LATE)
def test_what_a_worker_imports_ahead_is_in_the_pinned_release(name: str) -> None:
    assert importlib.util.find_spec(name)
