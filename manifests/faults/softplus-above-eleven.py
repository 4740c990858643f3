"""softplus-above-eleven: `softplus` and `mish` are about 0 for inputs from 11.1 to 20
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
draws, softplus, mish = [torch.rand(4, 64) for _ in range(5)], torch.nn.Softplus(), torch.nn.Mish()
figures = [
    sorted(decibels(net, (x * end - 5,)) for x in draws) for net, end in ((softplus, 20), (mish, 20), (softplus, 15))
]
one, also, right = figures[0][-1], figures[1][-1], figures[2][0]
word = "still" if max(one, also) < 20 <= right else "gone" if min(one, also, right) >= 20 else "changed"
figure = "{0[0]:.1f} to {0[4]:.1f} dB for softplus of [-5, 15], {1[0]:.1f} to {1[4]:.1f} dB for mish of [-5, 15], {2[0]:.1f} to {2[4]:.1f} dB for softplus of [-5, 10]"
print(word, "-", figure.format(*figures))
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
