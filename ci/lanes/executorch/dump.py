"""The process in which ExecuTorch writes QNN's calls, or the graph as a DLC, to the working folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from executorch.backends.qualcomm.utils.utils import to_edge_transform_and_lower_to_qnn

from ci.lanes.executorch.lower import compiler_spec, prepared_model
from ci.lanes.executorch.suite import chosen_for, parse_request
from ci.pipeline.models.factory import copied, make

ONLINE = {"calls": False, "dlc": True}
"""The format of a graph that the device compiles: it is passed on as a DLC."""


def _child(kind: str, order: str) -> None:
    request = json.loads(order)
    case, run, soc, place = parse_request(request)
    into = Path.cwd()
    os.chdir(request["working_folder"])
    loaded = make(case.factory, case.arguments, place)
    torch.set_grad_enabled(False)
    loaded.model.requires_grad_(False)
    sample, module = loaded.sample(0), loaded.model
    if run.quantizes:
        batches = chosen_for(loaded, case, run).calibrating
        module, _ = prepared_model(loaded, sample, batches, run, case.backend, soc, place).quantized()
    spec = compiler_spec(soc, run, saver=kind == "calls", online_prepare=ONLINE[kind])
    os.chdir(into)
    to_edge_transform_and_lower_to_qnn(module, copied(sample), spec)


if __name__ == "__main__":
    _child(*sys.argv[1:])
