"""What makes exports faster gives what torch gives."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from ci.engine.workers.faster_exports import INDUCTOR, make_exports_faster
from ci.lanes.executorch.worker import IMPORTED_LATE

X = torch.randn(2, 4)

pytestmark = pytest.mark.filterwarnings("ignore")
"""Of torch and executorch about themselves."""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is replaced, at the end of each test."""
    from executorch.backends.qualcomm.serialization import qc_schema_serialize
    from executorch.backends.qualcomm.utils import qnn_sdk_setup
    from torch._dynamo import functional_export
    from torch._export import utils
    from torch.export import decomp_utils, exported_program
    from torch.fx import graph_module, traceback
    from torchao.quantization.pt2e import qat_utils

    for module in (utils, decomp_utils, exported_program):
        monkeypatch.setattr(module, "_collect_all_valid_cia_ops", utils._collect_all_valid_cia_ops)
    for owner, name in (
        (torch._ops, "Callable"),
        (exported_program, "_override_composite_implicit_decomp"),
        (qat_utils, "itertools"),
        (qat_utils, "_fold_conv_bn_qat_helper"),
        (functional_export, "_suggest_or_raise_constraint_violation"),
        (qc_schema_serialize, "_convert_to_object"),
        (qnn_sdk_setup, "_read_cpu_vendor"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    for name in ("recompile", "__reduce__", "__reduce_package__"):
        monkeypatch.setattr(torch.fx.GraphModule, name, vars(torch.fx.GraphModule)[name])
    for name in ("_code", "_lineno_map", "_prologue_start"):
        monkeypatch.setattr(torch.fx.GraphModule, name, None, raising=False)
        monkeypatch.delattr(torch.fx.GraphModule, name)
    monkeypatch.setattr(graph_module, "compile", compile, raising=False)
    monkeypatch.setattr(traceback.NodeSource, "__deepcopy__", None, raising=False)
    monkeypatch.delattr(traceback.NodeSource, "__deepcopy__")


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


def test_modules_of_one_source_have_code_objects_of_their_own() -> None:
    """dynamo remembers by code object."""
    make_exports_faster()
    first, second = (torch.fx.symbolic_trace(nn.ReLU()) for _ in range(2))
    assert first.code == second.code and first.forward.__code__ is not second.forward.__code__
    assert first.forward.__code__.co_filename != second.forward.__code__.co_filename


def edited(net: nn.Module) -> torch.fx.GraphModule:
    """Its graph negates what the module gave, as a pass edits it."""
    module = torch.fx.symbolic_trace(net)
    (end,) = module.graph.find_nodes(op="output")
    with module.graph.inserting_before(end):
        (value,) = end.args
        end.args = (module.graph.call_function(torch.neg, (value,)),)
    module.recompile()
    return module


def test_a_module_whose_code_is_written_late_is_called_shown_copied_and_kept_like_any_other() -> None:
    plain = edited(nn.ReLU())
    make_exports_faster()
    late = [edited(nn.ReLU()) for _ in range(7)]
    called, by_class, shown, copied, kept, traced, exported = late
    expected = plain(X)
    assert torch.equal(called(X), expected) and torch.equal(type(by_class).forward(by_class, X), expected)
    assert shown.code == plain.code and str(shown) == str(plain) and shown._lineno_map == plain._lineno_map
    assert torch.equal(copy.deepcopy(copied)(X), expected) and torch.equal(copy.copy(copied)(X), expected)
    assert torch.equal(pickle.loads(pickle.dumps(kept))(X), expected)
    assert torch.fx.symbolic_trace(traced).code == torch.fx.symbolic_trace(plain).code
    program = torch.export.export(exported, (X,), strict=True)
    assert torch.equal(program.module()(X), expected)
    # What changed since it was called is written again.
    called.graph.eliminate_dead_code()
    (end,) = called.graph.find_nodes(op="output")
    end.args = (end.args[0].args[0],)
    called.recompile()
    assert torch.equal(called(X), nn.ReLU()(X))


def test_code_that_cannot_be_written_is_an_error_each_time_that_it_is_asked_for() -> None:
    make_exports_faster()
    module = torch.fx.symbolic_trace(nn.ReLU())
    module.graph._codegen = None
    module.recompile()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            module(X)


def test_a_dynamic_shape_that_the_model_contradicts_is_still_an_error() -> None:
    make_exports_faster()
    two_rows, some = nn.Unflatten(0, (2, 1)), {"input": {0: torch.export.Dim("rows")}}
    torch.export.export(two_rows, (X,), strict=True)
    with pytest.raises(torch._dynamo.exc.UserError, match="rows"):
        torch.export.export(two_rows, (X,), dynamic_shapes=some, strict=True)
    torch.export.export(nn.ReLU(), (X,), dynamic_shapes=some, strict=True)


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


@pytest.mark.parametrize("name", IMPORTED_LATE)
def test_what_a_worker_imports_ahead_is_in_the_pinned_release(name: str) -> None:
    assert importlib.util.find_spec(name)
