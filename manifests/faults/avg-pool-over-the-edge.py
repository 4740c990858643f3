"""avg-pool-over-the-edge: `avg_pool2d` is wrong if a window reaches over the edge
It needs executorch and QNN libraries on LD_LIBRARY_PATH. Exit code: 1 still, 0 gone, 2 changed."""

import math
import os
import signal
import sys

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.runtime import Runtime


def decibels(net, size):
    inputs = (torch.rand(1, 3, size, size),)
    options = qnn.generate_htp_compiler_spec(use_fp16=True)
    spec = qnn.generate_qnn_executorch_compiler_spec(QcomChipset.SM8650, options)
    program = qnn.to_edge_transform_and_lower_to_qnn(net, inputs, spec).to_executorch()
    found = Runtime.get().load_program(program.buffer).load_method("forward").execute(list(inputs))[0]
    wanted = net(*inputs)
    return 20 * math.log10(max(1e-9, wanted.norm() / max(1e-9, (found - wanted).norm().nan_to_num(math.inf))))


def ended(net, size):
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        status = os.waitpid(child, 0)[1]
        return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else os.read(reading, 99).decode()
    os.write(writing, f"{decibels(net, size):.0f} dB".encode())
    os._exit(0)


pool = torch.nn.AvgPool2d
wrong = ended(pool(2, 2, 1), 8), ended(pool(2, 2, 1, count_include_pad=False), 8), ended(pool(3, 2, ceil_mode=True), 10)
right = ended(pool(3, 2, ceil_mode=True), 9)
good = [figure.endswith("dB") and int(figure.split()[0]) > 20 for figure in (right, *wrong)]
word = "still" if good == [True, False, False, False] else "gone" if all(good) else "changed"
figure = f"{wrong[0]} for AvgPool2d(2, 2, padding=1) of 8x8, {right} for AvgPool2d(3, 2, ceil_mode=True) of 9x9"
print(word, "-", figure)
sys.exit({"gone": 0, "still": 1, "changed": 2}[word])
