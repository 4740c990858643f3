"""concat-of-a-constant: A constant of equal elements at the end of a quantized `cat` becomes zeros
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


def decibels(net, inputs):
    module = torch.export.export(torch.fx.symbolic_trace(net).eval(), inputs, strict=True).module()
    quantizer = QnnQuantizer(soc_model=QcomChipset.SM8650)
    quantizer.set_default_quant_config(QuantDtype.use_8a8w)
    module = prepare_pt2e(module, quantizer)
    module(*inputs)
    module = convert_pt2e(module)
    options = qnn.generate_htp_compiler_spec(use_fp16=False)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    program = qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    wanted, found = module(*inputs).double(), method.execute(list(inputs))[0].double()
    return 20 * math.log10(max(1e-9, wanted.norm() / max(1e-9, (found - wanted).norm().nan_to_num(math.inf))))


torch.manual_seed(0)
weight, bias, ones = torch.randn(8, 8), torch.randn(8), torch.ones(1, 4, 3)
linear = torch.nn.functional.linear
nets = (
    lambda x: torch.cat([linear(x, weight, bias), ones], -1),
    lambda x: torch.cat([linear(x, weight, bias), ones * 0.5], -1),
    lambda x: torch.cat([ones, linear(x, weight, bias)], -1),
)
one, also, right = (decibels(net, (torch.rand(1, 4, 8) * 2 - 1,)) for net in nets)
word = "still" if max(one, also) < 20 <= right else "gone" if min(one, also, right) >= 20 else "changed"
figure = f"{one:.1f} dB for cat([linear(x), ones]), {also:.1f} dB with 0.5 instead of ones, {right:.1f} dB for cat([ones, linear(x)])"
print(word, "-", figure)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
