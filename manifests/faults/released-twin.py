"""released-twin: Releasing one of two loads of a program breaks the other
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import sys

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime

net, inputs = torch.nn.Linear(8, 8).eval(), (torch.rand(1, 8),)
options = qnn.generate_htp_compiler_spec(use_fp16=True)
spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
buffer = qnn.to_edge_transform_and_lower_to_qnn(net, inputs, spec).to_executorch().buffer
loads = [Runtime.get().load_program(buffer) for _ in range(2)]
methods = [program.load_method("forward") for program in loads]
for method in methods:
    method.execute(list(inputs))
del method, methods[0], loads[0]
try:
    methods[0].execute(list(inputs))
    word, said = "gone", "the second load runs after the first is released"
except RuntimeError as error:
    word, said = "still", str(error).splitlines()[0]
print(word, "-", said)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
