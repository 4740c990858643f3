"""batch-norm-16a8w: A batch norm that is not folded into a convolution is wrong at 16a8w
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
norm, drawn, inputs = torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(8), (torch.randn(1, 8, 6, 6),)
torch.nn.init.uniform_(drawn.weight, 0.6, 1)
cases = (norm, "16a8w"), (drawn, "16a8w"), (norm, "8a8w")
one, also, right = (decibels(net, inputs, scheme) for net, scheme in cases)
word = "still" if max(one, also) < 20 <= right else "gone" if min(one, also, right) >= 20 else "changed"
print(word, "-", f"{one:.1f} dB at 16a8w with all weights 1, {also:.1f} dB with weights in [0.6, 1], {right:.1f} dB at 8a8w")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
