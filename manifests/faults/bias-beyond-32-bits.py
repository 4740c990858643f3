"""bias-beyond-32-bits: A bias is cut off at 16a16w if the range of the layer's input is narrow
It needs executorch. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


class Added(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.bias = torch.nn.Linear(16, 16, bias=False), layer.bias
        self.layer.weight = layer.weight

    def forward(self, x):
        return self.layer(x) + self.bias


def decibels(net, scheme):
    inputs = (torch.linspace(-0.1, 0.1, 64).reshape(4, 16),)
    module = torch.export.export(net, inputs, strict=True).module()
    quantizer = QnnQuantizer(soc_model=QcomChipset.SM8650)
    quantizer.set_default_quant_config(QuantDtype[scheme], is_linear_per_channel=True)
    module = prepare_pt2e(module, quantizer)
    module(*inputs)
    wanted, found = net(*inputs).double(), convert_pt2e(module)(*inputs).double()
    return 20 * math.log10(max(1e-9, wanted.norm() / max(1e-9, (found - wanted).norm().nan_to_num(math.inf))))


torch.manual_seed(0)
layer, other = (torch.nn.Linear(16, size).eval().requires_grad_(False) for size in (16, 8))
one, also, added = (decibels(net, "use_16a16w") for net in (layer, other, Added(layer)))
less = decibels(layer, "use_16a8w")
right = min(added, less)
word = "still" if max(one, also) < 20 <= right else "gone" if min(one, also, right) >= 20 else "changed"
figure = f"{one:.1f} dB for Linear(16, 16) at 16a16w, {also:.1f} dB for Linear(16, 8) at 16a16w, {added:.1f} dB with the bias in an add, {less:.1f} dB at 16a8w"
print(word, "-", figure)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
