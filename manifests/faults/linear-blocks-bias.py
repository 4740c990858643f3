"""linear-blocks-bias: A linear layer loses its bias at 16a4w_block
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
    module = torch.export.export(net.eval(), inputs, strict=True).module()
    quantizer = QnnQuantizer(soc_model=QcomChipset.SM8650)
    quantizer.set_default_quant_config(QuantDtype.use_16a4w_block, is_linear_per_channel=True, is_conv_per_channel=True)
    quantizer.set_block_size_map({"linear": (1, 32), "conv2d": (1, 32, 1, 1)})
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


def least(net, *shape):
    lowerings = (decibels(net, (torch.rand(shape) * 2 - 1,)) for _ in range(9))  # The first wrong one decides.
    return next((figure for figure in lowerings if figure < 25), 99)


one, also = (least(torch.nn.Linear(size, 32), 4, size) for size in (64, 128))
right = least(torch.nn.Conv2d(64, 32, 1), 1, 64, 2, 2)
word = "still" if max(one, also) < 25 <= right else "gone" if min(one, also, right) >= 25 else "changed"
told = "of nine lowerings of Linear(64, 32) and Linear(128, 32) some are wrong, none of Conv2d(64, 32, 1)"
worst = f"{one:.1f} and {also:.1f} dB at worst for Linear, {right:.1f} for Conv2d"
print(word, "-", told if word == "still" else worst)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
