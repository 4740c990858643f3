"""batch-norm-largest-bias: A quantized batch norm subtracts its largest bias instead of adding it
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


def decibels(net, inputs, scheme):
    module = torch.export.export(net.eval(), inputs, strict=True).module()
    quantizer = QnnQuantizer(soc_model=QcomChipset.SM8650)
    quantizer.set_default_quant_config(QuantDtype[f"use_{scheme}"], is_conv_per_channel=True)
    module = prepare_pt2e(module, quantizer)
    module(*inputs)
    module = convert_pt2e(module)
    options = qnn.generate_htp_compiler_spec(use_fp16=False)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    program = qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    wanted, found = module(*inputs).double(), method.execute(list(inputs))[0].double()
    return 20 * math.log10(max(1e-9, wanted.norm() / max(1e-9, (found - wanted).norm().nan_to_num(math.inf))))


def biased(*biases):
    torch.manual_seed(0)
    inputs, norm = (torch.randn(1, len(biases), 6, 6),), torch.nn.BatchNorm2d(len(biases))
    norm.bias.data = torch.tensor(biases)
    return decibels(norm, inputs, "8a8w")


wrong = biased(0.5, 0.1), biased(-1.0, 2.0, 1.0, 0.3)
right = biased(-0.5, 0.1), biased(1.0, -2.0, 1.0, 0.3)
word = "still" if max(wrong) < 20 <= min(right) else "gone" if min(*wrong, *right) >= 20 else "changed"
figure = "{:.1f} dB with biases of 0.5 and 0.1, {:.1f} dB with biases of -1, 2, 1 and 0.3"
figure += "; {:.1f} dB with biases of -0.5 and 0.1, {:.1f} dB with biases of 1, -2, 1 and 0.3"
print(word, "-", figure.format(*wrong, *right))
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
