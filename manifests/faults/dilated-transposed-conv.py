"""dilated-transposed-conv: A dilated ConvTranspose1d is wrong at 16a8w
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


torch.manual_seed(0)
layer, other = torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d
one, also, *right = (
    decibels(kind(8, 6, 3, dilation=dilation), (torch.rand(1, 8, *size) * 2 - 1,), "16a8w")
    for kind, dilation, size in ((layer, 2, [16]), (layer, 3, [16]), (other, 2, [6, 6]), (layer, 1, [16]))
)
word = "still" if max(one, also) < 20 <= min(right) else "gone" if min(one, also, *right) >= 20 else "changed"
figure = f"{one:.1f} dB for ConvTranspose1d with dilation=2, {also:.1f} dB with dilation=3"
figure += f", {right[0]:.1f} dB for ConvTranspose2d with dilation=2, {right[1]:.1f} dB for ConvTranspose1d without dilation"
print(word, "-", figure)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
