"""matmul-shared-input: relu, matmul at 16a8w: compile: RuntimeError: Node aten_matmul_default with op <EdgeOpOverload: aten.matmul.default>: schema = aten::matmul(Tensor sel
It needs executorch 1.5.1, torch 2.13.0+cpu, QNN v2.49.40.260810104044 on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""
import re, signal, subprocess, sys
import numpy as np, torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset, QnnExecuTorchBackendType
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from torchao.quantization.pt2e import MinMaxObserver, quantize_pt2e
class Net(torch.nn.Module):
    def forward(self, x0):
        relu = torch.ops.aten.relu.default(x0)
        matmul = torch.ops.aten.matmul.default(relu, x0)
        return matmul
NET, INPUTS = Net().eval(), (torch.from_numpy(np.linspace(-0.96, 0.87, 4, dtype="float32").reshape((1, 2, 2))),)
def run():
    module = torch.export.export(NET, INPUTS, strict=True).module()
    quantizer = QnnQuantizer(QnnExecuTorchBackendType.kHtpBackend, QcomChipset.SM8650)
    quantizer.set_default_quant_config(QuantDtype.use_16a8w, is_conv_per_channel=True, is_linear_per_channel=True, act_observer=MinMaxObserver)
    (module := quantize_pt2e.prepare_pt2e(module, quantizer))(*INPUTS)
    module = quantize_pt2e.convert_pt2e(module)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, qnn.generate_htp_compiler_spec(use_fp16=False))
    wanted = [module(*INPUTS)]
    edge = qnn.to_edge_transform_and_lower_to_qnn(module, INPUTS, spec)
    program = edge.to_executorch().buffer
    found = Runtime.get().load_program(program).load_method('forward').execute(list(INPUTS))
    pairs = [(a.double(), b.double()) for a, b in zip(wanted, found)]
if "run" in sys.argv: sys.exit(run())
done = subprocess.run([sys.executable, __file__, "run"], capture_output=True, text=True, errors="replace")
ended = signal.Signals(-done.returncode).name if done.returncode < 0 else ''
said = done.stdout + done.stderr + ended
found = re.findall('RuntimeError', said)[-1:] if done.returncode else []
word = "still" if found else "gone" if not done.returncode else "changed"
print(word, "-", *(found or [" ".join(said.split())[-200:]]))
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
