"""Which known faults are suspected of a model's nodes, as torch exports and the quantizer rewrites them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from provisioning.known_faults import Product
from tests.support.models_of_faults import FAULTS, IMAGES, ROWS, Among, made

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.heavy,
    pytest.mark.long("compiles a model for each fault"),
]


@pytest.fixture(autouse=True)
def _no_sdk_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable, the quantizer looks for one on the network."""
    monkeypatch.setenv("QNN_SDK_ROOT", "")


VERSIONS: dict[Product, str] = {"executorch": "1.5.1", "qnn": "2.49.40"}


def suspected(net: nn.Module, inputs: tuple[Tensor, ...], precision: str) -> set[str]:
    from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from ci.explain.torch_graph import TorchGraph
    from ci.operators.faults import faults_in

    module = torch.export.export(net, inputs, strict=True).module()
    if precision != "fp16":
        quantizer = QnnQuantizer(soc_model=QcomChipset.SM8650)
        quantizer.set_default_quant_config(getattr(QuantDtype, f"use_{precision}"))
        module = prepare_pt2e(module, quantizer)
        module(*inputs)
        module = convert_pt2e(module)
    graph = TorchGraph(module, [inputs])
    rows = ((name, graph.traits(name)) for name in graph.operators)
    nodes = {name: traits[name] for name, traits in rows if name in traits}
    return {met.fault.id for met in faults_in(nodes, precision, "SM8650", VERSIONS)}


WITH_WHOLE = ("batch-norm-16a8w", "batch-norm-largest-bias")
"""Nightly: torchao takes most of a minute to convert such a model. How a norm with the fault is known is in
tests/unit/test_known_faults.py, in each run."""
NAMES = [pytest.param(name, marks=[pytest.mark.whole] if name in WITH_WHOLE else []) for name in FAULTS]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_meets_a_fault_is_suspected_of_it_and_of_no_other(name: str) -> None:
    assert suspected(*made(name), FAULTS[name].precision) == {name}


@pytest.mark.parametrize("precision", ["fp16", "8a8w"])
def test_a_cast_of_floats_is_suspected_whether_they_are_quantized_or_not(precision: str) -> None:
    net = Among(lambda x: x.int(), ROWS, "last").eval()
    assert "float-to-int-rounds" in suspected(net, (torch.randn(ROWS),), precision)


SQUARES = (1, 8, 8, 8)
RIGHT: dict[str, tuple[str, Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "a cut at an end": ("16a8w", lambda x: functional.pad(x, (0, 0, 0, -1)), ROWS),
    "a border all round": ("fp16", lambda x: functional.pad(x, (1, 1, 1, 1)), SQUARES),
    "twice the size": ("fp16", lambda x: functional.interpolate(x, scale_factor=2.0), SQUARES),
    "a pool of three": ("fp16", nn.MaxPool2d(3, 2, 1), SQUARES),
    "a sum along rows": ("8a8w", lambda x: torch.cumsum(x, -1), ROWS),
    "exp of what is small": ("fp16", lambda x: torch.exp(x), ROWS),
    "softmax of scores": ("16a8w", lambda x: torch.softmax(3 * x, -1), ROWS),
    "a usual norm": ("fp16", nn.BatchNorm2d(8), IMAGES),
    "one parameter": ("fp16", nn.PReLU(), ROWS),
    "two halves": ("8a8w", lambda x: torch.cat([x[..., 8:], x[..., :8]], -1), ROWS),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_model_with_the_same_operators_and_other_arguments_is_suspected_of_nothing(name: str) -> None:
    precision, compute, shape = RIGHT[name]
    torch.manual_seed(0)
    assert suspected(Among(compute, shape).eval(), (torch.randn(shape),), precision) == set()
