"""trace-of-a-quantized-gru: Operator tracing crashes on a quantized GRU if the model uses only its last state
It needs onnx, onnxruntime and onnxruntime-qnn. Exit code: 1 still, 0 gone, 2 changed."""

import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_qnn as qnn
from onnxruntime.quantization import CalibrationDataReader, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

TEXT = """<ir_version: 10, opset_import: ["": 17]> g (float[6, 1, 16] x) => (float[1, 1, N] h)
{ y, h = GRU <hidden_size = N> (x, w, r) }"""


def compile_gru(trace, size):
    model, draw = onnx.parser.parse_model(TEXT.replace("N", size)), np.random.default_rng(0).uniform
    model.graph.node[0].output[0] = ""
    n = int(size)
    weights = {name: np.float32(draw(-1, 1, (1, 3 * n, k))) for name, k in (("w", 16), ("r", n))}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, name) for name, w in weights.items())
    onnx.save(model, path := tempfile.mkdtemp() + "/x")
    rows = [None, {"x": np.float32(draw(-1, 1, (6, 1, 16)))}]
    reader = type("", (CalibrationDataReader,), {"get_next": lambda self: rows.pop()})
    quantize(path, path, get_qnn_qdq_config(path, reader()))
    ort.register_execution_provider_library("QNN", qnn.get_library_path())
    options, found = ort.SessionOptions(), [d for d in ort.get_ep_devices() if d.ep_name == "QNN"][:1]
    settings = {"backend_path": qnn.get_qnn_htp_path(), "enable_framework_op_trace": trace}
    settings |= {"framework_op_trace_dir": path + "d", "soc_model": "57", "htp_arch": "75"}
    options.add_provider_for_devices(found, settings)
    ort.InferenceSession(path, options)


if sys.argv[1:]:
    sys.exit(compile_gru(*sys.argv[1:]))
runs = [subprocess.run([sys.executable, __file__, *words], check=False).returncode for words in ("08", "18", "14")]
off, on, also = runs
word = "gone" if not any(runs) else "still" if max(on, also) < 0 == off else "changed"
figure = f"exit code {on} with enable_framework_op_trace, {also} with it and a hidden size of 4, {off} without it"
print(word, "-", figure)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
