"""Show an ONNX model, which may be quantized, to the searches: `OnnxGraph` is the Graph (graph.py says what
each method gives) over a model of onnx, computed by ONNX Runtime on the CPU.

`make_plain` first brings a model into the one form that the rest expects: every node named, every constant a
weight. Only workers import this."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ci.explain.graph import CONSTANT, FLOAT_MODEL, INPUT, NOTHING, Arrays, Graph, Node
from ci.explain.operator_script import ARRAYS, ScriptRequest, arrays_source
from ci.models.inputs import Array, Sample
from ci.models.model_lines import OperatorAt
from ci.suite.onnx_runtime import OnnxModel, run_on_cpu

QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
NO_PLACE = OperatorAt("", "", "", "")
ERROR, FLOAT, UNREAD = "error/", "float/", "unread/"
QUANTIZED = "_QuantizeLinear_Input"
"""The quantizer adds this to the name of what computes an output of the model."""
FEW = 16
"""A script shows weights of at most so many values."""
IMPORTS = """\
import onnxruntime as ort
import onnxruntime_qnn as qnn
"""
SESSIONS = """
CPU = ort.SessionOptions()
CPU.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
expected = ort.InferenceSession(MODEL, CPU, providers=["CPUExecutionProvider"]).run(None, INPUTS)
ort.register_execution_provider_library("QNN", qnn.get_library_path())
HTP = ort.SessionOptions()
HTP.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
HTP.add_provider_for_devices([row for row in ort.get_ep_devices() if row.ep_name == "QNN"][:1], OPTIONS)
computed = ort.InferenceSession(MODEL, HTP).run(None, INPUTS)
"""


class OnnxGraph(Graph):
    def __init__(
        self,
        model: onnx.ModelProto,
        samples: Sequence[Sample],
        places: Mapping[str, OperatorAt] | None = None,
        reference: str = FLOAT_MODEL,
        file: Path | None = None,
        types: Mapping[str, int] | None = None,
    ) -> None:
        """`file` is the model's own, if it has one. `places` are keyed by the names of operators; `types` by
        those of tensors, if they are known."""
        self.model, self.samples, self.places, self.reference = model, samples, places or {}, reference
        self.source: OnnxModel = file or model
        """A session is made from it: a file may be larger than a message."""
        self._types = types

    @cached_property
    def maker(self) -> Mapping[str, onnx.NodeProto]:
        """It maps a tensor to the node that computes it."""
        return {name: node for node in self.model.graph.node for name in node.output if name}

    @cached_property
    def types(self) -> Mapping[str, int]:
        """They are the types of inputs, and of tensors that nodes compute."""
        if self._types is not None:
            return self._types
        inferred = onnx.shape_inference.infer_shapes(self.model)
        values = [*inferred.graph.value_info, *self.model.graph.output, *self.model.graph.input]
        return {value.name: value.type.tensor_type.elem_type for value in values}

    def node_of(self, tensor: str) -> str:
        """Return the name of a tensor's node: each of several tensors of an operator is a node by itself."""
        maker = self.maker.get(tensor)
        if maker is None:
            return f"tensor {tensor}"
        part = f":{list(maker.output).index(tensor)}" if len(maker.output) > 1 else ""
        return name_of(maker) + part

    @cached_property
    def tensors(self) -> Mapping[str, str]:
        """It maps a node to its tensor."""
        return {self.node_of(tensor): tensor for tensor in (*self._leaves, *self.maker)}

    @cached_property
    def _leaves(self) -> Mapping[str, str]:
        """It maps each tensor that no node computes to its kind."""
        weights = dict.fromkeys((weight.name for weight in self.model.graph.initializer), CONSTANT)
        return {**dict.fromkeys((value.name for value in self.model.graph.input), INPUT), **weights}

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        leaves = ((self.node_of(tensor), kind) for tensor, kind in self._leaves.items())
        nodes = {name: Node(name, kind, ()) for name, kind in leaves}
        for row in self.model.graph.node:
            name, reads = name_of(row), tuple(self.node_of(tensor) for tensor in row.input if tensor)
            floats, quantizes = [self._is_float(tensor) for tensor in row.output], row.op_type in QUANTIZERS
            several = len(row.output) > 1
            nodes[name] = Node(
                name, row.op_type, reads, floats=any(floats), several=several, quantizes=quantizes
            )
            for place, (tensor, is_float) in enumerate(zip(row.output, floats, strict=True)):
                if several and tensor:
                    part = self.node_of(tensor)
                    nodes[part] = Node(part, row.op_type, (name,), floats=is_float, part=place)
        return nodes

    def _is_float(self, tensor: str) -> bool:
        users = self.users.get(tensor, ())
        return self.types.get(tensor) == TensorProto.FLOAT or any(
            user.op_type == "QuantizeLinear" for user in users
        )

    @cached_property
    def users(self) -> Mapping[str, Sequence[onnx.NodeProto]]:
        users: dict[str, list[onnx.NodeProto]] = {}
        for node in self.model.graph.node:
            for name in node.input:
                users.setdefault(name, []).append(node)
        return users

    @cached_property
    def results(self) -> Sequence[str]:
        return [self.node_of(value.name) for value in self.model.graph.output]

    def operator_at(self, name: str) -> OperatorAt:
        place = self.places.get(self.operator_names([name])[0], NO_PLACE)
        kind = self.nodes[name].kind
        return replace(place, operator=self.tensors[name] if kind in (INPUT, CONSTANT) else kind)

    def dimension(self, name: str) -> int | None:
        operator = next(node for node in self.model.graph.node if name_of(node) == name)
        for attribute in operator.attribute:
            if attribute.name == "axis":
                return int(attribute.i)
        schema = onnx.defs.get_schema(operator.op_type)
        return int(schema.attributes["axis"].default_value.i) if "axis" in schema.attributes else None

    def operator_names(self, names: Sequence[str]) -> list[str]:
        makers = ((name, self.maker.get(self.tensors.get(name, ""))) for name in names)
        return list(dict.fromkeys(name if maker is None else name_of(maker) for name, maker in makers))

    def ending_at(self, name: str) -> OnnxGraph:
        part = self._part_of([self.tensors[self.end_of(name)]])
        return OnnxGraph(part, self.samples, self.places, self.reference, types=self.types)

    def feeds(self) -> list[Sample]:
        """Return the samples, with only the inputs that the model has."""
        feeds = []
        for sample in self.samples:
            feeds.append({name: row for name, row in sample.items() if self._leaves.get(name) == INPUT})
        return feeds

    def outputs(self, replaced: Arrays = NOTHING) -> list[list[Array]]:
        names = [value.name for value in self.model.graph.output]
        arrays = {
            self.tensors[place]: values
            for name, values in replaced.items()
            if name in self.tensors
            for place in self.everywhere(name)
        }
        if not arrays:
            rows = run_on_cpu(self.source, self.feeds())
        else:
            rows = self._rows_of([name for name in names if name not in arrays], arrays)
        outputs = []
        for number, row in enumerate(rows):
            outputs.append([arrays[name][number] if name in arrays else row[name] for name in names])
        return outputs

    def _rows_of(self, names: Sequence[str], arrays: Arrays) -> list[Sample]:
        """Compute tensors from given tensors and the samples."""
        if not names:
            return [{} for _ in self.samples]
        part = self._part_of(names, arrays)
        inputs = [value.name for value in part.graph.input]
        feeds = []
        for number, sample in enumerate(self.samples):
            values = {name: arrays[name][number] if name in arrays else sample[name] for name in inputs}
            feeds.append(values)
        return run_on_cpu(part, feeds)

    def _part_of(self, outputs: Sequence[str], begins: Collection[str] = ()) -> onnx.ModelProto:
        """Return the part that computes these tensors from given tensors and the inputs."""
        names, tensors = set[str](), set[str]()
        for output in outputs:
            of_output = self.ancestors(output, begins)
            names, tensors = names | of_output[0], tensors | of_output[1]
        cut = onnx.ModelProto()
        cut.CopyFrom(self.model)
        graph = cut.graph
        members = [node for node in self.model.graph.node if node.output[0] in names]
        inputs = [tensor for tensor in self.model.graph.input if tensor.name in tensors]
        weights = [tensor for tensor in self.model.graph.initializer if tensor.name in tensors]
        for field in ("node", "input", "output", "initializer", "value_info"):
            graph.ClearField(field)
        graph.node.extend(members)
        for node in graph.node:
            # Another part of its result is still read.
            node.output[:] = [f"{UNREAD}{name}" if name in begins else name for name in node.output]
        graph.input.extend(inputs)
        graph.input.extend(self._value(name) for name in begins if name in tensors)
        graph.initializer.extend(weights)
        infos = {value.name: value for value in self.model.graph.output}
        graph.output.extend(infos.get(output) or self._value(output) for output in outputs)
        return cut

    def _value(self, tensor: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(tensor, self.types.get(tensor) or TensorProto.FLOAT, None)

    def ancestors(self, tensor: str, begins: Iterable[str] = ()) -> tuple[set[str], set[str]]:
        """Return the first outputs of the nodes that compute a tensor from given ones, and all tensors that
        they take."""
        nodes, tensors, todo, ends = set[str](), set[str](), [tensor], {*begins}
        while todo:
            name = todo.pop()
            if name in tensors:
                continue
            tensors.add(name)
            if name not in ends and (node := self.maker.get(name)):
                nodes.add(node.output[0])
                todo += node.input
        return nodes, tensors

    def values(self, sample: int) -> dict[str, Array]:
        names = [name for name, node in self.nodes.items() if node.floats and not node.several]
        tensors = [self.tensors[name] for name in names]
        (row,) = values_of(self.model, [self.samples[sample]], tensors)
        weights = {row.name: numpy_helper.to_array(row) for row in self.model.graph.initializer}
        leaves = {name: array for name, array in {**row, **weights}.items() if name in self._leaves}
        floats = {self.node_of(name): array for name, array in leaves.items() if array.dtype.kind == "f"}
        return floats | {name: row[tensor] for name, tensor in zip(names, tensors, strict=True)}

    def values_at(self, names: Sequence[str]) -> Arrays:
        tensors = {name: self.tensors[name] for name in names}
        rows = values_of(self.model, self.feeds(), tensors.values())
        arrays = {}
        for name, tensor in tensors.items():
            arrays[name] = [row[tensor] for row in rows]
        return arrays

    @cached_property
    def _first(self) -> Mapping[str, Array]:
        """It maps each tensor that nodes compute to its value on the first sample."""
        return {
            tensor: array
            for name, array in self.values(0).items()
            if (tensor := self.tensors[name]) not in self._leaves
        }

    def errors_of(self, quantized: Any) -> dict[str, Array]:
        errors = _own_errors(quantized, self._first, self.feeds()[0])
        return {self.node_of(tensor): array for tensor, array in errors.items()}

    def disturbed(self, errors: Iterable[Mapping[str, Array]]) -> Iterator[Sequence[Array]]:
        model = _add_error_inputs(self.model, self._first)
        for outputs in run_on_cpu(model, map(self._inputs_with, errors)):
            yield [outputs[value.name] for value in self.model.graph.output]

    def _inputs_with(self, errors: Mapping[str, Array]) -> Sample:
        """Return the first sample's inputs, with these errors at their nodes and none at the others."""
        inputs = dict(self.feeds()[0])
        inputs |= {f"{ERROR}{tensor}": np.zeros_like(array) for tensor, array in self._first.items()}
        inputs |= {f"{ERROR}{self.tensors[name]}": array for name, array in errors.items()}
        return inputs

    def script(self, request: ScriptRequest, options: Mapping[str, str], before: int) -> str:
        """Return the source of a script of one operator, with the operators up to `before` steps in front of
        it."""
        rows = [request.operator]
        for _ in range(before + 1):
            rows = [operand for row in rows for operand in self.operands_of(row)]
        begins = list(dict.fromkeys(self.tensors[row] for row in rows))
        part = self._part_of([self.tensors[self.end_of(request.operator)]], begins)
        (values,) = values_of(self.model, [self.samples[request.sample]], begins)
        inputs = {value.name: values[value.name] for value in part.graph.input}
        part.graph.ClearField("input")
        part.graph.input.extend(
            helper.make_tensor_value_info(tensor, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for tensor, array in inputs.items()
        )
        return _source_of(part, inputs, options)


def name_of(node: onnx.NodeProto) -> str:
    return str(node.name or node.output[0])


def values_of(model: onnx.ModelProto, samples: Sequence[Sample], names: Iterable[str] = ()) -> list[Sample]:
    """Compute the values of inputs, outputs and these tensors, by name, for each sample."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    own_names = {value.name for value in (*model.graph.output, *model.graph.input)}
    probe.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(names) if name not in own_names
    )
    outputs = run_on_cpu(probe, samples)
    return [{**sample, **row} for sample, row in zip(samples, outputs, strict=True)]


def _own_errors(quantized: OnnxGraph, values: Mapping[str, Array], sample: Sample) -> Sample:
    """Return, by tensor, what quantizing changes at each operator that gets the float model's `values`."""
    model = onnx.ModelProto()
    model.CopyFrom(quantized.model)
    graph, inputs = model.graph, {value.name for value in model.graph.input}
    outputs, behind = {*values}, dict[str, str]()
    for node in graph.node:
        maker = node.input[0].removesuffix(QUANTIZED) if node.input else ""
        if node.op_type == "QuantizeLinear" and maker in outputs:
            behind[node.output[0]] = maker
        elif node.op_type == "DequantizeLinear" and node.input[0] in behind:
            behind[node.output[0]] = behind[node.input[0]]
    # The rounding of a tensor is its maker's error. What is not quantized has none, but that of weights.
    roundings = {name: tensor for tensor, name in behind.items()}
    plain = {name: name for node in graph.node for name in node.output if name in outputs}
    sources = {**plain, **roundings}
    operands = set[str]()
    for node in graph.node:
        for index, tensor in enumerate(node.input if node.op_type not in QUANTIZERS else ()):
            if (name := behind.get(tensor, tensor)) in outputs:
                node.input[index] = f"{FLOAT}{name}"
                operands.add(name)
    del graph.output[:]
    graph.output.extend(_float(tensor) for tensor in sources.values())
    graph.input.extend(_float(f"{FLOAT}{name}", values[name].shape) for name in operands)
    feed = {name: array for name, array in sample.items() if name in inputs}
    feed |= {f"{FLOAT}{name}": values[name] for name in operands}
    (arrays,) = run_on_cpu(model, [feed])
    results = [(name, arrays[tensor]) for name, tensor in sources.items()]
    return {name: array - values[name] for name, array in results if array.shape == values[name].shape}


def _add_error_inputs(source: onnx.ModelProto, tensors: Collection[str]) -> onnx.ModelProto:
    """Copy the model, with an input beside each of these tensors, which is added to it."""
    model = onnx.ModelProto()
    model.CopyFrom(source)
    nodes, targets = [], {*tensors}
    for node in model.graph.node:
        nodes.append(node)
        for index, name in enumerate(node.output):
            if name in targets:
                node.output[index] = f"{FLOAT}{name}"
                nodes.append(helper.make_node("Add", [f"{FLOAT}{name}", f"{ERROR}{name}"], [name]))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend(copies)
    model.graph.input.extend(_float(f"{ERROR}{name}") for name in tensors)
    return model


def _float(tensor: str, shape: Sequence[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape)


def _source_of(model: onnx.ModelProto, inputs: Mapping[str, Array], options: Mapping[str, str]) -> str:
    for node in model.graph.node:
        # An exporter writes the user's paths there.
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    content = np.frombuffer(model.SerializeToString(), "uint8")
    small = [tensor for tensor in model.graph.initializer if math.prod(tensor.dims) <= FEW]
    model.graph.ClearField("initializer")
    model.graph.initializer.extend(small)
    options = {name: value for name, value in options.items() if name != "backend_path"}
    return f"""\
{IMPORTS}{ARRAYS}{indent(onnx.printer.to_text(model).rstrip(), "# ")}
MODEL = {arrays_source({"model": content})}["model"].tobytes()
INPUTS = {arrays_source(inputs)}
OPTIONS = {options} | {{"backend_path": qnn.get_qnn_htp_path()}}
{SESSIONS}"""


CONSTANT_TYPES = {"value_float": "f4", "value_floats": "f4", "value_int": "i8", "value_ints": "i8"}
"""Maps an attribute of a Constant that is written as numbers to its type."""


def make_plain(model: onnx.ModelProto) -> bool:
    """Name nodes without a name, make weights of Constant nodes and of the Identity nodes by which exporters
    share equal ones, and take weights out of the inputs. Return whether that changes the model.

    The provider keeps its verdicts by the nodes' names, creates no tensor for a quantized Constant, and
    cannot load a context with weights for inputs. The quantizer leaves a bias behind an Identity in float."""
    graph = model.graph
    unnamed = [node for node in graph.node if not node.name]
    for node in unnamed:
        node.name = node.output[0]
    folded = _fold_constants(graph)
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    has_surplus = len(inputs) < len(graph.input)
    if has_surplus:
        del graph.input[:]
        graph.input.extend(inputs)
    if folded or has_surplus:
        # Older versions want every weight among the inputs.
        model.ir_version = max(model.ir_version, 4)
    return bool(unnamed or folded or has_surplus)


def _fold_constants(graph: onnx.GraphProto) -> bool:
    """Make weights of constants, and return whether there were any. A Constant that is an output of the graph
    stays a node, and so does one of text or a sparse one."""
    outputs = {value.name for value in graph.output}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for value in graph.input:
        # A caller may replace it.
        weights.pop(value.name, None)
    rest, before = [], len(graph.node)
    for node in graph.node:
        tensor = None
        if node.output[0] not in outputs:
            original = weights.get(node.input[0]) if node.op_type == "Identity" else None
            tensor = original or _constant(node)
        if tensor is None:
            rest.append(node)
        else:
            weight = graph.initializer.add()
            weight.CopyFrom(tensor)
            weight.name = node.output[0]
            weights[weight.name] = weight
    if len(rest) < before:
        del graph.node[:]
        graph.node.extend(rest)
    return len(rest) < before


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the value of a Constant node, if a weight can have it."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    (attribute,) = node.attribute
    if attribute.name == "value":
        return attribute.t
    if attribute.name not in CONSTANT_TYPES:
        return None
    value = np.asarray(helper.get_attribute_value(attribute), CONSTANT_TYPES[attribute.name])
    return numpy_helper.from_array(value)
