"""matmul-of-activations: MatMul of two inputs at 16a8w: 40 dB SQNR
It needs onnx 1.23.2, onnxruntime 1.31.1, onnxruntime-qnn 2.7.0. Exit code: 1 still, 0 gone, 2 changed."""
import math, re, signal, subprocess, sys
import numpy as np, onnx, onnxruntime as ort, onnxruntime_qnn as qnn, os, tempfile
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model
MODEL = onnx.parser.parse_model("""< ir_version: 9, opset_import: ["" : 18] > product (float[4,32,32] x0, float[4,32,128] x1) => (float[4,32,128] y0) {
   y0 = MatMul (x0, x1) }""")
numbers = np.random.default_rng(0)
INPUTS = {name: numbers.normal(size=size).astype("float32") for name, size in (("x0", (4, 32, 32)), ("x1", (4, 32, 128)))}
Samples = type("Samples", (CalibrationDataReader,), {"get_next": lambda self, left=iter([INPUTS]): next(left, None)})
def run():
    onnx.save(MODEL, path := os.path.join(tempfile.mkdtemp(), 'model.onnx'))
    qnn_preprocess_model(path, path)
    config = get_qnn_qdq_config(path, Samples(), activation_type=QuantType.QUInt16, weight_type=QuantType.QUInt8)
    quantize(path, path, config)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = ort.InferenceSession(path, options, providers=['CPUExecutionProvider']).run(None, INPUTS)
    ort.set_default_logger_severity(0)
    ort.register_execution_provider_library('QNN', qnn.get_library_path())
    options = ort.SessionOptions()
    options.log_severity_level = 0
    options.add_session_config_entry('session.disable_cpu_ep_fallback', '1')
    device = [device for device in ort.get_ep_devices() if device.ep_name == 'QNN'][:1]
    options.add_provider_for_devices(device, dict(backend_path=qnn.get_qnn_htp_path(), offload_graph_io_quantization='0', soc_model='57', htp_arch='75', enable_htp_fp16_precision='0'))
    found = ort.InferenceSession(path, options).run(None, INPUTS)
    pairs = [(np.float64(a), np.float64(b)) for a, b in zip(wanted, found)]
    print('SQNR', min(10 * math.log10(max(1e-9, (a**2).sum() / max(1e-15, n if n == n else math.inf))) for a, b in pairs for n in [((a - b) ** 2).sum()]))
if "run" in sys.argv: sys.exit(run())
done = subprocess.run([sys.executable, __file__, "run"], capture_output=True, text=True, errors="replace")
ended = signal.Signals(-done.returncode).name if done.returncode < 0 else ''
said = done.stdout + done.stderr + ended
found = re.findall(r'^SQNR (\S+)', said, re.MULTILINE)
word = "changed" if not found else "still" if float(found[0]) < 60 else "gone"
print(word, "-", *(found or [" ".join(said.split())[-200:]]))
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
