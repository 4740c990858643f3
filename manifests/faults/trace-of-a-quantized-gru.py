"""A trace of a quantized GRU whose sequence nobody reads. Exit code: 1 still, 0 gone, 2 changed."""

import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_qnn as qnn
from onnxruntime.quantization import CalibrationDataReader, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

TEXT = """<ir_version: 10, opset_import: ["": 17]> g (float[6, 1, 16] x) => (float[1, 1, 8] h)
{ y, h = GRU <hidden_size = 8> (x, w, r) }"""


def compile_gru(trace):
    model, draw = onnx.parser.parse_model(TEXT), np.random.default_rng(0).uniform
    model.graph.node[0].output[0] = ""
    weights = {name: np.float32(draw(-1, 1, (1, 24, n))) for name, n in (("w", 16), ("r", 8))}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for n, w in weights.items())
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
    sys.exit(compile_gru(sys.argv[1]))
off, on = (subprocess.run([sys.executable, __file__, n], check=False).returncode for n in "01")
word = "changed" if off or on > 0 else "still" if on else "gone"
print(word, "-", f"it ends with {on} with enable_framework_op_trace, with {off} without")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
