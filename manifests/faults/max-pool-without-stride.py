"""max-pool-without-stride: max_pool2d at fp16: compile: the compiler dies of aten.max_pool2d_with_indices.default (aten_max_pool2d_with_indices_default): the backend's builder f
It needs executorch 1.5.1, torch 2.13.0+cpu, QNN v2.49.40.260810104044 on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""
import re, signal, subprocess, sys
import numpy as np, torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
class Net(torch.nn.Module):
    def forward(self, x0):
        max_pool2d = torch.ops.aten.max_pool2d.default(x0, [2, 2])
        return max_pool2d
NET, INPUTS = Net().eval(), (torch.from_numpy(np.linspace(0.0, 0.32, 4, dtype="float32").reshape((1, 1, 2, 2))),)
def run():
    module = torch.export.export(NET, INPUTS, strict=True).module()
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, qnn.generate_htp_compiler_spec(use_fp16=True))
    wanted = [module(*INPUTS)]
    edge = qnn.to_edge_transform_and_lower_to_qnn(module, INPUTS, spec)
    program = edge.to_executorch().buffer
    found = Runtime.get().load_program(program).load_method('forward').execute(list(INPUTS))
    pairs = [(a.double(), b.double()) for a, b in zip(wanted, found)]
if "run" in sys.argv: sys.exit(run())
done = subprocess.run([sys.executable, __file__, "run"], capture_output=True, text=True, errors="replace")
ended = signal.Signals(-done.returncode).name if done.returncode < 0 else ''
said = done.stdout + done.stderr + ended
found = re.findall('IndexError', said)[-1:] if done.returncode else []
word = "still" if found else "gone" if not done.returncode else "changed"
print(word, "-", *(found or [" ".join(said.split())[-200:]]))
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
