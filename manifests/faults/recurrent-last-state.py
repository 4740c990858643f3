"""recurrent-last-state: The last state of a quantized LSTM, GRU or RNN fails to lower
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import sys

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


class Net(torch.nn.Module):
    def __init__(self, kind, state):
        super().__init__()
        self.layer, self.state = kind(16, 8, batch_first=True), state
        self.before, self.after = torch.nn.Linear(16, 16), torch.nn.Linear(8, 8)

    def forward(self, x):
        steps, last = self.layer(self.before(x))
        return self.after(last[-1] if self.state else steps[:, -1])


def lowering(kind, state, inputs=(torch.rand(1, 6, 16) * 2 - 1,)):
    module = torch.export.export(Net(kind, state).eval(), inputs, strict=True).module()
    module = prepare_pt2e(module, QnnQuantizer(soc_model=QcomChipset.SM8650))
    module(*inputs)
    options = qnn.generate_htp_compiler_spec(use_fp16=False)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    try:
        qnn.to_edge_transform_and_lower_to_qnn(convert_pt2e(module), inputs, spec)
        return "it lowers"
    except RuntimeError as error:
        return str(error).split(" with ")[0]


kinds = torch.nn.GRU, torch.nn.RNN
one, also, right, other = (lowering(kind, state) for state in (True, False) for kind in kinds)
lowers = [end == "it lowers" for end in (one, also, right, other)]
word = "still" if lowers == [False, False, True, True] else "gone" if all(lowers) else "changed"
print(word, "-", f"h_n[-1] of GRU: {one}; of RNN: {also}; y[:, -1] of GRU and RNN: {right}")
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
