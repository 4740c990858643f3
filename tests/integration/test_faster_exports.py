"""What makes exports faster gives what torch gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ci.engine.workers.faster_exports import make_exports_faster

X = torch.randn(2, 4)


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is replaced, at the end of each test."""
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
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
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


@pytest.mark.filterwarnings("ignore::FutureWarning")
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


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore")
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
    assert "aten.conv2d.default" in targets and not any("batch_norm" in each for each in targets)
