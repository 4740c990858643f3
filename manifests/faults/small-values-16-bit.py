"""small-values-16-bit: `elu` and `softmax` of small values are wrong at 16 bits
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
draws, elu, softmax = [torch.rand(4, 64) * 2 - 1 for _ in range(5)], torch.nn.ELU(), torch.nn.Softmax(-1)
figures = [sorted(decibels(net, (x * end,)) for x in draws) for net, end in ((elu, 0.01), (softmax, 0.01), (elu, 1))]
one, also, right = figures[0][-1], figures[1][-1], figures[2][0]
word = "still" if max(one, also) < 40 <= right else "gone" if min(one, also, right) >= 40 else "changed"
print(word, "-", f"at most {one:.0f} dB for elu(x / 100), at most {also:.0f} dB for softmax(x / 100), at least {right:.0f} dB for elu(x)")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
