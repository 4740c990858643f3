"""bicubic-aligned-16-bit: Bicubic interpolation to an even multiple with align_corners=True is wrong at 16 bits
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
    quantizer.set_default_quant_config(QuantDtype.use_16a8w)
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
resize = torch.nn.functional.interpolate
one, also, *right = (
    decibels(lambda x, a=a, n=n: resize(x, scale_factor=n, mode="bicubic", align_corners=a), (torch.rand(1, 4, 8, 8),))
    for n, a in ((2, True), (4, True), (3, True), (2, False))
)
word = "still" if max(one, also) < 20 <= min(right) else "gone" if min(one, also, *right) >= 20 else "changed"
figure = f"{one:.1f} dB for twice the size with align_corners, {also:.1f} dB for four times the size with it"
figure += f", {right[0]:.1f} dB for three times the size with it, {right[1]:.1f} dB for twice the size without it"
print(word, "-", figure)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
