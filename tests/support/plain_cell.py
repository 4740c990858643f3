"""Operators, one at a time, by executorch and nothing of this project: where each runs, and how exactly.

Its argument is a JSON list of what to measure: an `expression` of x and y or of a module, `shape`, `low`,
`high`, `scheme`, `soc`, `seed` and `layers`: what stands around it, `linear`, `conv` or nothing. For each it
prints a word of the operator table, and each draw's SQNR in dB against the quantized model. Between layers,
`part` is also what stays on the CPU alone.
"""

import json
import math
import os
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

DRAWS, LEAST_DB = 5, 20


class Net(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


class Between(torch.nn.Module):
    """Layers before each input, whose outputs are means of it, and after each output. A bias may be cut off
    at 16a16w, and a positive weight of one number alone is taken for a Hadamard transform."""

    def __init__(
        self, net: torch.nn.Module, inputs: Sequence[torch.Tensor], layers: str, scheme: str
    ) -> None:
        super().__init__()
        self.net, self.layers, self.bias = net, layers, scheme != "16a16w"
        self.before = torch.nn.ModuleList(map(self.layer, inputs))
        for layer in self.before:
            assert isinstance(layer, torch.nn.Linear | torch.nn.Conv2d)
            layer.weight.data = torch.softmax(4 * torch.randn(layer.weight.shape), 1)
            if layer.bias is not None:
                layer.bias.data.zero_()
        with torch.no_grad():
            self.after = torch.nn.ModuleList(map(self.layer, self.inner(inputs)))

    def layer(self, value: torch.Tensor) -> torch.nn.Module:
        if not value.dim():
            return torch.nn.Identity()
        if self.layers == "conv" and value.dim() == 4:
            return torch.nn.Conv2d(value.shape[1], value.shape[1], 1, bias=self.bias)
        layer = torch.nn.Linear(value.shape[-1], value.shape[-1], bias=self.bias)
        if layer.weight.numel() == 1 and not self.bias:
            layer.weight.data = -layer.weight.data.abs()
        return layer

    def inner(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = leaves(self.net(*(layer(value) for layer, value in zip(self.before, inputs, strict=True))))
        given = [torch.where(value, 1.0, 0.0) if value.dtype == torch.bool else value for value in given]
        return [value if value.is_floating_point() else value.to(torch.float32) for value in given]

    def forward(self, *inputs: torch.Tensor) -> Any:
        found = tuple(layer(value) for layer, value in zip(self.after, self.inner(inputs), strict=True))
        return found if len(found) > 1 else found[0]


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
    expression: str,
    shape: Sequence[int],
    low: float,
    high: float,
    scheme: str,
    soc: str,
    seed: int,
    layers: str,
) -> tuple[str, list[float]]:
    torch.manual_seed(seed)
    names = [name for name in ("x", "y") if re.search(rf"\b{name}\b", expression)]
    made = eval(f"lambda {', '.join(names)}: {expression}" if names else expression, {"torch": torch})
    inputs = [tuple(torch.rand(shape) * (high - low) + low for _ in names or "x") for _ in range(DRAWS)]
    for weights in made.parameters() if isinstance(made, torch.nn.Module) else ():
        if weights.unique().tolist() in ([0.0], [1.0]):
            # A fresh norm multiplies by 1 and adds 0.
            torch.nn.init.uniform_(weights, 0.5, 1.5)
    net: torch.nn.Module = Net(made)
    net = (Between(net, inputs[0], layers, scheme) if layers else net).eval()
    module = torch.export.export(net, inputs[0], strict=True).module()
    floats = scheme == "fp16"
    if not floats:
        quantizer = QnnQuantizer(soc_model=QcomChipset[soc])
        quantizer.set_default_quant_config(
            QuantDtype[f"use_{scheme}"],
            is_conv_per_channel=True,
            is_linear_per_channel=bool(layers),
            act_observer=MinMaxObserver,
        )
        if "block" in scheme and not layers:
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


def answer_each(measured: Callable[..., tuple[str, list[float]]]) -> None:
    """Each question of the script's argument in a process of its own, a line of JSON each."""
    for asked in json.loads(sys.argv[1]):
        # It may end by a signal.
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                print(json.dumps(["crash", []]), flush=True)
            continue
        try:
            answer = measured(**asked)
        except Exception as error:
            print(f"{type(error).__name__}: {error}"[:500], file=sys.stderr)
            answer = "dies", []
        print(json.dumps(answer), flush=True)
        os._exit(0)


answer_each(measured)
