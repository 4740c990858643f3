"""comparison-as-float: A comparison that is cast to float is wrong before a linear layer at 8 bits
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
    quantizer.set_default_quant_config(QuantDtype.use_8a8w, is_linear_per_channel=True)
    module = prepare_pt2e(module, quantizer)
    module(*inputs)
    module = convert_pt2e(module)
    options = qnn.generate_htp_compiler_spec(use_fp16=False)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    program = qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    wanted, found = module(*inputs).double(), method.execute(list(inputs))[0].double()
    return 20 * math.log10(max(1e-9, wanted.norm() / max(1e-9, (found - wanted).norm().nan_to_num(math.inf))))


class Net(torch.nn.Sequential):
    def forward(self, x):
        return self[0](self.gate(x))


torch.manual_seed(0)
gates = lambda x: (x > 0.1).float(), lambda x: (x <= 0.5).float(), lambda x: torch.where(x > 0.1, 1.0, 0.0)
net, inputs = Net(torch.nn.Linear(16, 8)), (torch.rand(4, 16) * 2 - 1,)
one, also, right = (decibels(net, inputs) for net.gate in gates)
word = "still" if max(one, also) < 20 <= right else "gone" if min(one, also, right) >= 20 else "changed"
print(word, "-", f"{one:.1f} dB with a cast of x > 0.1, {also:.1f} dB with a cast of x <= 0.5, {right:.1f} dB with torch.where")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
