"""instance-norm-epsilon: Instance norm ignores its epsilon and its running statistics
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
    decibels(torch.nn.InstanceNorm2d(4, affine=True, eps=eps), (torch.rand(1, 4, 8, 8) * end,))
    for eps, end in ((0.1, 1), (1e-5, 0.01), (1e-5, 1))
)
word = "still" if max(one, also) < 20 <= right else "gone" if min(one, also, right) >= 20 else "changed"
figure = f"{one:.1f} dB with eps=0.1 for inputs in [0, 1], {also:.1f} dB with eps=1e-5 in [0, 0.01], {right:.1f} dB with eps=1e-5 in [0, 1]"
print(word, "-", figure)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
