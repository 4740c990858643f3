"""adaptive-max-pool3d: `adaptive_max_pool3d` uses its output size as the kernel size
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


cases = (4, 8), (2, 8), (3, 9)
sizes = [shape(torch.nn.AdaptiveMaxPool3d(to), (torch.rand(1, 4, *3 * [of]),))[-1] for to, of in cases]
word = {(4, 2, 3): "gone", (2, 4, 3): "still"}.get(tuple(sizes), "changed")
print(word, "-", f"AdaptiveMaxPool3d(4) of size 8 gives size {sizes[0]}, (2) of size 8 gives {sizes[1]}, (3) of size 9 gives {sizes[2]}")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
