"""concat-of-a-constant: linear, ones, cat at 8a8w: 0.0 dB SQNR
It needs executorch 1.5.1, torch 2.13.0+cpu, QNN v2.49.40.260810104044 on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""
import math, re, signal, subprocess, sys
import numpy as np, torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset, QnnExecuTorchBackendType
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from torchao.quantization.pt2e import MinMaxObserver, quantize_pt2e
class Net(torch.nn.Module):
    def forward(self, x0):
        linear = torch.ops.aten.linear.default(x0, self.w0, self.w1)
        ones = torch.ops.aten.ones.default([1, 1, 3], device = torch.device(type='cpu'), pin_memory = False)
        cat = torch.ops.aten.cat.default([linear, ones], -1)
        return cat
NET, INPUTS = Net().eval(), (torch.from_numpy(np.linspace(-0.95, 0.94, 4, dtype="float32").reshape((1, 1, 4))),)
WEIGHTS = dict(w0=np.full((1, 4), -0.34, "float32"), w1=np.full((1,), 0.17, "float32"))
for name, values in WEIGHTS.items():
    setattr(NET, name, torch.nn.Parameter(torch.from_numpy(values), requires_grad=False))
def run():
    module = torch.export.export(NET, INPUTS, strict=True).module()
    quantizer = QnnQuantizer(QnnExecuTorchBackendType.kHtpBackend, QcomChipset.SM8650)
    quantizer.set_default_quant_config(QuantDtype.use_8a8w, is_conv_per_channel=True, is_linear_per_channel=True, act_observer=MinMaxObserver)
    (module := quantize_pt2e.prepare_pt2e(module, quantizer))(*INPUTS)
    module = quantize_pt2e.convert_pt2e(module)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, qnn.generate_htp_compiler_spec(use_fp16=False))
    wanted = [module(*INPUTS)]
    edge = qnn.to_edge_transform_and_lower_to_qnn(module, INPUTS, spec)
    program = edge.to_executorch().buffer
    found = Runtime.get().load_program(program).load_method('forward').execute(list(INPUTS))
    pairs = [(a.double(), b.double()) for a, b in zip(wanted, found)]
    print('SQNR', min(10 * math.log10(max(1e-9, (a**2).sum() / max(1e-15, n if n == n else math.inf))) for a, b in pairs for n in [((a - b) ** 2).sum()]))
if "run" in sys.argv: sys.exit(run())
done = subprocess.run([sys.executable, __file__, "run"], capture_output=True, text=True, errors="replace")
ended = signal.Signals(-done.returncode).name if done.returncode < 0 else ''
said = done.stdout + done.stderr + ended
found = re.findall(r'^SQNR (\S+)', said, re.MULTILINE)
word = "changed" if not found else "still" if float(found[0]) < 20 else "gone"
print(word, "-", *(found or [" ".join(said.split())[-200:]]))
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
