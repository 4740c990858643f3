"""Rewrites of an ONNX graph: nodes that stand for others, once they are proved to give the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ci.explain.onnx_graph import CpuRuntime, OnnxGraph, values_of
from ci.explain.rewriting import Batch, Need, prove
from ci.models.arrays import Array, Sample

MICROSOFT = "com.microsoft"


@dataclass
class Writer:
    prefix: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def __call__(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """The name of its output."""
        name = f"{self.prefix}_{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, domain=domain, **attributes))
        return name

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        name = f"{self.prefix}_value_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name


@dataclass(frozen=True)
class OnnxMatch:
    """A node whose outputs `write` computes of `operands`, by its first outputs."""

    node: onnx.NodeProto
    operands: tuple[str, ...]
    write: Callable[[Writer], Sequence[str]]
    low: float = float("-inf")


class Rewriting:
    def __init__(
        self, model: onnx.ModelProto, samples: Sequence[Sample], into: Path, runtime: CpuRuntime
    ) -> None:
        self.model, self.samples, self.into, self.runtime = model, samples, into, runtime
        # Nothing infers types behind an operator of another domain, which a rewrite may write. What has no
        # type is not quantized.
        inferred = onnx.shape_inference.infer_shapes(model)
        del model.graph.value_info[:]
        model.graph.value_info.extend(inferred.graph.value_info)
        self.settle()

    def settle(self) -> None:
        """After rewrites: what nothing reads goes."""
        graph = self.model.graph
        for node in _unread(graph):
            graph.node.remove(node)
        read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
        for weight in [tensor for tensor in graph.initializer if tensor.name not in read]:
            graph.initializer.remove(weight)
        for value in [value for value in graph.value_info if value.name not in read]:
            graph.value_info.remove(value)
        self.graph = OnnxGraph(self.model, self.samples, self.into, self.runtime)
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        inferred = onnx.shape_inference.infer_shapes(self.model)
        values = [*inferred.graph.value_info, *graph.output, *graph.input]
        self._shapes = {name: tuple(tensor.dims) for name, tensor in self.constants.items()} | {
            value.name: tuple(size.dim_value for size in value.type.tensor_type.shape.dim) for value in values
        }

    def all_of(self, *operators: str) -> Iterator[onnx.NodeProto]:
        yield from [node for node in self.model.graph.node if node.op_type in operators and not node.domain]

    def shape(self, name: str) -> tuple[int, ...]:
        """Empty of a single number, and where a size is not known, as behind a provider's own operator."""
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

    @property
    def opset(self) -> int:
        """Of ONNX's own operators."""
        versions = (row.version for row in self.model.opset_import if row.domain in ("", "ai.onnx"))
        return max(versions, default=1)

    def maker(self, name: str) -> onnx.NodeProto | None:
        return self.graph.maker.get(name)

    def users(self, name: str) -> list[onnx.NodeProto]:
        return [*self.graph.users.get(name, ())]

    def values(self, names: Sequence[str]) -> list[Sample]:
        """Of tensors, by name, for each sample."""
        return values_of(self.model, self.samples, self.into, self.runtime, names)

    def proved(self, match: OnnxMatch, need: Need, values: Sequence[Sample]) -> Writer:
        """What is to stand for the node. Raises NotTheSame."""
        written = Writer(match.node.name or match.node.output[0])
        results = match.write(written)
        names = match.node.output[: len(results)]
        renamed = dict(zip(results, names, strict=True))
        for node in written.nodes:
            node.metadata_props.extend(match.node.metadata_props)
            for tensors in (node.output, node.input):
                tensors[:] = [renamed.get(name, name) for name in tensors]
        needed, _ = self.graph.needed(match.node.output[0], match.operands)
        between = [node for node in self.model.graph.node if node.output[0] in needed]
        prove(
            self._function(match.operands, names, between, []),
            self._function(match.operands, names, written.nodes, written.weights),
            [[np.asarray(sample[name]) for name in match.operands] for sample in values],
            need.values,
            need.bound,
            match.low,
        )
        return written

    def _function(
        self,
        operands: Sequence[str],
        names: Sequence[str],
        nodes: Sequence[onnx.NodeProto],
        more: Sequence[onnx.TensorProto],
    ) -> Batch:
        """What these nodes compute of arrays of the operands."""
        read = {name for node in nodes for name in node.input}.difference(operands)
        weights = [tensor for name, tensor in self.constants.items() if name in read]
        outputs = [helper.make_empty_tensor_value_info(name) for name in names]

        def computed(inputs: Sequence[Sequence[Array]]) -> list[list[Array]]:
            kinds = [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in zip(operands, inputs[0], strict=True)
            ]
            graph = helper.make_graph(nodes, "part", kinds, outputs, [*weights, *more])
            versions = {"opset_imports": self.model.opset_import, "ir_version": self.model.ir_version}
            model = helper.make_model(graph, **versions)
            allow(model, MICROSOFT)
            samples = [dict(zip(operands, arrays, strict=True)) for arrays in inputs]
            return [
                [sample[name] for name in names]
                for sample in values_of(model, samples, self.into, self.runtime, ())
            ]

        return computed

    def put(self, match: OnnxMatch, written: Writer) -> None:
        graph = self.model.graph
        place = list(graph.node).index(match.node)
        nodes = [*graph.node[:place], *written.nodes, *graph.node[place + 1 :]]
        graph.ClearField("node")
        graph.node.extend(nodes)
        graph.initializer.extend(written.weights)
        for node in written.nodes:
            if node.domain:
                allow(self.model, node.domain)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def allow(model: onnx.ModelProto, domain: str) -> None:
    if domain not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(domain, 1))


def _unread(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    read = {value.name for value in graph.output}
    unread = []
    for node in reversed(graph.node):
        if read.isdisjoint(node.output):
            unread.append(node)
        else:
            read.update(node.input)
            for attribute in node.attribute:
                for branch in [attribute.g] if attribute.HasField("g") else []:
                    read.update(name for inner in branch.node for name in inner.input)
                    read.update(value.name for value in branch.output)
    return unread
