"""Write a report for upstream: the smallest part of an exported model that shows a fault of the compiler, as
a script that quantizes and lowers it. `compile --report-upstream` asks for it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from textwrap import indent
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from ci.explain.operator_script import ARRAYS, OperatorScript, arrays_source
from ci.explain.torch_values import values_of
from ci.explain.upstream_report import ReportRequest, smallest_report
from ci.lanes.executorch.export import ChipModel
from ci.models.model_lines import source_of

STEPS = (0, 2, 4)
"""A part has the operators of the fault's line, and those so many steps before and behind them."""
LEAST = 20
"""Outputs below so many decibels are wrong."""
FORGETS = re.compile(r";  .+ = None$", re.MULTILINE)
"""The generated code forgets values at the end of a line."""

BODY = """\
{arrays}class Net(torch.nn.Module):
    def __init__(self):
        super().__init__(){weights}

{forward}


torch.manual_seed(0)
net = Net().eval().requires_grad_(False)
inputs = {inputs}
{quantized}options = qnn.generate_htp_compiler_spec(use_fp16={halves})
spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.{soc}, options)
{judged}"""
IMPORTS = """\
import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
"""
IMPORTS_OF_QUANTIZERS = """\
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QnnExecuTorchBackendType
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
"""
QUANTIZED = """\
quantizer = QnnQuantizer(QnnExecuTorchBackendType.kHtpBackend, QcomChipset.{soc})
quantizer.set_default_quant_config(QuantDtype.use_{precision})
"""
STEPS_OF_QUANTIZING = """\
model = prepare_pt2e(torch.export.export(net, inputs, strict=True).module(), quantizer)
model(*inputs)
model = convert_pt2e(model)
"""
DIES = """\
try:
{steps}    qnn.to_edge_transform_and_lower_to_qnn({model}, inputs, spec).to_executorch()
except Exception as error:
    print(traceback.format_exc())
    while error.__cause__:
        error = error.__cause__
    print(f"still there: {type(error).__name__}: {str(error).strip()}"[:300])
    sys.exit(1)
print("gone: it compiles")
"""
WRONG = """\
{steps}program = qnn.to_edge_transform_and_lower_to_qnn({model}, inputs, spec).to_executorch()
found = Runtime.get().load_program(program.buffer).load_method("forward").execute(list(inputs))
worst = inf
for exact, value in zip(net(*inputs), found):
    noise = (exact - value).double().norm().nan_to_num(inf)
    worst = min(worst, 20 * log10(max(1e-9, exact.double().norm() / max(1e-9, noise))))
print(f"{'still there' if worst < LEAST else 'gone'}: {worst:.1f} dB", flush=True)
sys.exit(worst < LEAST)
"""


@dataclass(frozen=True, slots=True)
class CutOut:
    module: GraphModule
    weights: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]


def report(chip_model: ChipModel, request: ReportRequest) -> OperatorScript:
    return smallest_report(request, dict.fromkeys(_scripts(chip_model, request)))


def _scripts(chip_model: ChipModel, request: ReportRequest) -> Iterator[str]:
    """Yield scripts, the shortest first: those with drawn numbers, and then those with the model's own."""
    module: Any = chip_model.exported.program(chip_model.sample).module()
    values = values_of(module, chip_model.sample)
    parts = [cut_out(module, values, request.lines, steps) for steps in STEPS]
    for own in (False, True):
        for part in filter(None, parts):
            yield script_of(part, chip_model, request, own=own)


