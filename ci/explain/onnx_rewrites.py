"""Rewrite an ONNX model: nodes replace others, once they are proved to give the same. Each rewrite has its
name in manifests/fixes.toml."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ci.explain.onnx_graph import NO_PLACE, OnnxGraph, make_plain, name_of, values_of
from ci.explain.rewriting import HTP_DIMENSIONS, Batch, Match, Need, Repaired, merge, product_of, prove
from ci.models.inputs import Array, Sample
from ci.models.model_lines import OperatorAt
from ci.suite.onnx_runtime import fold_constants

MICROSOFT = "com.microsoft"


@dataclass
class Writer:
    prefix: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def __call__(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        name = f"{self.prefix}_{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, domain=domain, **attributes))
        return name

    def constant(self, value: Any, kind: Any = np.float32) -> str:
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
        places: Mapping[str, OperatorAt] | None = None,
    ) -> None:
        self.model, self.samples, self.places = onnx.ModelProto(), samples, places or {}
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
        if need.rewrite in REWRITES and (matches := list(REWRITES[need.rewrite](self))):
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


FindAt = Callable[[RepairedOnnx, onnx.NodeProto], OnnxMatch | None]

REWRITES: dict[str, Callable[[RepairedOnnx], Iterator[OnnxMatch]]] = {}
"""It maps the name of a rewrite to what finds its places."""

FOLDED = "constants-folded"
"""ONNX Runtime itself makes this rewrite, for a whole model."""

NEAR = 1e-4


def search(name: str, *operators: str) -> Callable[[FindAt], FindAt]:
    """Register a rewrite of nodes of these operators."""

    def register(match: FindAt) -> FindAt:
        REWRITES[name] = lambda model: filter(None, (match(model, node) for node in model.all_of(*operators)))
        return match

    return register


def _variables(model: RepairedOnnx, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are no constants."""
    return tuple(name for name in dict.fromkeys(names) if name and model.constant(name) is None)


