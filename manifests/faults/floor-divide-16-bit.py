"""floor-divide-16-bit: `floor_divide` at 16 bits gives fractions if all dividends are in [-1, 1]
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
near, nearer, far = ((torch.linspace(-end, end, 64).reshape(4, 16), torch.rand(4, 16) + 1) for end in (0.2, 0.1, 4))
one, also, *right = (decibels(lambda x, y: x.floor_divide(y), inputs) for inputs in (near, nearer, far))
right += [decibels(lambda x, y: torch.floor(x / y), inputs) for inputs in (near, far)]
word = "still" if max(one, also) < 60 <= min(right) else "gone" if min(one, also, *right) >= 60 else "changed"
figure = "{:.1f} dB for floor_divide(x, y) with x in [-0.2, 0.2], {:.1f} dB in [-0.1, 0.1], {:.1f} dB in [-4, 4]"
figure += "; {:.1f} and {:.1f} dB for floor(x / y) in the first and the last range"
print(word, "-", figure.format(one, also, *right))
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
