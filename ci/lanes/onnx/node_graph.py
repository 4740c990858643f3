"""The nodes of an ONNX model by the tensors between them, and which have another precision than the model.
Imported only by the worker."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import onnx
from onnx import TensorProto, helper

from ci.pipeline.precision import precision_named
from provisioning.base.errors import CheckFailed

QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


class Graph:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.inputs = [value.name for value in model.graph.input]
        self.maker = {name: node for node in model.graph.node for name in node.output}
        self.users: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.users.setdefault(name, []).append(node)
        inferred = onnx.shape_inference.infer_shapes(model)
        values = [*inferred.graph.value_info, *model.graph.output]
        self.types = {value.name: value.type.tensor_type.elem_type for value in values}

    def end_of(self, node: onnx.NodeProto) -> str:
        """The tensor behind what quantizes the node's output, else the output."""
        name, *behind = self.everywhere(node)
        return next(iter(behind), name)

    def everywhere(self, node: onnx.NodeProto) -> list[str]:
        """The node's output, and that of each dequantizer behind it."""
        name = str(node.output[0])
        quantizers = [user for user in self.users.get(name, ()) if user.op_type == "QuantizeLinear"]
        readers = [user for quantizer in quantizers for user in self.users.get(quantizer.output[0], ())]
        return [name, *(str(user.output[0]) for user in readers if user.op_type == "DequantizeLinear")]

    def operators(self) -> list[onnx.NodeProto]:
        """The nodes at which a program can end, in order."""
        return [
            node
            for node in self.model.graph.node
            if node.op_type not in QUANTIZERS
            and self._is_float(node)
            and set(self.inputs).intersection(self.needed(node.output[0])[1])
        ]

    def _is_float(self, node: onnx.NodeProto) -> bool:
        end = self.end_of(node)
        return end != node.output[0] or self.is_float(end)

    def is_float(self, tensor: str) -> bool:
        return bool(self.types.get(tensor) == TensorProto.FLOAT)

    @property
    def floats(self) -> list[str]:
        """What nodes compute."""
        return [name for node in self.model.graph.node for name in node.output if self.is_float(name)]

    def is_output(self, tensor: str) -> bool:
        return any(value.name == tensor for value in self.model.graph.output)

    def ends(self) -> list[onnx.NodeProto]:
        return self._makers(value.name for value in self.model.graph.output)

    def operands_of(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        return self._makers(node.input)

    def _makers(self, tensors: Iterable[str]) -> list[onnx.NodeProto]:
        """Through quantizers and what has several outputs, of which a program ends at the first alone."""
        operators: dict[str, onnx.NodeProto] = {}
        todo = list(tensors)
        while todo:
            node = self.maker.get(todo.pop(0))
            if node is not None and (node.op_type in QUANTIZERS or len(node.output) > 1):
                todo += node.input
            elif node is not None:
                operators[node.output[0]] = node
        return list(operators.values())

    def ending_at(self, node: onnx.NodeProto) -> onnx.ModelProto:
        return self.computing([self.end_of(node)])

    def computing(self, outputs: Sequence[str], given: Collection[str] = ()) -> onnx.ModelProto:
        """The part that computes these tensors, of floats that are given and of the inputs."""
        names, tensors = set[str](), set[str]()
        for output in outputs:
            of_output = self.needed(output, given)
            names, tensors = names | of_output[0], tensors | of_output[1]
        cut = onnx.ModelProto()
        cut.CopyFrom(self.model)
        graph = cut.graph
        kept = [node for node in self.model.graph.node if node.output[0] in names]
        inputs = [tensor for tensor in self.model.graph.input if tensor.name in tensors]
        weights = [tensor for tensor in self.model.graph.initializer if tensor.name in tensors]
        for field in ("node", "input", "output", "initializer", "value_info"):
            graph.ClearField(field)
        graph.node.extend(kept)
        graph.input.extend(inputs)
        graph.input.extend(_floats(name) for name in given if name in tensors)
        graph.initializer.extend(weights)
        outs = {value.name: value for value in self.model.graph.output}
        graph.output.extend(outs.get(output) or _floats(output) for output in outputs)
        return cut

    def needed(self, tensor: str, given: Iterable[str] = ()) -> tuple[set[str], set[str]]:
        """First outputs of the nodes that compute a tensor of those given, and all tensors that they take."""
        nodes, tensors, todo, ends = set[str](), set[str](), [tensor], {*given}
        while todo:
            name = todo.pop()
            if name in tensors:
                continue
            tensors.add(name)
            if name not in ends and (node := self.maker.get(name)):
                nodes.add(node.output[0])
                todo += node.input
        return nodes, tensors


def _floats(tensor: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor, TensorProto.FLOAT, None)


def overrides_of(graph: Graph, nodes: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], list[str]]:
    """The type of each tensor that these nodes compute, and the nodes that stay in float."""
    types: dict[str, str] = {}
    excluded: list[str] = []
    for precision, patterns in nodes.items():
        for pattern in patterns:
            found = [node for node in graph.model.graph.node if fnmatchcase(node.name, pattern)]
            if not found:
                message = f"nodes = {pattern!r} matches no node"
                raise CheckFailed(message, fix="tune the model again, or correct it")
            if activations := precision_named(precision).activations:
                tensors = [name for node in found for name in node.output if graph.is_float(name)]
                types |= dict.fromkeys(tensors, activations)
            else:
                excluded += [node.name for node in found]
    return types, excluded
