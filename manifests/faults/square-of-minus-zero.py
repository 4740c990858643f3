"""square-of-minus-zero: `x ** 2` of a number that rounds to -0 is -4 at fp16
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime


def decibels(net, inputs):
    options = qnn.generate_htp_compiler_spec(use_fp16=True)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    module = torch.fx.symbolic_trace(net).eval()
    program = qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    wanted, found = net(*inputs).double(), method.execute(list(inputs))[0].double()
    return 20 * math.log10(max(1e-9, wanted.norm() / max(1e-9, (found - wanted).norm().nan_to_num(math.inf))))


torch.manual_seed(0)
small = torch.randn(1, 8, 16)
small[0, 0, :4] = torch.tensor([-0.0, -1e-9, -1e-8, -2e-8])
larger = small.clone()
larger[0, 0, :4] = torch.tensor([0.0, 1e-9, -1e-6, -1e-5])
wrong = [decibels(lambda x: x**2, (small,))]
right = [decibels(lambda x: x * x, (small,)), decibels(lambda x: x**2, (larger,))]
word = "still" if max(wrong) < 20 <= min(right) else "gone" if min(*wrong, *right) >= 20 else "changed"
figure = "{:.1f} dB for x ** 2 of four numbers from -2e-8 to -0; {:.1f} dB for x * x, {:.1f} dB for x ** 2 of other numbers"
print(word, "-", figure.format(*wrong, *right))
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
