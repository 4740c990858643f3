"""power-of-a-number: `2 ** x` is wrong when quantized
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
    quantizer.set_default_quant_config(QuantDtype.use_8a8w)
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
inputs = (torch.rand(4, 16) * 4 - 2,)
wrong = [decibels(lambda x, base=base: torch.pow(base, x), inputs) for base in (2.0, 3.0)]
right = [decibels(lambda x: torch.exp(x * math.log(2)), inputs)]
word = "still" if max(wrong) < 20 <= min(right) else "gone" if min(*wrong, *right) >= 20 else "changed"
figure = "{:.1f} dB for 2 ** x, {:.1f} dB for 3 ** x; {:.1f} dB for exp(x * log(2))"
print(word, "-", figure.format(*wrong, *right))
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
