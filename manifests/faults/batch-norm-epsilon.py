"""batch-norm-epsilon: A batch norm at fp16 computes with an epsilon of 1e-9
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


def norm(epsilon):
    layer = torch.nn.BatchNorm2d(8, eps=epsilon)
    torch.nn.init.constant_(layer.running_var, 0.01)
    return layer


torch.manual_seed(0)
nets = norm(1e-3), torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), norm(1e-3)), norm(1e-5)
one, also, right = (decibels(net, (torch.randn(1, 8, 6, 6) * 0.1,)) for net in nets)
word = "still" if max(one, also) < 40 <= right else "gone" if min(one, also, right) >= 40 else "changed"
print(word, "-", f"{one:.1f} dB with an epsilon of 1e-3, {also:.1f} dB with 1e-3 after a convolution, {right:.1f} dB with 1e-5")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
