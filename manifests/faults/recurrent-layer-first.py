"""recurrent-layer-first: A quantized LSTM or GRU that reads the model's input fails to lower
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


class Net(torch.nn.Module):
    def __init__(self, before, kind):
        super().__init__()
        self.before, self.layer = before, kind(16, 8, batch_first=True)

    def forward(self, x):
        return self.layer(self.before(x))[0]


def lowering(before, kind=torch.nn.LSTM):
    inputs = (torch.rand(1, 6, 16) * 2 - 1,)
    module = torch.export.export(Net(before, kind).eval(), inputs, strict=True).module()
    module = prepare_pt2e(module, QnnQuantizer(soc_model=QcomChipset.SM8650))
    module(*inputs)
    options = qnn.generate_htp_compiler_spec(use_fp16=False)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    try:
        qnn.to_edge_transform_and_lower_to_qnn(convert_pt2e(module), inputs, spec)
    except AssertionError as error:
        return str(error)
    return "it lowers"


nothing, linear = torch.nn.Identity(), torch.nn.Linear(16, 16)
one, also, right = lowering(nothing), lowering(nothing, torch.nn.GRU), lowering(linear)
lowers = [end == "it lowers" for end in (one, also, right)]
word = "still" if lowers == [False, False, True] else "gone" if all(lowers) else "changed"
print(word, "-", f"LSTM first: {one}; GRU first: {also}; LSTM after a linear layer: {right}")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
