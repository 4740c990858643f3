"""prelu-by-channel: PReLU with a parameter for each channel applies it along the width
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
prelus = torch.nn.PReLU(3), torch.nn.PReLU()
prelus[0].weight.data = torch.tensor([0.1, 0.5, 0.9])
channels, one = (decibels(prelu, (torch.randn(1, 3, 8, 8),)) for prelu in prelus)
word = "changed" if one < 20 else "still" if channels < 20 else "gone"
print(word, "-", f"{channels:.1f} dB with a parameter for each channel, {one:.1f} dB with one for all")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
