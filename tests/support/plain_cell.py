"""One operator alone, by executorch and nothing of this project: where it runs, and how exactly.

Its argument is JSON: an `expression` of x and y or of a module, `shape`, `low`, `high`, `scheme`, `soc` and
`seed`. It prints a word of the operator table, and each draw's SQNR in dB against the
quantized model.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
from torchao.quantization.pt2e import MinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

DRAWS, LEAST_DB = 3, 20


class Net(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def decibels(wanted: torch.Tensor, found: torch.Tensor) -> float:
    if wanted.shape != found.shape:
        return -math.inf
    wanted, found = wanted.double(), found.double()
    finite = torch.isfinite(wanted)
    if not torch.equal(finite, torch.isfinite(found)):
        return -math.inf
    signal, noise = wanted[finite].norm().item(), (found - wanted)[finite].norm().item()
    return 20 * math.log10(max(1e-12, signal) / max(1e-12, noise))


def leaves(given: Any) -> list[torch.Tensor]:
    return list(given) if isinstance(given, (tuple, list)) else [given]


def least(wanted: Iterable[torch.Tensor], found: Iterable[torch.Tensor]) -> float:
    return min(map(decibels, wanted, found))


def measured(
    expression: str, shape: Sequence[int], low: float, high: float, scheme: str, soc: str, seed: int
) -> tuple[str, list[float]]:
    torch.manual_seed(seed)
    names = [name for name in ("x", "y") if re.search(rf"\b{name}\b", expression)]
    made = eval(f"lambda {', '.join(names)}: {expression}" if names else expression, {"torch": torch})
    net = Net(made).eval()
    inputs = [tuple(torch.rand(shape) * (high - low) + low for _ in names or "x") for _ in range(DRAWS)]
    module = torch.export.export(net, inputs[0], strict=True).module()
    floats = scheme == "fp16"
    if not floats:
        quantizer = QnnQuantizer(soc_model=QcomChipset[soc])
        quantizer.set_default_quant_config(
            QuantDtype[f"use_{scheme}"],
            is_conv_per_channel=True,
            is_linear_per_channel=True,
            act_observer=MinMaxObserver,
        )
        if "block" in scheme:
            quantizer.set_block_size_map({"conv2d": (1, 32, 1, 1), "linear": (1, 32)})
        module = prepare_pt2e(module, quantizer)
        for draw in inputs:
            module(*draw)
        module = convert_pt2e(module)
    spec = qnn.generate_qnn_executorch_compiler_spec(
        QcomChipset[soc], qnn.generate_htp_compiler_spec(use_fp16=floats)
    )
    edge = qnn.to_edge_transform_and_lower_to_qnn(module, inputs[0], spec)
    program = edge.to_executorch().buffer
    names = [str(node.target) for node in edge.exported_program().graph.nodes if node.op == "call_function"]
    cpu = [name for name in names if not re.search("quantize|getitem|delegate", name)]
    if not any("delegate" in name for name in names):
        return "cpu", []
    loaded = Runtime.get().load_program(program)
    method = loaded.load_method("forward")
    found = []
    for draw in inputs:
        outputs = [value.clone() for value in method.execute(list(draw))]
        quantized, exact = leaves(module(*draw)), leaves(net(*draw))
        found.append((least(quantized, outputs), least(exact, quantized)))
    figures = sorted(row[0] for row in found)
    if figures[DRAWS // 2] < LEAST_DB:
        return "wrong", figures
    if sorted(row[1] for row in found)[DRAWS // 2] < LEAST_DB:
        return "lost", figures
    return "part" if cpu else "whole", figures


asked = json.loads(sys.argv[1])
try:
    answer = measured(**asked)
except Exception as error:
    print(f"{type(error).__name__}: {error}"[:500], file=sys.stderr)
    answer = "dies", []
print(json.dumps(answer), flush=True)
