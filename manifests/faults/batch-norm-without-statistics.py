"""batch-norm-without-statistics: A batch norm without running statistics is wrong
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
norm = torch.nn.BatchNorm2d(8, track_running_stats=False)
cases = (norm, 1), (norm, 2), (torch.nn.GroupNorm(8, 8), 1)
one, also, right = (decibels(net, (torch.rand(batch, 8, 6, 6) * 3 - 1,)) for net, batch in cases)
word = "still" if max(one, also) < 20 <= right else "gone" if min(one, also, right) >= 20 else "changed"
print(word, "-", f"{one:.1f} dB for BatchNorm2d of a batch of one, {also:.1f} dB of a batch of two, {right:.1f} dB for GroupNorm of a batch of one")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
