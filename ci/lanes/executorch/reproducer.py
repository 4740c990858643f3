"""A piece of a PyTorch model as a Python file that needs torch, torchao and executorch alone."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch.fx import GraphModule

from ci.lanes.executorch.suite import ExecutorchRun
from ci.pipeline.reproducer import SQNR, Reproducer

IMPORTS = (
    "import numpy as np, torch",
    "from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset, QnnExecuTorchBackendType",
    "from executorch.backends.qualcomm.utils import utils as qnn",
    "from executorch.runtime import Runtime",
)
QUANTIZING = (
    "from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype",
    "from torchao.quantization.pt2e import MinMaxObserver, quantize_pt2e",
)


def reproducer(
    name: str,
    title: str,
    needs: str,
    module: GraphModule,
    sources: Mapping[str, str],
    run: ExecutorchRun,
    soc: str,
) -> Reproducer:
    """`sources` make the values of inputs and then of weights; "" where nothing short does."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    values = [*sources.values()]
    names = [str(node.target) for node in module.graph.nodes if node.op == "get_attr"]
    weights = dict(zip(names, values[len(inputs) :], strict=True))
    given = ", ".join(f"torch.from_numpy({source})" for source in values[: len(inputs)])
    body = [
        "class Net(torch.nn.Module):",
        *(f"    {line}" for line in _forward(module)),
        f"NET, INPUTS = Net().eval(), ({given},)",
    ]
    if weights:
        body += [
            f"WEIGHTS = dict({', '.join(f'{name}={source}' for name, source in weights.items())})",
            "for name, values in WEIGHTS.items():",
            "    setattr(NET, name, torch.nn.Parameter(torch.from_numpy(values), requires_grad=False))",
        ]
    stored = [
        f'NET = torch.export.load("{name}.pt2").module()',
        f'INPUTS = tuple(map(torch.from_numpy, np.load("{name}.npz").values()))',
    ]
    return Reproducer(
        name,
        title,
        needs,
        [*IMPORTS, *(QUANTIZING if run.quantizes else ())],
        body if all(values) else (),
        stored,
        [*_exported(run, soc), *_lowered(module)],
    )


def _exported(run: ExecutorchRun, soc: str) -> list[str]:
    lines = ["module = torch.export.export(NET, INPUTS, strict=True).module()"]
    if run.quantizes:
        observer = ", act_observer=MinMaxObserver" if run.sees_widest(run.precision) else ""
        per_channel = f"is_conv_per_channel={run.per_channel}, is_linear_per_channel={run.per_channel}"
        lines += [
            f"quantizer = QnnQuantizer(QnnExecuTorchBackendType.kHtpBackend, QcomChipset.{soc})",
            f"quantizer.set_default_quant_config(QuantDtype.use_{run.precision}, {per_channel}{observer})",
            "(module := quantize_pt2e.prepare_pt2e(module, quantizer))(*INPUTS)",
            "module = quantize_pt2e.convert_pt2e(module)",
        ]
    options = f"qnn.generate_htp_compiler_spec(use_fp16={run.precision.startswith('fp16')})"
    return [*lines, f"spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.{soc}, {options})"]


def _lowered(module: GraphModule) -> list[str]:
    (output,) = module.graph.find_nodes(op="output")
    several = isinstance(output.args[0], tuple)
    return [
        f"wanted = {'module(*INPUTS)' if several else '[module(*INPUTS)]'}",
        "edge = qnn.to_edge_transform_and_lower_to_qnn(module, INPUTS, spec)",
        "print('CPU', *{str(node.target) for node in edge.exported_program().graph.nodes})",
        "program = edge.to_executorch().buffer",
        "print('SIZE', len(program))",
        "found = Runtime.get().load_program(program).load_method('forward').execute(list(INPUTS))",
        "pairs = [(a.double(), b.double()) for a, b in zip(wanted, found)]",
        SQNR,
        "print('EQUAL', min((a == b).double().mean().item() for a, b in pairs))",
    ]


def _forward(module: GraphModule) -> list[str]:
    """The lines of its own code, without what else torch writes there."""
    lines = []
    for whole in module.code.strip().splitlines():
        line = re.sub(r";  (\w+ = )+None|  # .*$", "", whole).rstrip()
        if (
            line
            and not line.startswith(("import ", "from "))
            and not re.fullmatch(r"\s*(\w+) = self\.\1", line)
        ):
            # Torch's own code has these names without their modules.
            line = re.sub(r"(?<![\w.])(device\()", r"torch.\1", line)
            line = re.sub(r"(?<![\w.])(inf|nan)\b", r"math.\1", line)
            lines.append(re.sub(r"\bw(\d+)\b(?! =)", r"self.w\1", line))
    return lines
