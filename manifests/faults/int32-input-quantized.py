"""int32-input-quantized: A cast of an int32 or int64 input to float is wrong when quantized
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


def decibels(net, inputs, scheme):
    module = torch.export.export(torch.fx.symbolic_trace(net).eval(), inputs, strict=True).module()
    quantizer = QnnQuantizer(soc_model=QcomChipset.SM8650)
    quantizer.set_default_quant_config(QuantDtype["use_" + scheme])
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
one, also, moved, right, first = (
    decibels(net, (torch.randint(-9, 9, (4, 16), dtype=kind),), scheme)
    for net, kind, scheme in (
        (lambda x: x.float() * 0.5, torch.int32, "8a8w"),
        (lambda x: x.float() * 0.5, torch.int32, "16a8w"),
        (lambda x: x.unsqueeze(-1).float() * 0.5, torch.int64, "8a8w"),
        (lambda x: x.unsqueeze(-1) * 0.5, torch.float32, "8a8w"),
        (lambda x: x.float().unsqueeze(-1) * 0.5, torch.int64, "8a8w"),
    )
)
wrong, correct = max(one, also, moved) < 20, min(right, first) >= 20
word = "still" if wrong and correct else "gone" if min(one, also, moved) >= 20 and correct else "changed"
figures = f"{one:.1f} dB for x.float() of int32 at 8a8w, {also:.1f} dB at 16a8w, {moved:.1f} dB for x.unsqueeze(-1).float() of int64 at 8a8w"
print(word, "-", f"{figures}, {first:.1f} dB for x.float().unsqueeze(-1) of int64, {right:.1f} dB for x.unsqueeze(-1) of float32")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
