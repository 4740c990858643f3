"""recurrent-layer-first: A quantized LSTM or GRU that reads the model's input ends the lowering
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


class Net(torch.nn.Module):
    def __init__(self, before):
        super().__init__()
        self.before, self.layer = before, torch.nn.LSTM(16, 8, batch_first=True)

    def forward(self, x):
        return self.layer(self.before(x))[0]


def lowering(before):
    inputs = (torch.rand(1, 6, 16) * 2 - 1,)
    module = torch.export.export(Net(before).eval(), inputs, strict=True).module()
    module = prepare_pt2e(module, QnnQuantizer(soc_model=QcomChipset.SM8650))
    module(*inputs)
    options = qnn.generate_htp_compiler_spec(use_fp16=False)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    try:
        qnn.to_edge_transform_and_lower_to_qnn(convert_pt2e(module), inputs, spec)
    except AssertionError as error:
        return str(error)
    return ""


first, second = lowering(torch.nn.Identity()), lowering(torch.nn.Linear(16, 16))
word = "changed" if second else "still" if first else "gone"
print(word, "-", f"first: {first or 'it lowers'}; after a linear layer: {second or 'it lowers'}")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
