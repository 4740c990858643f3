"""per-channel-input-channels: A per-channel convolution at fp16a8w fails to lower unless it is 1x1 with 4, 8, 12 … input channels
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


def lowering(channels, kernel):
    inputs = (torch.rand(1, channels, 8, 8) * 2 - 1,)
    net = torch.nn.Conv2d(channels, 8, kernel).eval()
    module = torch.export.export(net, inputs, strict=True).module()
    quantizer = QnnQuantizer(soc_model=QcomChipset.SM8650)
    quantizer.set_default_quant_config(QuantDtype.use_fp16a8w, is_conv_per_channel=True)
    module = prepare_pt2e(module, quantizer)
    module(*inputs)
    options = qnn.generate_htp_compiler_spec(use_fp16=True)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    try:
        qnn.to_edge_transform_and_lower_to_qnn(convert_pt2e(module), inputs, spec)
    except (AssertionError, KeyError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"[:80]
    return "it lowers"


one, also, right = lowering(3, 1), lowering(4, 3), lowering(4, 1)
lowers = [end == "it lowers" for end in (one, also, right)]
word = "still" if lowers == [False, False, True] else "gone" if all(lowers) else "changed"
print(word, "-", f"1x1 with 3 channels: {one}; 3x3 with 4 channels: {also}; 1x1 with 4 channels: {right}")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
