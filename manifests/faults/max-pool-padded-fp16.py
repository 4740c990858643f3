"""max-pool-padded-fp16: MaxPool2d(2, 2, padding=1) is wrong at the right edge at fp16
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime


def decibels(net, inputs):
    module = torch.export.export(net.eval(), inputs, strict=True).module()
    options = qnn.generate_htp_compiler_spec(use_fp16=True)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    program = qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    wanted, found = module(*inputs).double(), method.execute(list(inputs))[0].double()
    return 20 * math.log10(max(1e-9, wanted.norm() / max(1e-9, (found - wanted).norm().nan_to_num(math.inf))))


torch.manual_seed(0)
one, also, right = (
    decibels(torch.nn.MaxPool2d(kernel, 2, padding=1), (torch.randn(1, 8, size, size),))
    for kernel, size in ((2, 10), (2, 8), (3, 10))
)
word = "still" if max(one, also) < 20 <= right else "gone" if min(one, also, right) >= 20 else "changed"
figure = f"{one:.1f} dB for MaxPool2d(2, 2, padding=1) of 10x10, {also:.1f} dB of 8x8, {right:.1f} dB for MaxPool2d(3, 2, padding=1)"
print(word, "-", figure)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
