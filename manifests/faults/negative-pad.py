"""negative-pad: `pad` that removes at one end and adds at the other is wrong
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


class Shift(torch.nn.Module):
    def __init__(self, pads, cut=None):
        super().__init__()
        self.norm, self.pads, self.cut = torch.nn.LayerNorm(32), pads, cut

    def forward(self, x):
        return torch.nn.functional.pad(self.norm(x)[:, : self.cut], self.pads)


def decibels(net, rows, quantized=False):
    inputs = (torch.randn(1, rows, 32),)
    module = torch.export.export(net.eval(), inputs, strict=True).module()
    if quantized:
        quantizer = QnnQuantizer(soc_model=QcomChipset.SM8650)
        quantizer.set_default_quant_config(QuantDtype.use_16a8w)
        module = prepare_pt2e(module, quantizer)
        module(*inputs)
        module = convert_pt2e(module)
    htp = qnn.generate_htp_compiler_spec(use_fp16=not quantized)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, htp)
    program = qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    wanted, found = module(*inputs), method.execute(list(inputs))[0]
    return 20 * math.log10(wanted.norm() / (found - wanted).norm().clamp(min=1e-9))


shift = Shift((0, 0, 1, -1))
one, also, right = decibels(shift, 8, True), decibels(shift, 16), decibels(Shift((0, 0, 1, 0), -1), 16)
word = "still" if max(one, also) < 20 <= right else "gone" if min(one, also, right) >= 20 else "changed"
print(word, f"- {one:.1f} dB for (0, 0, 1, -1) of 8 rows at 16a8w, {also:.1f} dB for (0, 0, 1, -1) of 16 rows at fp16; {right:.1f} dB for a slice and (0, 0, 1, 0)")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