def cut_out(module: Any, values: Mapping[Node, Any], lines: Collection[str], steps: int) -> CutOut | None:
    """Cut out the operators of the first line that has some, with those so many steps around; None if no
    operator is at a line. What is computed of no input comes with its readers."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    at_lines: dict[str, set[Node]] = {}
    for node in calls:
        at_lines.setdefault(source_of(node)[0], set()).add(node)
    members = next((at_lines[line] for line in lines if line in at_lines), set())
    if not members:
        return None
    for _ in range(steps):
        near = {other for node in members for other in (*node.all_input_nodes, *node.users)}
        members |= {node for node in near if node.op == "call_function"}
    root, graph, weights, inputs = nn.Module(), Graph(), dict[str, Tensor](), dict[str, Tensor]()

    @cache
    def depends(node: Node) -> bool:
        return node.op == "placeholder" or any(map(depends, node.all_input_nodes))

    @cache
    def copy_of(node: Node) -> Node:
        if node.op == "get_attr":
            weights[node.name] = values[node].detach()
            root.register_buffer(node.name, weights[node.name])
            return graph.get_attr(node.name)
        if node in members or not depends(node):
            return graph.node_copy(node, copy_of)
        inputs[node.name] = values[node].detach()
        return graph.placeholder(node.name)

    ends = [node for node in calls if node in members and not members.issuperset(node.users)]
    graph.output(tuple([copy_of(node) for node in ends if isinstance(values[node], Tensor)]))
    return CutOut(GraphModule(root, graph), weights, inputs)


def script_of(part: CutOut, chip_model: ChipModel, request: ReportRequest, *, own: bool) -> str:
    """Write the script of a part, with the model's `own` numbers or with drawn ones."""
    quantizes, soc = chip_model.run.quantizes, chip_model.soc
    forward = FORGETS.sub("", part.module.code.strip())
    weights = [
        f'self.register_buffer("{name}", {_drawing_of(value)})' for name, value in part.weights.items()
    ]
    inputs = f"({', '.join(map(_drawing_of, part.inputs.values()))},)"
    if own:
        weights = [
            f"for name, values in {_arrays(part.weights)}.items():",
            "    self.register_buffer(name, torch.from_numpy(values))",
        ]
        inputs = f"tuple(map(torch.from_numpy, {_arrays(part.inputs)}.values()))"
    steps = STEPS_OF_QUANTIZING if quantizes else ""
    judged, steps = (DIES, indent(steps, "    ")) if request.dies else (WRONG, steps)
    for name, words in (
        ("{steps}", steps),
        ("{model}", "model" if quantizes else "net"),
        ("LEAST", str(LEAST)),
    ):
        judged = judged.replace(name, words)
    body = BODY.format(
        arrays=f"{ARRAYS.strip()}\n\n\n" if own else "",
        weights=indent("".join(f"\n{line}" for line in weights), " " * 8),
        forward=indent(forward, "    "),
        inputs=inputs,
        quantized=QUANTIZED.format(soc=soc, precision=chip_model.run.precision) if quantizes else "",
        halves=chip_model.run.precision.startswith("fp16"),
        soc=soc,
        judged=judged,
    )
    return f'"""{request.about}"""\n\n{_imports(body, own=own, quantizes=quantizes)}\n\n\n{body}'


def _imports(body: str, *, own: bool, quantizes: bool) -> str:
    """Return the imports of a script with this body."""
    lines = ["import base64", "import io"] if own else []
    lines += ["import sys", *(["import traceback"] if "traceback." in body else [])]
    if numbers := [name for name in ("inf", "log10", "nan") if re.search(rf"\b{name}\b", body)]:
        lines.append(f"from math import {', '.join(numbers)}")
    lines += ["", *(["import numpy as np"] if own else []), IMPORTS.strip()]
    lines += [IMPORTS_OF_QUANTIZERS.strip()] if quantizes else []
    lines += ["from executorch.runtime import Runtime"] if "Runtime." in body else []
    lines += ["from torch import device"] if "device(" in body else []
    return "\n".join(lines)


def _drawing_of(tensor: Tensor) -> str:
    """Return an expression that draws a tensor of that shape, type and range."""
    shape = tuple(tensor.shape)
    if tensor.dtype == torch.bool:
        return f"torch.rand({shape}) < 0.5"
    low, high = tensor.min().item(), tensor.max().item()
    if low == high:
        return f"torch.full({shape}, {low}, dtype={tensor.dtype})"
    if tensor.is_floating_point():
        return f"torch.rand({shape}) * {high - low:.4g} {'-' if low < 0 else '+'} {abs(low):.4g}"
    return f"torch.randint({low}, {high + 1}, {shape}, dtype={tensor.dtype})"


def _arrays(tensors: Mapping[str, Tensor]) -> str:
    return arrays_source({name: tensor.numpy() for name, tensor in tensors.items()})
