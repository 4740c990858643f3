"""Operators of ONNX, each alone, by onnxruntime-qnn and nothing of this project: where each runs, how well.

Its argument is a JSON list of what to measure: the node test's `test` and `module`, `opset`, `constants`
(inputs that become weights), `precision`, `chip` and `arch` (QNN's numbers) and `seed`. For each it prints a
word of the operator table, and each draw's SQNR in dB against the quantized model.
"""

import importlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_qnn as qnn
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

from tests.support.plain_answers import answer_each

DRAWS, LEAST_DB, EXACT_DB = 5, 20, 200.0
ACTIVATIONS = {"8a8w": QuantType.QUInt8, "16a8w": QuantType.QUInt16}
ON_CPU = "fallback to CPU EP has been explicitly disabled"


def arrays_of(values: Any) -> list[np.ndarray]:
    """Models have no doubles."""
    arrays = [
        onnx.numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else np.asarray(v) for v in values
    ]
    return [array.astype(np.float32) if array.dtype == np.float64 else array for array in arrays]


def model_of(
    test: str, module: str, opset: int, constants: Sequence[str]
) -> tuple[Any, dict[str, np.ndarray]]:
    """Without the optional outputs beside the first one, and with the test's own inputs."""
    package = "onnx.backend.test.case.node"
    importlib.import_module(f"{package}.{module}")
    case = next(case for case in importlib.import_module(package)._NodeTestCases if case.name == test)
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    graph, (node,) = model.graph, model.graph.node
    named, expected = arrays_of(case.data_sets[0][0]), arrays_of(case.data_sets[0][1])
    values = dict(zip([info.name for info in graph.input], named, strict=True))
    if not all(np.isfinite(array).all() for array in expected if array.dtype.kind == "f"):
        values = {name: np.nan_to_num(array, posinf=0, neginf=0) for name, array in values.items()}
    formal = onnx.defs.get_schema(node.op_type).outputs
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    kept = [
        name
        for place, name in enumerate(node.output)
        if name == graph.output[0].name or formal[min(place, len(formal) - 1)].option != optional
    ]
    names = [name if name in kept else "" for name in node.output]
    while not names[-1]:
        names.pop()
    outputs = [info for info in graph.output if info.name in kept]
    graph.initializer.extend(onnx.numpy_helper.from_array(values.pop(name), name) for name in constants)
    inputs = [info for info in graph.input if info.name in values]
    del graph.input[:], graph.output[:], node.output[:]
    graph.input.extend(inputs)
    graph.output.extend(outputs)
    node.output.extend(names)
    for info in (*graph.input, *graph.output):
        if info.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    model.opset_import[0].version = opset
    model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import)
    return model, values


def drawn(values: Mapping[str, np.ndarray], generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Floats between the test's own; integers may be indices, and stay."""
    other = dict(values)
    for name, array in values.items():
        finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array[:0]
        if finite.size:
            other[name] = generator.uniform(finite.min(), finite.max(), array.shape).astype(array.dtype)
    return other


def on_cpu(path: Path, samples: Sequence[Mapping[str, np.ndarray]]) -> list[list[np.ndarray]]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [session.run(None, sample) for sample in samples]


def decibels(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """The least of all outputs; what are no floats are equal or not."""
    figures = [EXACT_DB]
    for one, other in zip(wanted, found, strict=True):
        if one.shape != other.shape:
            return -math.inf
        if one.dtype.kind != "f":
            figures.append(EXACT_DB if np.array_equal(one, other) else -math.inf)
            continue
        exact, near = one.astype(np.float64), other.astype(np.float64)
        finite = np.isfinite(exact)
        if not np.array_equal(finite, np.isfinite(near)):
            return -math.inf
        signal, noise = (float(np.linalg.norm(value[finite])) for value in (exact, near - exact))
        figures.append(min(EXACT_DB, 20 * math.log10(max(1e-12, signal) / max(1e-12, noise))))
    return min(figures)


def measured(
    test: str,
    module: str,
    opset: int,
    constants: Sequence[str],
    precision: str,
    chip: int,
    arch: int,
    seed: int,
) -> tuple[str, list[float]]:
    model, values = model_of(test, module, opset, constants)
    generator = np.random.default_rng(seed)
    samples = [values, *(drawn(values, generator) for _ in range(DRAWS - 1))]
    with tempfile.TemporaryDirectory() as folder:
        source = path = Path(folder, "model.onnx")
        onnx.save(model, str(source))
        if precision != "fp16":
            remaining = iter(samples)
            reader = type(
                "Reader", (CalibrationDataReader,), {"get_next": lambda self: next(remaining, None)}
            )()
            prepared, path = Path(folder, "prepared.onnx"), Path(folder, "quantized.onnx")
            start = prepared if qnn_preprocess_model(str(source), str(prepared)) else source
            config = get_qnn_qdq_config(
                str(start), reader, activation_type=ACTIVATIONS[precision], weight_type=QuantType.QUInt8
            )
            config.extra_options["ForceQuantizeNoInputCheck"] = True
            quantize(str(start), str(path), config)
        exact, quantized = on_cpu(source, samples), on_cpu(path, samples)
        ort.register_execution_provider_library("QNN", qnn.get_library_path())
        options = ort.SessionOptions()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options.add_provider_for_devices(
            [device for device in ort.get_ep_devices() if device.ep_name == "QNN"][:1],
            {
                "backend_path": qnn.get_qnn_htp_path(),
                "offload_graph_io_quantization": "0",
                "soc_model": str(chip),
                "htp_arch": str(arch),
                "enable_htp_fp16_precision": str(int(precision == "fp16")),
            },
        )
        try:
            session = ort.InferenceSession(str(path), options)
        except Exception as error:
            if ON_CPU in str(error):
                return "cpu", []
            raise
        found = [session.run(None, sample) for sample in samples]
    figures = sorted(map(decibels, quantized, found))
    if figures[DRAWS // 2] < LEAST_DB:
        return "wrong", figures
    if sorted(map(decibels, exact, quantized))[DRAWS // 2] < LEAST_DB:
        return "lost", figures
    return "whole", figures


answer_each(measured)
