"""concat-wider-than-its-parts: A 16-bit `cat` of 8-bit operands is wrong
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import ModuleQConfig, QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


def decibels(net, wide, inputs):
    module = torch.export.export(torch.fx.symbolic_trace(net).eval(), inputs, strict=True).module()
    quantizer = QnnQuantizer(soc_model=QcomChipset.SM8650)
    quantizer.set_default_quant_config(QuantDtype.use_8a8w)
    more = ModuleQConfig(QuantDtype.use_16a8w)
    quantizer.set_submodule_qconfig_list([(lambda node: node.name in wide, more)])
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
inputs, parts = (torch.randn(1, 8, 10), 3 * torch.randn(1, 8, 10)), ("cat", "sub", "mul", "sigmoid")
one, also, right = (
    decibels(lambda x, y, d=d: torch.cat([40 * (x - y), torch.sigmoid(y)], d), wide, inputs)
    for d, wide in ((-1, ("cat",)), (1, ("cat",)), (-1, parts))
)
word = "still" if max(one, also) < 20 <= right else "gone" if min(one, also, right) >= 20 else "changed"
figure = f"{one:.1f} dB for 8-bit inputs, {also:.1f} dB along another dimension, {right:.1f} dB for 16-bit inputs"
print(word, "-", figure)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
