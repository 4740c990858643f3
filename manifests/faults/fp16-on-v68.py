"""fp16-on-v68: fp16 for a chip without fp16 is computed in float32
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime


def decibels(net, inputs, soc):
    module = torch.export.export(net.eval(), inputs, strict=True).module()
    options = qnn.generate_htp_compiler_spec(use_fp16=True)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset[soc], options)
    program = qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    wanted, found = module(*inputs).double(), method.execute(list(inputs))[0].double()
    return 20 * math.log10(max(1e-9, wanted.norm() / max(1e-9, (found - wanted).norm().nan_to_num(math.inf))))


torch.manual_seed(0)
layer, inputs = torch.nn.Linear(64, 64), (torch.rand(8, 64) * 2 - 1,)
also = decibels(torch.nn.Conv2d(8, 8, 3), (torch.rand(1, 8, 6, 6) * 2 - 1,), "SM8350")
one, *right = (decibels(layer, inputs, soc) for soc in ("SM8350", "SA8295", "SM8650"))
word = "still" if min(one, also) > 100 > max(right) else "gone" if max(one, also, *right) < 100 else "changed"
figure = f"{one:.0f} dB for a linear layer on SM8350, {also:.0f} dB for a convolution on SM8350, {right[0]:.0f} dB for a linear layer on SA8295, {right[1]:.0f} dB for a linear layer on SM8650"
print(word, "-", figure)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
