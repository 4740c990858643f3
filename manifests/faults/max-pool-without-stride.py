"""max-pool-without-stride: `max_pool2d` without a stride makes the lowering of a whole model fail
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import sys

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn


def lowering(net, inputs):
    module = torch.export.export(torch.fx.symbolic_trace(net).eval(), inputs, strict=True).module()
    options = qnn.generate_htp_compiler_spec(use_fp16=True)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    try:
        qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec)
        return "it lowers"
    except (AssertionError, IndexError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}".split(" with op")[0]


pool = torch.nn.functional.max_pool2d
nets = lambda x: pool(x, 2), lambda x: pool(x, 3), lambda x: pool(x, 2, 2)
one, also, right = (lowering(net, (torch.rand(1, 4, 12, 12),)) for net in nets)
lowers = [end == "it lowers" for end in (one, also, right)]
word = "still" if lowers == [False, False, True] else "gone" if all(lowers) else "changed"
print(word, "-", f"max_pool2d(x, 2): {one}; max_pool2d(x, 3): {also}; max_pool2d(x, 2, 2): {right}")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
