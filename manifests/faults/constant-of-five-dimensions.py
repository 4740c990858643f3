"""constant-of-five-dimensions: x + torch.ones(x.shape) with five dimensions is 98304 everywhere at fp16
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime


def decibels(net, inputs):
    module = torch.export.export(torch.fx.symbolic_trace(net).eval(), inputs, strict=True).module()
    options = qnn.generate_htp_compiler_spec(use_fp16=True)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    program = qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    wanted, found = module(*inputs).double(), method.execute(list(inputs))[0].double()
    return 20 * math.log10(max(1e-9, wanted.norm() / max(1e-9, (found - wanted).norm().nan_to_num(math.inf))))


torch.manual_seed(0)
five, four = (
    decibels(lambda x, s=s: x + torch.ones(s), (torch.rand(s),)) for s in ((1, 2, 3, 7, 5), (2, 3, 7, 5))
)
word = "changed" if four < 20 else "still" if five < 20 else "gone"
print(word, "-", f"{five:.1f} dB with five dimensions, {four:.1f} dB with four")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
