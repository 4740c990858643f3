"""matmul-shared-input: `matmul` at 16 bits fails to lower if its second input has another use
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


def lowering(net, inputs):
    module = torch.export.export(torch.fx.symbolic_trace(net).eval(), inputs, strict=True).module()
    quantizer = QnnQuantizer(soc_model=QcomChipset.SM8650)
    quantizer.set_default_quant_config(QuantDtype.use_16a8w)
    module = prepare_pt2e(module, quantizer)
    module(*inputs)
    module = convert_pt2e(module)
    options = qnn.generate_htp_compiler_spec(use_fp16=False)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    try:
        qnn.to_edge_transform_and_lower_to_qnn(module, inputs, spec)
        return "it lowers"
    except (AssertionError, IndexError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}".split(" with op")[0]


nets = lambda x: x @ x, lambda x: torch.relu(x) @ x, lambda x: x @ (x * 1.0)
one, also, right = (lowering(net, (torch.rand(1, 4, 4) * 2 - 1,)) for net in nets)
lowers = [end == "it lowers" for end in (one, also, right)]
word = "still" if lowers == [False, False, True] else "gone" if all(lowers) else "changed"
print(word, "-", f"x @ x: {one}; relu(x) @ x: {also}; x @ (x * 1.0): {right}")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
