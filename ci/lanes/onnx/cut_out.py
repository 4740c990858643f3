"""One operator of an ONNX model, as a script that needs onnx, onnxruntime and onnxruntime-qnn alone. Imported
only by the worker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent

import onnx
from onnx import helper

from ci.lanes.onnx.node_graph import Graph
from ci.lanes.onnx.values import values_of
from ci.pipeline.models.arrays import Array, Sample
from ci.pipeline.operator_script import FEW, packed, table_of

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


def cut_out(
    graph: Graph, node: onnx.NodeProto, sample: Sample, before: int, into: Path
) -> tuple[onnx.ModelProto, Sample]:
    """The operator and so many `before` it, with what quantizes them, and the values that they get."""
    rows = [node]
    for _ in range(before + 1):
        rows = [operand for row in rows for operand in graph.operands_of(row)]
    operands = list(dict.fromkeys(str(row.output[0]) for row in rows))
    part = graph.computing([graph.end_of(node)], operands)
    (values,) = values_of(graph.model, [sample], into, operands)
    inputs = {value.name: values[value.name] for value in part.graph.input}
    part.graph.ClearField("input")
    part.graph.input.extend(
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    )
    return part, inputs


def body_of(model: onnx.ModelProto, inputs: Mapping[str, Array], options: Mapping[str, str]) -> str:
    for node in model.graph.node:
        # An exporter writes the user's paths there.
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    content = model.SerializeToString()
    small = [tensor for tensor in model.graph.initializer if math.prod(tensor.dims) <= FEW]
    model.graph.ClearField("initializer")
    model.graph.initializer.extend(small)
    options = {name: value for name, value in options.items() if name != "backend_path"}
    return f"""\
{indent(onnx.printer.to_text(model).rstrip(), "# ")}
MODEL = unpacked({packed(content)})
INPUTS = {table_of(inputs)}
OPTIONS = {options} | {{"backend_path": qnn.get_qnn_htp_path()}}
{SESSIONS}"""
