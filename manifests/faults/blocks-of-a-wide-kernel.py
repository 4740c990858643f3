"""blocks-of-a-wide-kernel: A convolution at 16a4w_block is wrong unless its kernel is 1x1
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


def decibels(net, inputs, block):
    module = torch.export.export(torch.fx.symbolic_trace(net).eval(), inputs, strict=True).module()
    quantizer = QnnQuantizer(soc_model=QcomChipset.SM8650)
    quantizer.set_default_quant_config(QuantDtype.use_16a4w_block, is_conv_per_channel=True)
    quantizer.set_block_size_map({"conv2d": block})
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
cases = (3, 1), (3, 3), (1, 1)
one, also, right = (
    decibels(torch.nn.Conv2d(32, 32, size), (torch.rand(1, 32, 8, 8) * 2 - 1,), (1, 32, block, block))
    for size, block in cases
)
word = "still" if max(one, also) < 20 <= right else "gone" if min(one, also, right) >= 20 else "changed"
print(word, "-", f"{one:.1f} dB for 3x3 with a block for each kernel position, {also:.1f} dB for 3x3 with one block, {right:.1f} dB for 1x1")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
