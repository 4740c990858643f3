"""Rewrite an ONNX model: nodes replace others, once they are proved to give the same.

`RepairedOnnx` holds the model and its values on samples, and keeps a rewrite only where both forms agree on
the CPU. The rewrites are in `onnx_rewrites`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import TensorProto, helper, numpy_helper

from ci.explain.onnx_graph import NO_PLACE, OnnxGraph, make_plain, name_of, values_of
from ci.explain.proof import Batch, prove
from ci.explain.rewriting import Match, Need, Repaired
from ci.models.inputs import Array, Sample
from ci.models.model_lines import OperatorAt
from ci.suite.onnx_runtime import fold_constants

MICROSOFT = "com.microsoft"
FOLDED = "constants-folded"
"""ONNX Runtime itself makes this rewrite, for a whole model."""


@dataclass
class Writer:
    prefix: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def __call__(self, operator: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """Add a node, and return the name of its output."""
        name = f"{self.prefix}_{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, domain=domain, **attributes))
        return name

    def constant(self, value: ArrayLike, kind: DTypeLike = np.float32) -> str:
        name = f"{self.prefix}_value_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name


OnnxMatch = Match[onnx.NodeProto, str]
"""`write` gets a Writer, and returns the names of the first outputs."""


class RepairedOnnx(Repaired[onnx.NodeProto, str]):
    """It holds an ONNX model with every rewrite that it needs, each proved on the CPU."""

    def __init__(
        self,
        model: onnx.ModelProto,
        samples: Sequence[Sample],
        rewrites: Mapping[str, Find],
        places: Mapping[str, OperatorAt] | None = None,
    ) -> None:
        """`rewrites` maps the name of a rewrite to what finds its places."""
        self.model, self.samples = onnx.ModelProto(), samples
        self.rewrites, self.places = rewrites, places or {}
        self.model.CopyFrom(model)
        super().__init__(self.outputs())

    def place_of(self, node: onnx.NodeProto) -> tuple[str, str, str]:
        place = self.places.get(node.name, NO_PLACE)
        return name_of(node), place.source, place.code

    def apply(self, needs: Sequence[Need]) -> None:
        # Other rewrites look for constants, so they are folded first.
        for need in needs:
            if need.rewrite == FOLDED and not need.withheld:
                self._fold(need)
        make_plain(self.model)
        # Nothing infers types behind an operator of another domain, which a rewrite may write. What has no
        # type is not quantized.
        inferred = onnx.shape_inference.infer_shapes(self.model)
        del self.model.graph.value_info[:]
        self.model.graph.value_info.extend(inferred.graph.value_info)
        self.settle()
        super().apply(needs)

    def _fold(self, need: Need) -> None:
        """Let ONNX Runtime fold constants if a condition is constant, which leaves one branch."""
        conditions = [node for node in self.model.graph.node if node.op_type == "If"]
        if not conditions:
            return
        plain = optimize(self.model)
        if_outputs = {name for node in plain.graph.node if node.op_type == "If" for name in node.output}
        constant_ifs = [node for node in conditions if if_outputs.isdisjoint(node.output)]
        if constant_ifs:
            self.model = plain
        for node in constant_ifs:
            self.note(need, self.place_of(node))

    def matches_of(self, need: Need) -> Iterator[Sequence[OnnxMatch]]:
        # The table has rewrites that are another lane's.
        find = self.rewrites.get(need.rewrite)
        if find and (matches := list(find(self))):
            self.operand_values = self.values([name for match in matches for name in match.operands])
            yield matches

    def outputs(self) -> list[list[Array]]:
        names = [value.name for value in self.model.graph.output]
        return [_arrays_in(row, names) for row in values_of(self.model, self.samples)]

    def settle(self) -> None:
        graph = self.model.graph
        for node in _unread(graph):
            graph.node.remove(node)
        reads = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
        for weight in [tensor for tensor in graph.initializer if tensor.name not in reads]:
            graph.initializer.remove(weight)
        for value in [value for value in graph.value_info if value.name not in reads]:
            graph.value_info.remove(value)
        self.graph = OnnxGraph(self.model, self.samples)
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        inferred = onnx.shape_inference.infer_shapes(self.model)
        values = [*inferred.graph.value_info, *graph.output, *graph.input]
        self._shapes = {name: tuple(tensor.dims) for name, tensor in self.constants.items()}
        for value in values:
            self._shapes[value.name] = tuple(size.dim_value for size in value.type.tensor_type.shape.dim)

    def all_of(self, *operators: str) -> Iterator[onnx.NodeProto]:
        yield from [node for node in self.model.graph.node if node.op_type in operators and not node.domain]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; empty for a single number, and if a size is not known, as behind a
        provider's own operator."""
        shape = self._shapes.get(name, ())
        return shape if all(shape) else ()

    def constant(self, name: str) -> Array | None:
        if name in self.constants:
            return np.asarray(numpy_helper.to_array(self.constants[name]))
        maker = self.graph.maker.get(name)
        if maker is None or maker.op_type != "Constant":
            return None
        value = helper.get_attribute_value(maker.attribute[0])
        return np.asarray(numpy_helper.to_array(value) if isinstance(value, TensorProto) else value)

    def maker(self, name: str) -> onnx.NodeProto | None:
        return self.graph.maker.get(name)

    def users(self, name: str) -> list[onnx.NodeProto]:
        return [*self.graph.users.get(name, ())]

    def values(self, names: Sequence[str]) -> list[Sample]:
        """Return the values of tensors by name, for each sample."""
        return values_of(self.model, self.samples, names)

    def replacement(self, match: OnnxMatch, need: Need, values: Sequence[Sample]) -> Writer:
        """Return the nodes that replace the match's node. Raises NotTheSame."""
        writer = Writer(match.node.name or match.node.output[0])
        results = match.write(writer)
        names = match.node.output[: len(results)]
        new_names = dict(zip(results, names, strict=True))
        for node in writer.nodes:
            node.metadata_props.extend(match.node.metadata_props)
            for tensors in (node.output, node.input):
                tensors[:] = [new_names.get(name, name) for name in tensors]
        ancestors, _ = self.graph.ancestors(match.node.output[0], match.operands)
        between = [node for node in self.model.graph.node if node.output[0] in ancestors]
        prove(
            self._function(match.operands, names, between, []),
            self._function(match.operands, names, writer.nodes, writer.weights),
            [_arrays_in(sample, match.operands) for sample in values],
            need.values,
            need.bound,
            match.low,
        )
        return writer

    def _function(
        self,
        operands: Sequence[str],
        names: Sequence[str],
        nodes: Sequence[onnx.NodeProto],
        more: Sequence[onnx.TensorProto],
    ) -> Batch:
        """Return a function that computes these nodes on arrays of the operands."""
        reads = {name for node in nodes for name in node.input}.difference(operands)
        weights = [tensor for name, tensor in self.constants.items() if name in reads]
        outputs = [helper.make_empty_tensor_value_info(name) for name in names]

        def compute(inputs: Sequence[Sequence[Array]]) -> list[list[Array]]:
            kinds = [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in zip(operands, inputs[0], strict=True)
            ]
            graph = helper.make_graph(nodes, "part", kinds, outputs, [*weights, *more])
            versions = {"opset_imports": self.model.opset_import, "ir_version": self.model.ir_version}
            model = helper.make_model(graph, **versions)
            allow(model, MICROSOFT)
            samples = [dict(zip(operands, arrays, strict=True)) for arrays in inputs]
            return [_arrays_in(row, names) for row in values_of(model, samples)]

        return compute

    def put(self, match: OnnxMatch, need: Need) -> None:
        writer, graph = self.replacement(match, need, self.operand_values), self.model.graph
        place = list(graph.node).index(match.node)
        nodes = [*graph.node[:place], *writer.nodes, *graph.node[place + 1 :]]
        graph.ClearField("node")
        graph.node.extend(nodes)
        graph.initializer.extend(writer.weights)
        for node in writer.nodes:
            if node.domain:
                allow(self.model, node.domain)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def allow(model: onnx.ModelProto, domain: str) -> None:
    if domain not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(domain, 1))


def _arrays_in(values: Sample, names: Iterable[str]) -> list[Array]:
    return [np.asarray(values[name]) for name in names]


def _unread(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    reads = {value.name for value in graph.output}
    unread = []
    for node in reversed(graph.node):
        if reads.isdisjoint(node.output):
            unread.append(node)
        else:
            reads.update(node.input)
            for attribute in node.attribute:
                for branch in [attribute.g] if attribute.HasField("g") else []:
                    reads.update(name for inner in branch.node for name in inner.input)
                    reads.update(value.name for value in branch.output)
    return unread


Find = Callable[[RepairedOnnx], Iterator[OnnxMatch]]


def variables_of(model: RepairedOnnx, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are no constants."""
    return tuple(name for name in dict.fromkeys(names) if name and model.constant(name) is None)


def optimize(model: onnx.ModelProto) -> onnx.ModelProto:
    """Let ONNX Runtime fold the model's constants, and drop the operator sets that no node uses."""
    plain = fold_constants(model)
    domains = {node.domain for node in plain.graph.node}
    opsets = [opset for opset in plain.opset_import if opset.domain in domains]
    plain.ClearField("opset_import")
    plain.opset_import.extend(opsets)
    return plain
