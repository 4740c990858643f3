"""A piece of an ONNX model as a Python file that needs onnx, onnxruntime and onnxruntime-qnn alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from ci.pipeline.precision import Precision
from ci.pipeline.reproducer import SQNR, Reproducer
from provisioning.manifest import Soc

IMPORTS = (
    "import numpy as np, onnx, onnxruntime as ort, onnxruntime_qnn as qnn, os, tempfile",
    "from onnx import numpy_helper",
)
QUANTIZING = (
    "from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize",
    "from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model",
)
READER = (
    'Samples = type("Samples", (CalibrationDataReader,), {"get_next": lambda self, left=iter([INPUTS]):'
    " next(left, None)})",
)


HTP = {"offload_graph_io_quantization": "0"}
REFUSAL = "fallback to CPU EP has been explicitly disabled"


@dataclass(frozen=True, slots=True)
class HowCompiled:
    precision: Precision
    per_channel: bool
    options: Mapping[str, str]
    """Of the provider."""
    sized: bool = False
    """Whether its size is looked at."""


def ids_of(chip: Soc) -> dict[str, str]:
    return {"soc_model": str(chip.id), "htp_arch": str(chip.arch)}


def reproducer(
    name: str, title: str, needs: str, model: onnx.ModelProto, sources: Mapping[str, str], how: HowCompiled
) -> Reproducer:
    """`sources` make the values of inputs and weights, by name; "" where nothing short does."""
    inputs = [value.name for value in model.graph.input]
    weights = [tensor.name for tensor in model.graph.initializer]
    plain, names = _renamed(model)
    text = onnx.printer.to_text(plain)
    body = [f'MODEL = onnx.parser.parse_model("""{_compact(text)}""")']
    if weights:
        body += [
            f"WEIGHTS = {{{_pairs(weights, names, sources)}}}",
            "MODEL.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in WEIGHTS.items())",
        ]
    body += [f"INPUTS = {{{_pairs(inputs, names, sources)}}}"]
    stored = [f'MODEL = onnx.load("{name}.onnx")', f'INPUTS = dict(np.load("{name}.npz"))']
    precision = how.precision
    reader = READER if precision.quantized else ()
    return Reproducer(
        name,
        title,
        needs,
        [*IMPORTS, *(QUANTIZING if precision.quantized else ())],
        [*body, *reader] if all(sources.values()) else (),
        [*stored, *reader],
        _run(how),
        refusal=REFUSAL,
    )


def _run(how: HowCompiled) -> list[str]:
    precision = how.precision
    lines = ["onnx.save(MODEL, path := os.path.join(tempfile.mkdtemp(), 'model.onnx'))"]
    if precision.quantized:
        more = ", per_channel=True" * how.per_channel
        if precision.symmetric_weights is not None:
            more += f", weight_symmetric={precision.symmetric_weights}"
        lines += [
            "qnn_preprocess_model(path, path)",
            f"config = get_qnn_qdq_config(path, Samples(), activation_type=QuantType.{precision.activations},"
            f" weight_type=QuantType.{precision.weights}{more})",
            "quantize(path, path, config)",
        ]
    options = {**how.options, "enable_htp_fp16_precision": str(int(precision.name == "fp16"))}
    shown = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return [
        *lines,
        "options = ort.SessionOptions()",
        "options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL",
        "wanted = ort.InferenceSession(path, options, providers=['CPUExecutionProvider']).run(None, INPUTS)",
        "ort.set_default_logger_severity(0)",
        "ort.register_execution_provider_library('QNN', qnn.get_library_path())",
        "options = ort.SessionOptions()",
        "options.log_severity_level = 0",
        "options.add_session_config_entry('session.disable_cpu_ep_fallback', '1')",
        "device = [device for device in ort.get_ep_devices() if device.ep_name == 'QNN'][:1]",
        *(SIZED if how.sized else ()),
        f"options.add_provider_for_devices(device, dict(backend_path=qnn.get_qnn_htp_path(), {shown}))",
        "found = ort.InferenceSession(path, options).run(None, INPUTS)",
        *FIGURES,
    ]


SIZED = (
    "options.add_session_config_entry('ep.context_enable', '1')",
    "options.add_session_config_entry('ep.context_file_path', path + '_ctx.onnx')",
)
FIGURES = (
    "print('SIZE', os.path.getsize(path + '_ctx.onnx'))",
    "pairs = [(np.float64(a), np.float64(b)) for a, b in zip(wanted, found)]",
    SQNR,
    "print('EQUAL', min((a == b).mean() for a, b in pairs))",
)


def _pairs(tensors: Sequence[str], names: Mapping[str, str], sources: Mapping[str, str]) -> str:
    return ", ".join(f'"{names[name]}": {sources[name]}' for name in tensors)


def _renamed(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Without weights' values, and with names that onnx.parser takes; which name became which."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    graph = plain.graph
    names: dict[str, str] = {"": ""}

    def rename(name: str, letter: str) -> str:
        return names.setdefault(name, f"{letter}{sum(known[:1] == letter for known in names.values())}")

    for value in graph.input:
        value.name = rename(value.name, "x")
    for tensor in graph.initializer:
        rename(tensor.name, "w")
    for node in graph.node:
        node.name = node.doc_string = ""
        del node.metadata_props[:]
        for field, letter in ((node.input, "x"), (node.output, "y")):
            field[:] = [rename(name, letter) for name in field]
    for value in graph.output:
        value.name = rename(value.name, "y")
    for field in ("initializer", "value_info"):
        graph.ClearField(field)
    return plain, names


def _compact(text: str) -> str:
    """Its head in one line, and then a line for each node."""
    head, mark, rest = text.partition("{\n")
    nodes = rest.rstrip().removesuffix("}").rstrip().replace('[""] ', "")
    return f"{' '.join(head.split())} {mark}{nodes} }}"
