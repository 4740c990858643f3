"""max-pool3d-fp16: `max_pool3d` at fp16 loses the batch dimension
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import sys

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime


def shape(net, inputs):
    module = torch.export.export(net.eval(), inputs, strict=True).module()
    options = qnn.generate_htp_compiler_spec(use_fp16=True)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    program = qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    return tuple(method.execute(list(inputs))[0].shape)


found = shape(torch.nn.MaxPool3d(2), (torch.rand(1, 4, 4, 4, 4),))
words = {(1, 4, 2, 2, 2): "gone", (4, 2, 2, 2): "still"}
word = words.get(found, "changed")
print(word, "-", f"MaxPool3d(2) of shape (1, 4, 4, 4, 4) gives the shape {found}, not (1, 4, 2, 2, 2)")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
