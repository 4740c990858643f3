"""matmul-of-activations: `MatMul` of two 16-bit activations rounds its second input to 8 bits
It needs onnx, onnxruntime and onnxruntime-qnn. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_qnn as qnn
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

ort.register_execution_provider_library("QNN", qnn.get_library_path())


def decibels(text, inputs, weights={}):
    model, rows = onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 18]> g ' + text), [None, inputs]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for n, w in weights.items())
    onnx.save(model, path := tempfile.mkdtemp() + "/x")
    reader = type("", (CalibrationDataReader,), {"get_next": lambda self: rows.pop()})
    types = {"activation_type": QuantType.QUInt16, "weight_type": QuantType.QUInt8}
    quantize(path, path, get_qnn_qdq_config(path, reader(), **types))
    wanted = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)[0]
    options, found = ort.SessionOptions(), [d for d in ort.get_ep_devices() if d.ep_name == "QNN"][:1]
    settings = {"backend_path": qnn.get_qnn_htp_path(), "soc_model": "57", "htp_arch": "75"}
    settings |= {"offload_graph_io_quantization": "0", "enable_htp_fp16_precision": "0"}
    options.add_provider_for_devices(found, settings)
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    wanted, found = np.float64(wanted), np.float64(ort.InferenceSession(path, options).run(None, inputs)[0])
    return 10 * math.log10(max(1e-9, (wanted**2).sum() / max(((found - wanted) ** 2).sum(), 1e-15)))


draw, x, y = np.random.default_rng(0).normal, "float[4,32,32] x", "float[4,32,128] y"
values = {"x": np.float32(draw(size=(4, 32, 32))), "y": np.float32(draw(size=(4, 32, 128)))}
one = decibels(f"({x}, {y}) => (float[4,32,128] z) {{ z = MatMul(x, y) }}", values)
also = decibels(f"({x}, {y}) => (float[4,32,128] z) {{ a = Relu(y) z = MatMul(x, a) }}", values)
weights = {"y": values["y"]}
right = decibels(f"({x}) => (float[4,32,128] z) {{ z = MatMul(x, y) }}", {"x": values["x"]}, weights)
word = "still" if max(one, also) < 60 <= right else "gone" if min(one, also, right) >= 60 else "changed"
print(word, "-", f"{one:.1f} dB for x @ y of two inputs, {also:.1f} dB for x @ relu(y), {right:.1f} dB if y is a weight")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
