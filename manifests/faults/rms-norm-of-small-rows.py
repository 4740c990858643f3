"""rms-norm-of-small-rows: An RMS norm of an image is wrong if its rows have 32 values or fewer
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime


def decibels(*shape):
    torch.manual_seed(0)
    net, inputs = torch.nn.RMSNorm(shape[-1]).eval().requires_grad_(False), (torch.randn(shape),)
    options = qnn.generate_htp_compiler_spec(use_fp16=True)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    program = qnn.to_edge_transform_and_lower_to_qnn(net, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    wanted, found = net(*inputs).double(), method.execute(list(inputs))[0].double()
    return 20 * math.log10(max(1e-9, wanted.norm() / max(1e-9, (found - wanted).norm().nan_to_num(math.inf))))


wrong, flat, wide = (decibels(*shape) for shape in ((1, 16, 4, 32), (64, 32), (1, 16, 4, 48)))
word = "still" if wrong < 20 <= min(flat, wide) else "gone" if min(wrong, flat, wide) >= 20 else "changed"
print(word, "-", f"{wrong:.1f} dB for shape (1, 16, 4, 32), {flat:.1f} dB for (64, 32), {wide:.1f} dB for (1, 16, 4, 48)")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
