"""Show a PyTorch model to the searches: `TorchGraph` is the Graph (graph.py says what each method gives) over
an exported module of torch.fx, which may be quantized or prepared for that.

A module is never changed: what ends at a node, or shows more nodes, is a changed copy. Only workers import
this."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from operator import getitem
from textwrap import indent
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from ci.explain.graph import CONSTANT, FLOAT_MODEL, INPUT, NOTHING, Arrays, Graph, Node
from ci.explain.losses import Loss, losses_of
from ci.explain.operator_script import ARRAYS, ScriptRequest, arrays_source
from ci.explain.torch_values import (
    OwnErrors,
    Replaced,
    Tensors,
    WithErrors,
    is_float,
    values_of,
)
from ci.models.inputs import Array
from ci.models.model_lines import OperatorAt, source_of
from ci.operators import Traits
from ci.operators.node_traits import constants_of, traits_of
from ci.operators.partition import is_quantizer, module_of
from provisioning.base.units import decibels

SCRIPT_IMPORTS = """\
import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
from torch import device
"""
SCRIPT_BODY = """\
class Net(torch.nn.Module):
{forward}


NET = Net().eval()
for name, values in {weights}.items():
    NET.register_buffer(name, torch.from_numpy(values))
INPUTS = tuple(map(torch.from_numpy, {inputs}.values()))
expected = [NET(*INPUTS)]
options = qnn.generate_htp_compiler_spec(use_fp16={halves})
spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.{soc}, options)
lowered = qnn.to_edge_transform_and_lower_to_qnn(NET, INPUTS, spec).to_executorch()
computed = Runtime.get().load_program(lowered.buffer).load_method("forward").execute(list(INPUTS))
"""


class TorchGraph(Graph):
    def __init__(self, module: GraphModule, samples: Sequence[Tensors], reference: str = FLOAT_MODEL) -> None:
        self.module, self.samples, self.reference = module, samples, reference

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        return {
            node.name: _node_of(node)
            for node in self.module.graph.nodes
            if node.op in ("placeholder", "get_attr", "call_function")
        }

    @cached_property
    def results(self) -> Sequence[str]:
        (output,) = self.module.graph.find_nodes(op="output")
        leaves = torch.utils._pytree.tree_leaves(output.args)
        return [_behind_observers(node).name for node in leaves if isinstance(node, FxNode)]

    @cached_property
    def nodes_by_name(self) -> Mapping[str, FxNode]:
        return {node.name: node for node in self.module.graph.nodes}

    def operator_at(self, name: str) -> OperatorAt:
        node = self.nodes_by_name[name]
        return replace(operator_at(node), operator=str(maker_of(node).target))

    def dimension(self, name: str) -> int | None:
        node = self.nodes_by_name[name]
        schema = getattr(node.target, "_schema", None)
        for place, argument in enumerate(schema.arguments if schema else ()):
            if argument.name == "dim":
                by_name = node.kwargs.get("dim", argument.default_value)
                dim = node.args[place] if place < len(node.args) else by_name
                return dim if isinstance(dim, int) else None
        return None

    def number(self, name: str) -> float | None:
        numbers = [row for row in self.nodes_by_name[name].args if isinstance(row, int | float)]
        return float(numbers[0]) if numbers else None

    def traits(self, name: str) -> dict[str, Traits]:
        maker = maker_of(self.nodes_by_name[name])
        around = [self.nodes_by_name[near] for near in self._makers(self.nodes[maker.name].reads)]
        constants = constants_of(self.module)
        traits = {near.name: traits_of(near, constants) for near in (maker, *around)}
        if maker.all_input_nodes:
            ends = self._ranges.get(maker.all_input_nodes[0])
            traits[maker.name] = replace(traits[maker.name], range=ends)
        # A cast alone may be right, and be wrong with what reads it: the compiler makes one of them.
        return {name: row for name, row in traits.items() if name == maker.name or row.kinds}

    def step(self, name: str) -> float:
        end = self.nodes_by_name[self.end_of(name)]
        scale = end.args[1] if "quantize_per_tensor" in str(end.target) else None
        return scale if isinstance(scale, float) else 0.0

    @cached_property
    def _ranges(self) -> Mapping[FxNode, tuple[float, float]]:
        """It has the least and the largest value of each node that gives a tensor."""
        ranges: dict[FxNode, tuple[float, float]] = {}
        for sample in self.samples:
            for node, value in values_of(self.module, sample).items():
                if isinstance(value, Tensor) and value.numel():
                    doubles = value.double()
                    low, high = ranges.get(node, (math.inf, -math.inf))
                    ranges[node] = min(low, float(doubles.min())), max(high, float(doubles.max()))
        return ranges

    def ending_at(self, name: str) -> TorchGraph:
        module = copy.deepcopy(self.module)
        end = next(node for node in module.graph.nodes if node.name == self.end_of(name))
        (output,) = module.graph.find_nodes(op="output")
        output.args = ((end,),)
        # An operator that works in place is never dead code: behind the end, it would change the output.
        while (last := output.prev) is not end:
            module.graph.erase_node(last)
        if name not in self.operators and end.meta["val"].dtype != torch.bool:
            # As another operator reads it: a cast that comes last is right, and else may not be.
            with module.graph.inserting_before(output):
                plus_one = module.graph.call_function(torch.ops.aten.add.Tensor, (end, 1))
                minus_one = module.graph.call_function(torch.ops.aten.sub.Tensor, (plus_one, 1))
                output.args = ((minus_one,),)
        return self._graph_of(module)

    def showing(self, names: Sequence[str]) -> TorchGraph:
        module = copy.deepcopy(self.module)
        nodes = {node.name: node for node in module.graph.nodes}
        (output,) = module.graph.find_nodes(op="output")
        results = list(output.all_input_nodes)
        for end in (nodes[self.end_of(name)] for name in names):
            with module.graph.inserting_after(end):
                results.append(_shown(end))
        output.args = (tuple(results),)
        return self._graph_of(module)

    def _graph_of(self, module: GraphModule) -> TorchGraph:
        module.graph.set_codegen(torch.fx.graph.CodeGen())
        module.graph.eliminate_dead_code()
        module.recompile()
        return TorchGraph(module, self.samples, self.reference)

    def outputs(self, replaced: Arrays = NOTHING) -> list[list[Array]]:
        rows = []
        for number, sample in enumerate(self.samples):
            tensors = Replaced(self.module, self._tensors(replaced, number)).of(sample)
            rows.append([tensor.numpy() for tensor in tensors])
        return rows

    def _tensors(self, replaced: Arrays, sample: int) -> dict[str, Tensor]:
        return {
            place: torch.as_tensor(values[sample]).to(self.nodes_by_name[name].meta["val"].dtype)
            for name, values in replaced.items()
            for place in (self.everywhere(name) if name in self.nodes_by_name else ())
        }

    def values(self, sample: int) -> dict[str, Array]:
        outputs = outputs_of(self.module, self.samples[sample])
        return {name: tensor.detach().numpy() for name, tensor in outputs.items()}

    def values_at(self, names: Sequence[str]) -> Arrays:
        return self.own_values(names, NOTHING)

    def own_values(self, names: Sequence[str], chosen: Arrays) -> Arrays:
        arrays: dict[str, list[Array]] = {name: [] for name in names}
        for number, sample in enumerate(self.samples):
            values = values_of(self.module, sample, self._tensors(chosen, number))
            for name in names:
                value = values[self.nodes_by_name[name]]
                # NumPy has no bfloat16.
                value = value.float() if is_float(value) else value
                arrays[name].append(value.detach().contiguous().numpy())
        return arrays

    @cached_property
    def _first(self) -> Mapping[FxNode, Any]:
        return values_of(self.module, self.samples[0])

    def errors_of(self, quantized: Any) -> dict[str, Array]:
        interpreter = OwnErrors(quantized.module, {node.name: value for node, value in self._first.items()})
        interpreter.of(self.samples[0])
        return {name: error.numpy() for name, error in interpreter.errors.items()}

    def disturbed(self, errors: Iterable[Mapping[str, Array]]) -> Iterator[Sequence[Array]]:
        for error_by_node in errors:
            tensors = {name: torch.from_numpy(error) for name, error in error_by_node.items()}
            outputs = WithErrors(self.module, self._first, tensors).of(self.samples[0])
            yield [tensor.numpy() for tensor in outputs]

    def script(self, request: ScriptRequest, soc: str, halves: bool, before: int) -> str:
        """Return the source of a script of one operator, with the operators up to `before` steps in front of
        it."""
        alone, inputs = self._cut_out(request.operator, request.sample, before)
        weights = arrays_source({name: buffer.numpy() for name, buffer in alone.named_buffers()})
        arrays, forward = arrays_source(inputs), indent(alone.code.strip(), "    ")
        parts = {"weights": weights, "forward": forward, "inputs": arrays, "halves": halves, "soc": soc}
        return f"{SCRIPT_IMPORTS}{ARRAYS}{SCRIPT_BODY.format(**parts)}"

    def _cut_out(self, name: str, sample: int, before: int) -> tuple[GraphModule, dict[str, Array]]:
        """Cut out the operator and those before it, with their quantizers, and return them with the values
        that they get."""
        first = {name}
        for _ in range(before + 1):
            first = {
                maker for reader in first for maker in self._makers(self.nodes[reader].reads) or [reader]
            }
        operands = {self.nodes_by_name[row] for row in first if self.nodes[row].kind != CONSTANT}
        end, values = self.nodes_by_name[self.end_of(name)], values_of(self.module, self.samples[sample])
        root, graph, inputs = nn.Module(), FxGraph(), dict[str, Array]()

        @cache
        def copy_of(source: FxNode) -> FxNode:
            if source in operands:
                inputs[source.name] = values[source].numpy()
                return graph.placeholder(source.name)
            if source.op == "get_attr":
                root.register_buffer(f"w_{source.name}", values[source].detach())
                return graph.get_attr(f"w_{source.name}")
            return graph.node_copy(source, copy_of)

        graph.output((copy_of(end),))
        return GraphModule(root, graph), inputs


def _node_of(node: FxNode) -> Node:
    value = node.meta.get("val")
    parts = value if isinstance(value, tuple | list) else [value]
    kinds = {"placeholder": INPUT, "get_attr": CONSTANT}
    result = node.args[1] if node.target is getitem else None
    return Node(
        node.name,
        kinds.get(node.op, str(node.target)),
        tuple(_behind_observers(operand).name for operand in node.all_input_nodes),
        value.numel() if isinstance(value, Tensor) else 0,
        any(map(is_float, parts)),
        node.op == "call_function" and not isinstance(value, Tensor),
        is_quantizer(node),
        node.target is torch.ops.aten.cat.default,
        result if isinstance(result, int) else None,
    )


def _shown(node: FxNode) -> FxNode:
    """Return a new node that copies this one, to be an output."""
    if node.meta["val"].dtype == torch.int64:
        # QNN computes indices of 32 bits, and writes them so into a copy of 64.
        return node.graph.call_function(torch.ops.aten.to.dtype, (node, torch.int32))
    return node.graph.call_function(torch.ops.aten.clone.default, (node,))


def _behind_observers(node: FxNode) -> FxNode:
    while node.op == "call_module" and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def maker_of(node: FxNode) -> FxNode:
    """Return the operator that computes a node's value: a part of several outputs is the work of the node
    before."""
    maker = node.args[0] if node.target is getitem else node
    return maker if isinstance(maker, FxNode) else node


def operator_at(node: FxNode) -> OperatorAt:
    return OperatorAt(str(node.target), module_of(node), *source_of(node))


def outputs_of(module: GraphModule, sample: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return every node's output of floats, by name."""
    return {node.name: value for node, value in values_of(module, sample).items() if is_float(value)}


def norms_of(graph: FxGraph) -> dict[str, str]:
    """Map each convolution's name to the batch norm that quantization folds into it."""
    norms = [node for node in graph.nodes if "batch_norm" in str(node.target)]
    return {node.args[0].name: node.name for node in norms if isinstance(node.args[0], FxNode)}


def worst_losses(
    floats: Mapping[str, Tensor], norms: Mapping[str, str], quantized: GraphModule, sample: Sequence[Tensor]
) -> tuple[Loss, ...]:
    """Return the operators of the quantized model that add noise, the worst first. `floats` are the outputs
    of the float model's nodes."""
    graph, ours = TorchGraph(quantized, [tuple(sample)]), outputs_of(quantized, sample)

    def decibels_of(name: str) -> float | None:
        exact, value = floats.get(name), ours.get(name)
        if norms.get(name, "") not in ours:
            exact = floats.get(norms.get(name, name))
        if exact is None or value is None or exact.shape != value.shape:
            return None
        return decibels(float((exact.double() ** 2).sum()), float(((value - exact).double() ** 2).sum()))

    return losses_of(graph, decibels_of)
