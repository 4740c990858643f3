"""minus-infinity-on-v81: On V81, masked positions get all the attention if the mask is an input with -inf or finfo(float32).min
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
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8850, options)
    program = qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    wanted, found = module(*inputs).double(), method.execute(list(inputs))[0].double()
    return 20 * math.log10(max(1e-9, wanted.norm() / max(1e-9, (found - wanted).norm().nan_to_num(math.inf))))


torch.manual_seed(0)
x = torch.rand(4, 16)


def masked(value, net=lambda x, m: torch.softmax(x + m, -1)):
    return decibels(net, (x, torch.zeros(4, 16).masked_fill(torch.arange(16) > 9, value)))


least, kept = torch.finfo(torch.float32).min, (torch.arange(16) <= 9).float().repeat(4, 1)
clamped = masked(-math.inf, lambda x, m: torch.softmax(torch.clamp(x + m, -1e4), -1))
wrong = masked(-math.inf), masked(least), masked(-7e4), clamped
right = masked(-65504.0), decibels(lambda x, m: torch.softmax(x + (1 - m) * least, -1), (x, kept))
word = "still" if max(wrong) < 20 <= min(right) else "gone" if min(*wrong, *right) >= 20 else "changed"
figure = "{:.1f} dB for softmax(x + mask) with -inf in the mask, {:.1f} dB with finfo(float32).min, {:.1f} dB with -7e4"
figure += ", {:.1f} dB with clamp(x + mask, -1e4); {:.1f} dB with -65504, {:.1f} dB with x + (1 - mask) * finfo(float32).min"
print(word, "-", figure.format(*wrong, *right))
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
