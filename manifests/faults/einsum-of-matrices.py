"""einsum-of-matrices: torch.einsum('ij,kj->ik', x, y) of two matrices is wrong at fp16
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import sys

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime


def decibels(net, inputs):
    module = torch.export.export(torch.fx.symbolic_trace(net).eval(), inputs, strict=True).module()
    options = qnn.generate_htp_compiler_spec(use_fp16=True)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    program = qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    wanted, found = module(*inputs).double(), method.execute(list(inputs))[0].double()
    return 20 * math.log10(max(1e-9, wanted.norm() / max(1e-9, (found - wanted).norm().nan_to_num(math.inf))))


torch.manual_seed(0)
x, y = torch.rand(3, 7), torch.rand(3, 7)
einsum, matmul = (
    decibels(net, (x, y))
    for net in (lambda x, y: torch.einsum("ij,kj->ik", x, y), lambda x, y: torch.matmul(x, y.T))
)
word = "changed" if matmul < 20 else "still" if einsum < 20 else "gone"
print(word, "-", f"{einsum:.1f} dB for einsum of two matrices, {matmul:.1f} dB for matmul")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
