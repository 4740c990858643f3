"""In the worker that lowers: one operator of a model, as a script that needs torch and executorch alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import indent
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from ci.lanes.executorch.cut_programs import last_of, model_of, operands_of
from ci.lanes.executorch.suite import parse_request
from ci.lanes.executorch.values import values_of
from ci.pipeline.models.arrays import Array
from ci.pipeline.operator_script import source_of, table_of

IMPORTS = """\
import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
from torch import device
"""
LOWERED = """
INPUTS = ({inputs},)
NET = Net().eval()
expected = [NET(*INPUTS)]
options = qnn.generate_htp_compiler_spec(use_fp16={halves})
spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.{soc}, options)
lowered = qnn.to_edge_transform_and_lower_to_qnn(NET, INPUTS, spec).to_executorch()
computed = Runtime.get().load_program(lowered.buffer).load_method("forward").execute(list(INPUTS))
"""
NET = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, values in WEIGHTS.items():
            self.register_buffer(name, torch.from_numpy(values))

"""
DELETED = re.compile(r";  (?:\w+ = )+None")
"""What torch writes to free values early."""


def cut_out(
    module: Any, node: Node, sample: Sequence[Tensor], before: int
) -> tuple[GraphModule, list[Array]]:
    """The operator and so many `before` it, with what quantizes them, and the values that they get."""
    operands = {node}
    for _ in range(before + 1):
        operands = {row for reader in operands for row in operands_of(reader) or [reader]}
    operands = {operand for operand in operands if operand.op != "get_attr"}
    end, values = last_of(node), values_of(module, sample)
    needed, todo = set[Node](), [end]
    while todo:
        source = todo.pop()
        if source not in needed:
            needed.add(source)
            todo += [] if source in operands else source.all_input_nodes
    root, graph, copies, inputs = nn.Module(), Graph(), dict[Node, Node](), list[Array]()
    for source in (row for row in module.graph.nodes if row in needed):
        if source in operands:
            copies[source] = graph.placeholder(f"x{len(inputs)}")
            inputs.append(values[source].numpy())
        elif source.op == "get_attr":
            name = f"w{len([*root.buffers()])}"
            root.register_buffer(name, values[source].detach())
            copies[source] = graph.get_attr(name)
        else:
            copies[source] = graph.node_copy(source, copies.__getitem__)
    graph.output((copies[end],))
    return GraphModule(root, graph), inputs


def order_script(order: dict[str, Any]) -> dict[str, Any]:
    _, run, soc, _ = parse_request(order)
    module, samples = model_of(order)
    (node,) = (row for row in module.graph.nodes if row.name == order["operator"])
    alone, inputs = cut_out(module, node, samples[order["sample"]], order["before"])
    weights = {name: buffer.numpy() for name, buffer in alone.named_buffers()}
    forward = indent(DELETED.sub("", alone.code).strip(), "    ")
    sources = ", ".join(f"torch.from_numpy({source_of(values)})" for values in inputs)
    lowered = LOWERED.format(inputs=sources, halves=run.precision.startswith("fp16"), soc=soc)
    return {"imports": IMPORTS, "body": f"WEIGHTS = {table_of(weights)}\n\n{NET}{forward}\n\n{lowered}"}
