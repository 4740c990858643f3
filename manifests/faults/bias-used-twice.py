"""bias-used-twice: A per-channel quantized layer with a bias is wrong if the model calls it twice
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


def decibels(net, inputs, per_channel):
    module = torch.export.export(torch.fx.symbolic_trace(net).eval(), inputs, strict=True).module()
    quantizer = QnnQuantizer(soc_model=QcomChipset.SM8650)
    channels = {"is_linear_per_channel": per_channel, "is_conv_per_channel": per_channel}
    quantizer.set_default_quant_config(QuantDtype.use_8a8w, **channels)
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
linear, conv = torch.nn.Linear(16, 16), torch.nn.Conv2d(4, 4, 3, padding=1)
cases = (linear, (4, 16), True), (conv, (1, 4, 8, 8), True), (linear, (4, 16), False)
one, also, right = (
    decibels(torch.nn.Sequential(layer, torch.nn.ReLU(), layer), (torch.rand(size) * 2 - 1,), per_channel)
    for layer, size, per_channel in cases
)
word = "still" if max(one, also) < 20 <= right else "gone" if min(one, also, right) >= 20 else "changed"
figure = f"{one:.1f} dB for a linear layer with weights per channel, {also:.1f} dB for a convolution with weights per channel, {right:.1f} dB for a linear layer per tensor"
print(word, "-", figure)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
