"""What makes exports faster gives what torch gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ci.engine.workers.faster_exports import make_exports_faster

X = torch.randn(2, 4)


def test_asking_for_the_operators_once_gives_the_same_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._export import utils
    from torch.export import decomp_utils, exported_program

    for module in (utils, decomp_utils, exported_program):
        # Restored at the end.
        monkeypatch.setattr(module, "_collect_all_valid_cia_ops", utils._collect_all_valid_cia_ops)
    monkeypatch.setattr(torch._ops, "Callable", torch._ops.Callable)
    collect = utils._collect_all_valid_cia_ops
    make_exports_faster()
    plain = collect()
    library = torch.library.Library("qnn_ci_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CompositeImplicitAutograd")
    quick = exported_program._collect_all_valid_cia_ops()
    assert quick - plain == {torch.ops.qnn_ci_test.twice.default} and not plain - quick


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_export_beside_another_leaves_torch_as_it_was_and_gives_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.export import exported_program
    from torch.fx import graph_module

    composite = nn.Sequential(nn.SiLU(), nn.Flatten(), nn.Unflatten(1, (2, 2)))

    def decomposed() -> str:
        program = torch.export.export(composite, (X,), strict=True).run_decompositions()
        return str(program.graph)

    operators = exported_program._collect_all_valid_cia_ops()
    before = {operator: dict(operator.py_kernels) for operator in operators}
    plain = decomposed()
    override = exported_program._override_composite_implicit_decomp
    monkeypatch.setattr(exported_program, "_override_composite_implicit_decomp", override)
    monkeypatch.setattr(graph_module, "compile", compile, raising=False)
    make_exports_faster()
    assert exported_program._override_composite_implicit_decomp is not override
    for _ in range(2):
        assert decomposed() == plain
        assert {operator: dict(operator.py_kernels) for operator in operators} == before


def test_modules_of_one_source_have_code_objects_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """dynamo remembers by code object."""
    from torch.fx import graph_module

    monkeypatch.setattr(graph_module, "compile", compile, raising=False)
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