@search("division-by-root", "Mul")
def division_by_root(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    makers = [(model.maker(name), place) for place, name in enumerate(node.input)]
    roots = [(maker.input[0], place) for maker, place in makers if maker and maker.op_type == "Reciprocal"]
    if not roots:
        return None
    by, of = roots[0][0], node.input[1 - roots[0][1]]
    return OnnxMatch(node, _variables(model, (of, by)), lambda put: [put("Div", of, by)])


@search("norm-as-scale-and-shift", "BatchNormalization")
def norm_as_scale_and_shift(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    """Write a norm as scale and shift. Behind a convolution it goes into the weights, because no quantizer
    folds it there."""
    x, *names = node.input
    values = [model.constant(name) for name in names]
    if any(value is None for value in values):
        return None
    scale, shift, mean, variance = (np.asarray(value, "f8") for value in values)
    factor = scale / np.sqrt(variance + attributes_of(node).get("epsilon", 1e-5))
    offset = shift - mean * factor
    conv = model.maker(x)
    if conv is not None and conv.op_type == "Conv" and len(model.users(x)) == 1:
        weights: list[Any] = [model.constant(name) for name in conv.input[1:]]
        if all(weight is not None for weight in weights):
            weight = weights[0] * factor.reshape(-1, *[1] * (weights[0].ndim - 1))
            bias = offset + (weights[1] * factor if len(weights) > 1 else 0)

            def write(put: Writer) -> list[str]:
                inputs = conv.input[0], put.constant(weight), put.constant(bias)
                return [put("Conv", *inputs, **attributes_of(conv))]

            return OnnxMatch(node, (conv.input[0],), write)
    if not (shape := model.shape(x)):
        return None
    sizes = [1, -1, *[1] * (len(shape) - 2)]
    by, shifts = factor.reshape(sizes), offset.reshape(sizes)
    return OnnxMatch(
        node, (x,), lambda put: [put("Add", put("Mul", x, put.constant(by)), put.constant(shifts))]
    )


@search("gelu-for-erf", "Erf")
def gelu_for_erf(model: RepairedOnnx, erf: onnx.NodeProto) -> OnnxMatch | None:
    scaler = model.maker(erf.input[0])
    x = next((name for name in scaler.input if model.constant(name) is None), "") if scaler else ""
    if not x or scaler is None or scaler.op_type not in ("Div", "Mul"):
        return None
    ends = [end for end in _readers_of(model, erf, 4) if _only_of(model, end, x)]
    names = [end.output[0] for end in ends]
    values = model.values([x, *names])[0] if ends else {}
    for end in reversed(ends):
        if _is_gelu(values[x], values[end.output[0]]):
            return OnnxMatch(end, (x,), lambda put: [put("Gelu", x, domain=MICROSOFT)])
    return None


def _is_gelu(x: Any, y: Any) -> bool:
    from math import erf

    gelu = x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    return bool(y.shape == gelu.shape and np.allclose(gelu, y, rtol=0, atol=NEAR))


def _readers_of(model: RepairedOnnx, node: onnx.NodeProto, steps: int) -> list[onnx.NodeProto]:
    readers: dict[str, onnx.NodeProto] = {}
    now = [node]
    for _ in range(steps):
        now = [user for reader in now for user in model.users(reader.output[0])]
        readers |= {user.output[0]: user for user in now}
    return list(readers.values())


def _only_of(model: RepairedOnnx, node: onnx.NodeProto, operand: str) -> bool:
    todo, names = [*node.input], {operand}
    while todo:
        name = todo.pop()
        if name in names or model.constant(name) is not None:
            continue
        names.add(name)
        maker = model.maker(name)
        if maker is None:
            return False
        todo += maker.input
    return True


@search("depthwise-as-product", "Conv")
def depthwise_as_product(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    attributes, weight = attributes_of(node), model.constant(node.input[1])
    if weight is None or weight.ndim != 4 or weight.shape[1:] != (1, 1, 1):
        return None
    resizes = set(attributes.get("strides", [1])) != {1} or any(attributes.get("pads", [0]))
    if attributes.get("group", 1) != weight.shape[0] or resizes:
        return None
    bias = model.constant(node.input[2]) if len(node.input) > 2 else None

    def write(put: Writer) -> list[str]:
        product = put("Mul", node.input[0], put.constant(weight.reshape(1, -1, 1, 1)))
        return [product if bias is None else put("Add", product, put.constant(bias.reshape(1, -1, 1, 1)))]

    return OnnxMatch(node, (node.input[0],), write)


@search("fewer-dimensions", "Reshape")
def fewer_dimensions(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    transpose = model.maker(node.input[0])
    first = model.maker(transpose.input[0]) if transpose is not None else None
    if transpose is None or first is None or (transpose.op_type, first.op_type) != ("Transpose", "Reshape"):
        return None
    x, shape, last = first.input[0], model.shape(first.output[0]), model.shape(node.output[0])
    permutation = list(attributes_of(transpose)["perm"])
    if len(permutation) <= HTP_DIMENSIONS or not (shape and last):
        return None
    sizes, order = merge(shape, permutation)

    def write(put: Writer) -> list[str]:
        tensor = put("Reshape", x, put.constant(sizes, np.int64))
        return [put("Reshape", put("Transpose", tensor, perm=order), put.constant(last, np.int64))]

    return OnnxMatch(node, (x,), write)


@search("recurrent-cell-by-cell", "GRU", "LSTM")
def recurrent_cell_by_cell(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    attributes, is_lstm = attributes_of(node), node.op_type == "LSTM"
    names = [*node.input, *[""] * 8][:8]
    weights: list[Any] = [model.constant(name) if name else None for name in names[1:4]]
    unusual = {"activations", "clip", "input_forget", "layout"}.intersection(attributes)
    reset_after = is_lstm or attributes.get("linear_before_reset")
    if unusual or not reset_after or weights[0] is None or weights[1] is None or names[4] or names[7]:
        return None
    if not (shape := model.shape(names[0])):
        return None
    steps, batch, _ = shape
    gates, size = (4 if is_lstm else 3), attributes["hidden_size"]
    direction = attributes.get("direction", b"forward").decode()

    def write(put: Writer) -> list[str]:
        def at(name: str, place: int) -> str:
            return put("Gather", name, put.constant(place, np.int64), axis=0)

        def part(value: str, number: int) -> str:
            ends = [put.constant([end], np.int64) for end in (number * size, (number + 1) * size, 1)]
            return put("Slice", value, *ends)

        def gate(inner: str, hidden: str, number: int) -> str:
            return put("Add", part(inner, number), part(hidden, number))

        def cell(inner: str, hidden: str, states: list[str]) -> list[str]:
            if is_lstm:
                enter, leave, forget = (put("Sigmoid", gate(inner, hidden, number)) for number in range(3))
                memory = put("Mul", forget, states[1])
                state = put("Add", memory, put("Mul", enter, put("Tanh", gate(inner, hidden, 3))))
                return [put("Mul", leave, put("Tanh", state)), state]
            update, reset = (put("Sigmoid", gate(inner, hidden, number)) for number in range(2))
            new = put("Tanh", put("Add", part(inner, 2), put("Mul", reset, part(hidden, 2))))
            return [put("Add", new, put("Mul", update, put("Sub", states[0], new)))]

        outputs: list[list[str]] = [[] for _ in range(steps)]
        lasts: list[list[str]] = [[] for _ in range(1 + is_lstm)]
        for way in range(len(weights[0])):
            is_reverse = direction == "reverse" or way == 1
            of_input, of_state = (put.constant(weight[way].T) for weight in weights[:2])
            bias = np.zeros(2 * gates * size) if weights[2] is None else weights[2][way]
            biases = [put.constant(half) for half in np.split(bias, 2)]
            states = [
                at(name, way) if name else put.constant(np.zeros((batch, size)))
                for name in names[5 : 6 + is_lstm]
            ]
            for step in reversed(range(steps)) if is_reverse else range(steps):
                inner = put("Add", put("MatMul", at(names[0], step), of_input), biases[0])
                hidden = put("Add", put("MatMul", states[0], of_state), biases[1])
                states = cell(inner, hidden, states)
                outputs[step].append(states[0])
            for last, state in zip(lasts, states, strict=True):
                last.append(state)
        first = put.constant([0], np.int64)

        def stack(tensors: Sequence[str]) -> str:
            parts = [put("Unsqueeze", tensor, first) for tensor in tensors]
            return put("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]

        results = [stack([stack(of_step) for of_step in outputs]), *map(stack, lasts)]
        return results[: len(node.output)]

    return OnnxMatch(node, _variables(model, (names[0], *names[5:7])), write)


@search("matmul-for-einsum", "Einsum")
def matmul_for_einsum(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    """Write an einsum as a product of matrices: the provider takes few forms of einsum."""
    shapes = [model.shape(name) for name in node.input]
    equation = attributes_of(node)["equation"].decode()
    if len(shapes) != 2 or not all(shapes) or not (product := product_of(equation, shapes)):
        return None

    def write(put: Writer) -> list[str]:
        def turn(x: str, order: Sequence[int]) -> str:
            return x if order == sorted(order) else put("Transpose", x, perm=order)

        def reshape(x: str, before: Sequence[int], sizes: Sequence[int]) -> str:
            return x if [*before] == [*sizes] else put("Reshape", x, put.constant(sizes, np.int64))

        parts = []
        for x, shape, part in zip(node.input, shapes, product.parts, strict=True):
            axes = put.constant(part.summed, np.int64) if part.summed else ""
            total = put("ReduceSum", x, axes, keepdims=0) if axes else x
            rest = [size for axis, size in enumerate(shape) if axis not in part.summed]
            parts.append(reshape(turn(total, part.order), [rest[axis] for axis in part.order], part.sizes))
        result = reshape(put("MatMul", *parts), product.matrix, product.sizes)
        return [turn(result, product.order)]

    return OnnxMatch(node, _variables(model, node.input), write)


def optimize(model: onnx.ModelProto) -> onnx.ModelProto:
    """Let ONNX Runtime fold the model's constants, and drop the operator sets that no node uses."""
    plain = fold_constants(model)
    domains = {node.domain for node in plain.graph.node}
    opsets = [opset for opset in plain.opset_import if opset.domain in domains]
    plain.ClearField("opset_import")
    plain.opset_import.extend(opsets)
    return plain
